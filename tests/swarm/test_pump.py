"""In no pass of the loop more turns than its quota, whoever asks and in whatever order tasks run."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from nanotrio.swarm.pump import QUOTA, STARTS, Pump


class Passes(trio.abc.Instrument):
    """Counts what happens in each pass of the loop."""

    def __init__(self) -> None:
        self.number = 0
        self.counts: dict[str, Counter[int]] = {"turn": Counter(), "start": Counter(), "long": Counter()}

    def before_io_wait(self, timeout: float) -> None:
        self.number += 1

    def note(self, kind: str) -> None:
        self.counts[kind][self.number] += 1

    def most(self, kind: str) -> int:
        return max(self.counts[kind].values())


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Pump, Passes, trio.Nursery]]:
    pump, passes = Pump(), Passes()
    trio.lowlevel.add_instrument(passes)
    async with trio.open_nursery() as pumping:
        pumping.start_soon(pump.run)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            yield pump, passes, nursery
        pumping.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(passes)


async def test_who_asks_together_gets_turns_over_several_passes() -> None:
    turns = 20
    async with running() as (pump, passes, nursery):

        async def work() -> None:
            for _ in range(turns):
                await pump.turn()
                passes.note("turn")
                await trio.lowlevel.checkpoint()

        for _ in range(1_000):
            nursery.start_soon(work)
    assert sum(passes.counts["turn"].values()) == 1_000 * turns
    assert passes.most("turn") == QUOTA


async def test_new_agents_have_a_share_of_each_pass_and_those_at_work_the_rest() -> None:
    async with running() as (pump, passes, nursery):
        left = 5_000

        def start() -> None:
            nonlocal left
            left -= 1
            passes.note("start")

        async def work() -> None:
            while left:
                await pump.turn()
                passes.note("turn")
                await trio.lowlevel.checkpoint()

        for _ in range(1_000):
            nursery.start_soon(work)
        for _ in range(left):
            pump.post_start(start)
    starts, turns = passes.counts["start"], passes.counts["turn"]
    assert set(starts.values()) == {STARTS}
    assert max(turns[number + 1] + count for number, count in starts.items()) == QUOTA  # started ones run next


async def test_a_pass_has_one_long_turn() -> None:
    async with running() as (pump, passes, nursery):

        async def work() -> None:
            await pump.long_turn()
            passes.note("long")

        for _ in range(50):
            nursery.start_soon(work)
    assert sum(passes.counts["long"].values()) == 50
    assert passes.most("long") == 1


async def test_who_is_cancelled_while_queued_takes_no_turn_from_others() -> None:
    async with running() as (pump, passes, nursery):

        async def work() -> None:
            await pump.turn()
            passes.note("turn")

        with trio.CancelScope() as scope:
            async with trio.open_nursery() as cancelled:
                for _ in range(2 * QUOTA):
                    cancelled.start_soon(work)
                await trio.lowlevel.checkpoint()
                scope.cancel()
        for _ in range(QUOTA):
            nursery.start_soon(work)
    assert passes.counts["turn"].total() >= 2 * QUOTA
    assert passes.most("turn") <= QUOTA

"""Roots take turns with slots, and who is asked for an answer goes before children that were never started."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter, deque
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from nanotrio.limits import Limits
from nanotrio.models.scripted import Conversation
from nanotrio.swarm.lines import Line, Ranges
from nanotrio.swarm.rows import RowKind, Rows
from tests.swarm.test_residence import tight
from tests.swarm.worlds import by_task, check_all_is_given_back, late, opened, reply_text, taped_store

ROOT = [reply_text("ok")]


@pytest.mark.parametrize("resident", [2, 1_024, 1_000_000])
async def test_two_roots_with_thousands_of_children_progress_evenly(
    autojump_clock: trio.testing.MockClock, resident: int
) -> None:
    done: Counter[str] = Counter()
    before: list[int] = []
    apart: list[float] = []

    def child(c: Conversation) -> Any:
        done[c.task] += 1
        first, second = done["child 1"], done["child 2"]
        if second == 1 and not before:
            before.append(first)  # while the other root had none
        if second >= 500 and max(first, second) < 2_000:
            apart.append(abs(first - before[0] - second) / second)
        return late(1, "done")

    limits = Limits(max_idle=100)
    async with tight(by_task(root=ROOT, child=child), resident, limits=limits, max_active=50) as swarm:
        roots = [await swarm.spawn("root go") for _ in range(2)]
        for root, number in zip(roots, (1, 2), strict=True):
            await root.spawn_many([f"child {number}"] * 2_000)
        for root in roots:
            await root.wait()
        assert done == {"child 1": 2_000, "child 2": 2_000}
        assert apart
        assert max(apart) <= 0.05
        check_all_is_given_back(swarm)


@pytest.mark.parametrize("resident", [2, 1_000])
async def test_a_late_root_and_its_first_child_do_not_wait_for_the_children_of_another(
    autojump_clock: trio.testing.MockClock, resident: int
) -> None:
    started: dict[str, float] = {}

    def note(c: Conversation) -> Any:
        started.setdefault(c.task, trio.current_time())
        return late(1, "done")

    async with tight(by_task(root=note, child=note, late=note), resident, max_active=4) as swarm:
        root = await swarm.spawn("root go")
        await root.spawn_many([f"child {number}" for number in range(500)])
        await trio.sleep(1.5)
        other = await swarm.spawn("root late")
        await other.spawn_many([f"late {number}" for number in range(5)])
        spawned = trio.current_time()
        await other.wait()
        assert started["root late"] - spawned <= 1, "within one hand-over of a slot"
        assert trio.current_time() - spawned <= 6
        assert len(started) < 50
        await root.cancel()
        check_all_is_given_back(swarm)


async def test_an_idle_agent_that_gets_mail_answers_at_once(autojump_clock: trio.testing.MockClock) -> None:
    answered: list[float] = []

    def asked(c: Conversation) -> Any:
        answered.append(trio.current_time())
        return reply_text(f"answer {len(c.messages)}")

    script = by_task(root=ROOT, child=lambda _: late(1, "done"), asked=asked)
    async with tight(script, max_active=3) as swarm:
        root = await swarm.spawn("root go")
        child = await root.spawn("asked x")
        await child.wait()
        await root.spawn_many(["child"] * 200)
        await trio.sleep(1.5)
        sent = trio.current_time()
        await child.send("are you there?")
        assert (await child.wait()).last_text == "answer 3"
        assert answered[-1] - sent <= 1
        await root.wait()


async def test_a_root_waits_for_room_as_children_do(autojump_clock: trio.testing.MockClock) -> None:
    limits = Limits(max_live=3)
    async with opened(by_task(root=lambda _: late(1, "done")), limits=limits, max_active=100) as swarm:
        roots = [await swarm.spawn("root go") for _ in range(9)]
        await trio.sleep(0.5)
        assert (swarm.statistics().live, swarm.statistics().pending) == (3, 6)
        for root in roots:
            await root.wait()


@pytest.mark.parametrize("resident", [2, 1_000])
async def test_interrupted_agents_of_all_roots_are_back_before_a_new_child_starts(
    autojump_clock: trio.testing.MockClock, resident: int
) -> None:
    store = taped_store()
    asked: list[str] = []

    def child(c: Conversation) -> Any:
        asked.append(c.task)
        return late(1, "done")

    script = by_task(root=ROOT, child=child)
    with pytest.raises(KeyError):
        async with tight(script, resident, store=store, max_active=6) as swarm:
            roots = [await swarm.spawn("root go") for _ in range(3)]
            for root, name in zip(roots, "abc", strict=True):
                await root.spawn_many([f"child {name}{number}" for number in range(2)])
            await trio.sleep(0.5)
            for root, name in zip(roots, "abc", strict=True):
                await root.spawn_many([f"child {name}{number}" for number in range(2, 9)])
            raise KeyError
    begun = set(asked)
    assert len(begun) == 6
    asked.clear()
    async with tight(script, resident, store=await store.as_of(len(store.batches)), max_active=6) as swarm:
        for agent in await swarm.resume_all():
            await agent.wait()
        check_all_is_given_back(swarm)
    assert set(asked[:6]) == begun
    assert len(set(asked)) == 27


def test_rows_that_are_passed_in_any_order_are_forgotten_and_the_others_found() -> None:
    chance = random.Random(3)
    rows, left = Rows(), {}
    kind = RowKind(1, "kid", 7)
    for agent in range(30_000):
        left[rows.end] = agent
        rows.push(agent, agent + 1, kind)
        if agent % 3:
            place = chance.choice((next(iter(left)), rows.end - 1)) if agent % 2 else next(iter(left))
            if place in left:
                assert rows.peek(place) == (left[place], False)
                rows.take(place)
                assert rows.peek(place) == (left.pop(place), True)
                rows.pass_over(place)
    assert (rows.waiting, rows.left, rows.at) == (len(left), len(left), next(iter(left)))
    assert rows.counts() == {1: len(left)}
    assert rows.below(1) == list(left.values())
    assert all(rows.find(agent) == place for place, agent in left.items())
    assert rows.find(next(iter(left.values())) - 1) == -1


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 4)), max_size=100))
def test_ranges_are_a_queue_of_integers(moves: list[tuple[int, int]]) -> None:
    ranges, model, end = Ranges(), deque[int](), 0
    for count, gap in moves:
        if count >= 0:
            ranges.push(end + gap, end + gap + count)
            model.extend(range(end + gap, end + gap + count))
            end += gap + count
        for _ in range(-count):
            if model:
                assert (ranges.first(), ranges.pop()) == (model[0], model.popleft())
        assert bool(ranges) == bool(model)
        assert ranges.some(gap) == list(model)[:gap]


def test_a_pending_child_costs_few_bytes_however_roots_alternate() -> None:
    tracemalloc.start()
    lines = [Line(root) for root in range(10)]
    for place in range(100_000):
        lines[place % 10].far.push(place, place + 1)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / 100_000 < 20
    for place in range(100_000):
        assert lines[place % 10].far.pop() == place

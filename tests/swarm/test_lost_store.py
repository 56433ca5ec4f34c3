"""A store that stops taking writes, for a while or for good, as agents and their program meet it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

import nanotrio
from nanotrio.errors import FencedError, StoreError
from nanotrio.models.scripted import Conversation
from nanotrio.stores import MemoryStore
from nanotrio.swarm.events import StoreTroubled
from nanotrio.testing.unreliable_store import UnreliableStore
from tests.swarm.worlds import by_task, check_all_is_given_back, late, opened, reply_calls, reply_text


@nanotrio.tool
async def effect() -> str:
    """Do."""
    return "done"


def busy(c: Conversation) -> Any:
    return reply_calls(("effect", {})) if c.steps < 300 else reply_text("end")


async def test_a_lost_fence_ends_the_block_with_that_error_and_dispatches_nothing_more(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'swarm.db'}"
    script = by_task(root=busy, quiet=[late(30)])
    with pytest.raises(FencedError) as raised:
        async with opened(script, store=store, tools=[effect]) as swarm:
            agents = [await swarm.spawn(f"root {n}", budget_usd=1.0) for n in range(10)]
            await swarm.spawn("quiet x")
            async with opened(script, store=store, tools=[effect], takeover=True) as second:
                assert {view.status for view in second.agents()} == {"interrupted"}
                await trio.sleep(0.2)
            for agent in agents:
                await agent.wait()
    assert "took" in str(raised.value)
    assert swarm._runtime.live == 0


async def test_a_store_that_fails_for_a_while_shows_and_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    store = UnreliableStore(MemoryStore())
    async with opened(by_task(root=busy), store=store, tools=[effect]) as swarm, swarm.events() as stream:
        agent = await swarm.spawn("root go")
        store.error = StoreError("the disk is full")
        await trio.sleep(2)
        assert swarm.statistics().store_trouble == "the disk is full"
        assert agent.view().outcome is None
        store.error = None
        assert (await agent.wait()).status == "completed"
        check_all_is_given_back(swarm)
        troubles = []
        while stream.statistics().current_buffer_used:
            event = stream.receive_nowait()
            if isinstance(event, StoreTroubled):
                troubles.append(event.message)
    assert troubles == ["the disk is full", ""]
    assert store.refused >= 2


async def test_an_answer_that_was_lost_writes_nothing_twice(autojump_clock: trio.testing.MockClock) -> None:
    inner = MemoryStore()
    store = UnreliableStore(inner)
    store.lost_answers = 5
    async with opened(by_task(root=busy), store=store, tools=[effect]) as swarm:
        assert (await (await swarm.spawn("root go")).wait()).steps == 301
    assert store.lost_answers == 0
    records = await inner.scan(0, limit=10**6)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))


async def test_a_store_that_never_takes_writes_again_is_told_when_the_block_is_left(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = UnreliableStore(MemoryStore())
    with pytest.raises(StoreError, match="could not be written"):
        async with opened(by_task(root=[late(1)]), store=store) as swarm:
            await swarm.spawn("root go")
            store.error = StoreError("the disk is full")

"""A store has each uuid once."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

import nanotrio
from nanotrio.errors import UnknownAgentError, UsageError
from tests.swarm.worlds import by_task, late, opened, reply_text, taped_store

SCRIPT = by_task(root=[late(5)], quick=[reply_text("done")])


@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
async def test_a_uuid_that_the_store_has_is_refused_by_the_name_of_its_session(
    kind: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    url = f"{kind}:{tmp_path}/store"
    said = r"^there is a session mine already \(agent.1\); resume it \(nanotrio -r mine\), or choose another id$"
    with trio.CancelScope() as scope:
        async with opened(SCRIPT, store=url) as swarm:
            await swarm.spawn("root go", uuid="mine")
            with pytest.raises(UsageError, match=said):
                await swarm.spawn("root go", uuid="mine")
            scope.cancel()
            await trio.sleep_forever()
    for _ in range(2):  # once while it is unfinished, once finished
        async with opened(SCRIPT, store=url) as swarm:
            other = await swarm.spawn("quick go")
            await other.wait()
            with pytest.raises(UsageError, match=said):
                await swarm.spawn("root go", uuid="mine")
            with pytest.raises(UsageError, match=said):
                await swarm.fork(other.id, uuid="mine")
            assert [view.uuid for view in swarm.agents()].count("mine") <= 1
            await (await swarm.resume("mine")).wait()
    views = await nanotrio.read_store(url)
    assert [(view.id, view.status) for view in views if view.uuid == "mine"] == [(1, "idle")]


async def test_a_uuid_is_known_to_be_had_before_the_head_that_says_so_is_written(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = taped_store()
    with trio.move_on_after(1):
        async with opened(SCRIPT, store=store) as swarm:
            await swarm.spawn("root go", uuid="mine")
            await trio.sleep_forever()
    first = next(count for count, batch in enumerate(store.batches, 1) if batch.records)
    killed = await store.as_of(first)
    async with opened(SCRIPT, store=killed) as swarm:
        with pytest.raises(UsageError, match=r"agent\.1"):
            await swarm.spawn("root go", uuid="mine")


async def test_two_that_spawn_under_one_uuid_at_once_get_one_session() -> None:
    refused = 0
    async with opened(SCRIPT) as swarm:

        async def spawn() -> None:
            nonlocal refused
            try:
                await swarm.spawn("quick go", uuid="mine")
            except UsageError:
                refused += 1

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(spawn)
        assert (refused, len(swarm.agents())) == (4, 1)
        with pytest.raises(UnknownAgentError, match="no agent 'yours' in the store"):
            await swarm.find("yours")

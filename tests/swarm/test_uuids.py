"""A store has each uuid once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import nanotrio
from nanotrio.errors import UnknownAgentError, UsageError
from nanotrio.stores import MemoryStore
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


@pytest.mark.parametrize("uuid", ["20261130", "night.2026", "agent.7"])
async def test_a_uuid_that_ends_as_a_name_does_is_found(uuid: str, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/store"
    async with opened(SCRIPT, store=url) as swarm:
        agent = await swarm.spawn("quick go", uuid=uuid)
        found = [swarm.agent(uuid), await swarm.find(uuid), await swarm.resume(uuid)]
        assert [each.id for each in found] == [agent.id] * 3
        await agent.wait()
        assert (await swarm.fork(uuid)).id == 2
    async with opened(SCRIPT, store=url) as swarm:
        assert (await swarm.find(uuid)).id == 1
        assert (await swarm.resume(uuid)).id == 1


async def test_two_that_fork_under_one_uuid_at_once_get_one_session() -> None:
    store = MemoryStore()
    async with opened(SCRIPT, store=store) as swarm:
        await (await swarm.spawn("quick go")).wait()
    said: list[str] = []
    async with opened(SCRIPT, store=store) as swarm:

        async def fork() -> None:
            try:
                said.append((await swarm.fork(1, uuid="mine")).uuid)
            except UsageError as error:
                said.append(str(error)[:24])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fork)
            nursery.start_soon(fork)
    assert sorted(said) == ["mine", "there is a session mine "]


async def test_two_that_begin_one_job_at_once_make_one_root() -> None:
    said: list[str] = []
    async with opened(SCRIPT) as swarm:

        async def run() -> None:
            try:
                async with swarm.map("quick {item}", ["a"], job="mine") as results:
                    said.extend([each.status async for each in results])
            except UsageError as error:
                said.append(str(error)[:28])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            nursery.start_soon(run)
        assert [view.uuid for view in swarm.agents() if not view.parent] == ["mine"]
    assert sorted(said) == ["completed", "the job mine is being mapped"]


async def test_a_uuid_of_a_fork_or_job_is_a_text_and_cleaned() -> None:
    async with opened(SCRIPT) as swarm:
        agent = await swarm.spawn("quick go")
        await agent.wait()
        wrong: Any = 5
        with pytest.raises(UsageError, match=r"^uuid is of the type int; give a text$"):
            await swarm.fork(agent.id, uuid=wrong)
        with pytest.raises(UsageError, match=r"^job is of the type int; give a text$"):
            await swarm.map("quick {item}", ["a"], job=wrong).__aenter__()
        assert (await swarm.fork(agent.id, uuid="\ud800")).uuid == "\ufffd"
        async with swarm.map("quick {item}", ["a"], job="job-\ud800") as results:
            assert results.agent.uuid == "job-\ufffd"


@pytest.mark.parametrize("uuid", ["a/b", "a b", "a\nb", "a\tb", "a\u2028b", "a\x1bb", "a\u200bb"])
async def test_an_id_that_would_break_a_line_or_look_like_a_place_in_a_tree_is_refused(uuid: str) -> None:
    said = r"cannot name a session; its id is a word of any letters, digits and signs but '/'"
    async with opened(SCRIPT) as swarm:
        with pytest.raises(UsageError, match=said):
            await swarm.spawn("quick go", uuid=uuid)
        with pytest.raises(UsageError, match=said):
            await swarm.map("quick {item}", ["a"], job=uuid).__aenter__()
        agent = await swarm.spawn("quick go", uuid="äbc.1-~")
        await agent.wait()
        with pytest.raises(UsageError, match=said):
            await swarm.fork(agent.id, uuid=uuid)
        assert [view.uuid for view in swarm.agents()] == ["äbc.1-~"]


async def test_a_name_has_no_slash_which_parts_it_from_its_session() -> None:
    async with opened(SCRIPT) as swarm:
        assert (await swarm.spawn("quick go", name="a b/c")).name == "a-b-c.1"
        assert (await swarm.spawn("quick go", name="/")).name == "agent.2"
        async with swarm.map("quick {item}", [], name="a b/c") as results:
            assert results.agent.name == "a-b-c.3"

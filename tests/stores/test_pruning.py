"""Old sessions are dropped whole, and nothing that stays notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

import nanotrio
from nanotrio.errors import StoreError, StoreOwnedError
from nanotrio.models import Conversation, ScriptedModel, reply_calls, reply_text
from nanotrio.stores import StoreCare, open_store, query, this_process
from tests.stores.kinds import KINDS, Place


def _script(conversation: Conversation) -> Any:
    if conversation.task.startswith("family") and conversation.steps == 0:
        return reply_calls(*[("spawn_agent", {"name": "w", "prompt": f"x {n}", "background": False}) for n in range(3)])
    return reply_text(f"{conversation.task} done, at step {conversation.steps}")


def _opened(url: str) -> Any:
    return nanotrio.open_swarm(store=url, model=ScriptedModel(_script), environment={})


async def _views(url: str) -> dict[int, Any]:
    return {view.id: view for view in await nanotrio.read_store(url)}


async def _write(url: str) -> int:
    """Write a family of 4, a single that is forked, a single that is old; then what is young; return the time."""
    async with _opened(url) as swarm:
        await (await swarm.spawn("family one", system="old prompt")).wait()  # 1 to 4
        source = await swarm.spawn("forked")  # 5
        await source.wait()
        await (await swarm.spawn("old")).wait()  # 6
    views = await _views(url)
    moment = max(view.updated_us for view in views.values()) + 1
    async with _opened(url) as swarm:
        await swarm.fork(5)  # 7
        await (await swarm.spawn("family two")).wait()  # 8 to 11
        await (await swarm.spawn("last")).wait()  # 12
    return moment


@pytest.mark.parametrize("kind", KINDS)
async def test_old_roots_go_whole_and_the_rest_stays_as_it_was(kind: str, place: Place) -> None:
    url, into = place(kind, "store"), place(kind, "pruned")
    moment = await _write(url)
    before = await _views(url)

    report = await StoreCare(url).prune(into, moment)

    assert (report.roots, report.agents, report.kept_roots, report.kept_agents) == (2, 5, 4, 7)
    after = await _views(into)
    assert set(after) == set(before) - {1, 2, 3, 4, 6}
    assert all(after[agent] == before[agent] for agent in after)
    assert await _views(url) == before
    for agent in after:
        assert await nanotrio.read_session(into, agent) == await nanotrio.read_session(url, agent)
    check = await StoreCare(into).check()
    assert check.problems == ()
    one, other = await open_store(url, read_only=True), await open_store(into, read_only=True)
    pairs = list(zip(await one.scan(0, limit=9999), await other.scan(0, limit=9999), strict=True))
    await one.aclose()
    await other.aclose()
    dropped = [new for old, new in pairs if old != new]
    assert len(dropped) == report.records
    assert {(record.agent, len(record.facts)) for record in dropped} == {(0, 1)}
    if kind.endswith("+rows"):
        assert (await query(into, "SELECT count(*) FROM agents")).rows == [(7,)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_pruned_store_is_taken_up_where_it_was(kind: str, place: Place) -> None:
    url, into = place(kind, "store"), place(kind, "pruned")
    moment = await _write(url)
    with trio.move_on_after(1):
        model = ScriptedModel(_script, latency_seconds=1_000)
        async with nanotrio.open_swarm(store=url, model=model, environment={}) as swarm:
            await swarm.spawn("family three")  # 13
            await trio.sleep_forever()

    report = await StoreCare(url).prune(into, moment + 3_600_000_000)

    assert (report.kept_roots, report.kept_agents) == (1, 1)
    async with _opened(into) as swarm:
        (root,) = await swarm.resume_all()
        assert (await root.wait()).status == "completed"
        assert [view.id for view in swarm.agents()] == [13, 14, 15, 16]
        assert (await swarm.spawn("new")).id == 17
    assert (await StoreCare(into).check()).is_whole
    assert not (await StoreCare(into).repair()).is_new


async def test_the_youngest_agent_stays_so_no_id_is_given_twice(tmp_path: Path) -> None:
    url, into = f"sqlite:{tmp_path}/store", f"sqlite:{tmp_path}/pruned"
    moment = await _write(url)
    report = await StoreCare(url).prune(into, moment + 3_600_000_000)
    assert (report.kept_roots, report.kept_agents) == (1, 1)
    async with _opened(into) as swarm:
        assert (await swarm.spawn("new")).id == 13


async def test_a_store_in_use_and_a_target_that_holds_something_are_refused(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/store"
    moment = await _write(url)
    with pytest.raises(StoreError, match="name a new store"):
        await StoreCare(url).prune(await _copied(url), moment)
    store = await open_store(url)
    await store.acquire(this_process())
    with pytest.raises(StoreOwnedError):
        await StoreCare(url).prune(f"{url}.pruned", moment)
    await store.aclose()
    assert not (tmp_path / "store.pruned").exists()


async def _copied(url: str) -> str:
    await StoreCare(url).copy(f"{url}.copy")
    return f"{url}.copy"

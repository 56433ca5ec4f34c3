"""Forks in a swarm: of agents that live, that are in the middle of a turn, that lie in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

import nanotrio
from nanotrio.errors import UnknownToolError, UsageError
from nanotrio.messages import Text
from nanotrio.models.scripted import Conversation
from nanotrio.stores import StoreCare, open_store
from tests.swarm.worlds import (
    DEAR,
    by_task,
    check_all_is_given_back,
    check_store_holds_the_live_state,
    late,
    opened,
    reply_calls,
    reply_text,
    sessions_in,
    taped_store,
)

KINDS = ["sqlite", "sqlite+rows", "jsonl"]


def _counting(conversation: Conversation) -> Any:
    told = [part.text for message in conversation.messages for part in message.parts if isinstance(part, Text)]
    return reply_text(f"I was told {len(told)} texts")


def _texts(agent: nanotrio.Agent) -> list[str]:
    agent._node.session.unpack()
    messages = agent._node.session.messages
    return ["".join(part.text for part in message.parts if isinstance(part, Text)) for message in messages]


async def test_a_fork_goes_on_by_itself_and_its_source_does_not_see_it(tmp_path: Path) -> None:
    async with opened(by_task(root=_counting), price=DEAR, store=f"sqlite:{tmp_path}/s.db") as swarm:
        agent = await swarm.spawn("root go", budget_usd=1)
        first = await agent.wait()
        fork = await agent.fork()
        assert (fork.name, fork.id) == ("agent.2", 2)
        assert fork.uuid != agent.uuid
        view = fork.view()
        assert (view.status, view.parent, view.root, view.depth, view.spent_nano) == ("idle", 0, 2, 0, 0)
        assert (view.task, view.model, view.tools) == ("root go", agent.view().model, agent.view().tools)
        assert (await fork.wait()).result == first.result

        await fork.send("and then?")
        outcome = await fork.wait()
        assert (outcome.turn, outcome.agent) == (2, 2)
        assert outcome.cost_nano > 0
        assert _texts(fork) == [*_texts(agent), "and then?", outcome.result]
        assert agent.view().spent_nano == first.cost_nano
        await check_store_holds_the_live_state(swarm)
        check_all_is_given_back(swarm)


async def test_an_open_turn_is_left_out_of_a_fork(autojump_clock: trio.testing.MockClock) -> None:
    script = by_task(root=[reply_text("one"), reply_calls(("list_agents", {})), late(60)])
    async with opened(script) as swarm:
        agent = await swarm.spawn("root go")
        await agent.wait()
        await agent.send("two")
        await trio.sleep(1)
        assert agent.view().status == "running"
        assert len(_texts(agent)) == 5
        fork = await agent.fork()
        assert _texts(fork) == ["root go", "one"]
        await check_store_holds_the_live_state(swarm)
        await agent.cancel()


async def test_an_agent_that_ended_no_turn_cannot_be_forked(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(by_task(root=[late(5)])) as swarm:
        agent = await swarm.spawn("root go")
        with pytest.raises(UsageError, match=r"agent\.1 has not ended a turn yet"):
            await agent.fork()
        await agent.wait()
        await agent.cancel()
        assert (await agent.fork()).view().status == "idle"


async def test_a_fork_of_a_fork_and_what_was_set_in_flight(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/s.db"
    async with opened(by_task(root=_counting), store=url) as swarm:
        agent = await swarm.spawn("root go")
        await agent.wait()
        await agent.set_budget(0.5)
        again = await (await agent.fork()).fork()
        assert again._node.limits.budget_nano == 500_000_000
        assert _texts(again) == _texts(agent)
        await check_store_holds_the_live_state(swarm)
    async with opened(by_task(root=_counting), store=url) as swarm:
        fork = await swarm.resume(again.uuid)
        assert fork._node.limits.budget_nano == 500_000_000
        await fork.send("more")
        assert (await fork.wait()).status == "completed"
        await check_store_holds_the_live_state(swarm)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_fork_of_what_was_killed_takes_up_the_fork_alone(kind: str, tmp_path: Path) -> None:
    url = f"{kind}:{tmp_path}/store"
    script = by_task(root=[reply_text("one"), late(60)])
    with trio.move_on_after(2):
        async with opened(script, store=url) as swarm:
            agent = await swarm.spawn("root go")
            await agent.wait()
            await agent.send("two")
            await trio.sleep_forever()
    async with opened(by_task(root=_counting), store=url) as swarm:
        fork = await swarm.fork(agent.uuid, uuid="my-own")
        assert fork.uuid == "my-own"
        assert [view.status for view in swarm.agents()] == ["interrupted", "idle"]
        await fork.send("go on")
        await fork.wait()
        assert _texts(fork)[:3] == ["root go", "one", "go on"]
        await check_store_holds_the_live_state(swarm)
    report = await StoreCare(url).check()
    assert report.problems == ()
    views = await nanotrio.read_store(url)
    assert [(view.name, view.status) for view in views] == [("agent.1", "interrupted"), ("agent.2", "idle")]
    session = await nanotrio.read_session(url, 2)
    assert (session.uuid, len(session.messages)) == ("my-own", 4)


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_of_the_source_is_copied(kind: str, tmp_path: Path) -> None:
    url = f"{kind}:{tmp_path}/store"
    text = "x" * 100_000
    async with opened(by_task(root=[reply_text(text)]), store=url) as swarm:
        agent = await swarm.spawn("root go")
        await agent.wait()
        before = swarm.statistics().durable_seq
        await agent.fork()
        assert swarm.statistics().durable_seq == before + 1
    store = await open_store(url, read_only=True)
    (record,) = await store.scan(before)
    sessions = await sessions_in(store)
    await store.aclose()
    assert len(record.facts) < 200
    assert sessions[2].messages == sessions[1].messages


async def test_heads_made_anew_and_copies_know_forks(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/s.db"
    async with opened(by_task(root=_counting), store=url) as swarm:
        agent = await swarm.spawn("root go")
        await agent.wait()
        fork = await agent.fork()
        await fork.send("more")
        await fork.wait()
    before = await nanotrio.read_store(url)
    assert not (await StoreCare(url).repair()).is_new
    assert await nanotrio.read_store(url) == before
    for kind in KINDS:
        other = f"{kind}:{tmp_path}/copy-{kind}"
        await StoreCare(url).copy(other)
        assert await nanotrio.read_store(other) == before
        assert (await StoreCare(other).check()).is_whole


async def test_a_child_becomes_a_root_that_may_not_do_more(tmp_path: Path) -> None:
    store = taped_store()
    script = by_task(
        root=[reply_calls(("spawn_agent", {"prompt": "child", "name": "kid", "background": False})), reply_text("ok")],
        child=[reply_text("done")],
    )
    limits = nanotrio.Limits(max_steps=7)
    async with opened(script, store=store, price=DEAR, permission_mode="plan", limits=limits) as swarm:
        root = await swarm.spawn("root go", budget_usd=0.5)
        await root.wait()
        await root.set_budget(0.25)
        live = await swarm.agent("kid.2").fork()
        assert live.budget().cap_usd == 0.25
        profile = live._node.profile
        assert (live.name, profile.permission_mode, profile.limits.max_steps) == ("kid.3", "plan", 7)
        assert live.view().depth == 0
    async with opened(script, price=DEAR, store=await store.as_of(len(store.batches))) as swarm:
        stored = await swarm.fork("kid.2")
        assert stored.name == "kid.4"
        assert stored._node.profile == profile
        assert stored._node.limits == live._node.limits
        await check_store_holds_the_live_state(swarm)


async def test_a_fork_whose_tool_is_missing_is_refused_and_leaves_nothing() -> None:
    @nanotrio.tool
    def own_tool() -> str:
        """Do a thing."""
        return "x"

    store = taped_store()
    async with opened(by_task(root=_counting), store=store, tools=[own_tool]) as swarm:
        await (await swarm.spawn("root go")).wait()
    async with opened(by_task(root=_counting), store=await store.as_of(len(store.batches))) as swarm:
        before = swarm.statistics().durable_seq
        with pytest.raises(UnknownToolError, match="own_tool"):
            await swarm.fork(1)
        assert (await swarm.spawn("root go")).id == 2
        assert swarm.statistics().resident == 1
        assert swarm.statistics().durable_seq > before

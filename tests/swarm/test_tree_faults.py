"""More of how trees break for their users: waves, runaways, restarts in the middle, depth and width."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

import pytest
import trio

import nanotrio
from nanotrio.errors import ModelError, UnknownAgentError
from nanotrio.fact_form import decode_facts
from nanotrio.limits import HARD_MAX_DEPTH, Limits, nano_usd
from nanotrio.messages import Usage, text_of
from nanotrio.models.scripted import Conversation, Late
from nanotrio.records import ChildEnded, Spawned
from nanotrio.swarm.events import TurnFinished
from nanotrio.swarm.recovery import read_heads
from nanotrio.testing import UnreliableStore
from tests import counts
from tests.swarm.worlds import (
    DEAR,
    by_task,
    check_all_is_given_back,
    check_store_holds_the_live_state,
    late,
    messages_of,
    opened,
    reply_calls,
    reply_text,
    taped_store,
)


@nanotrio.tool(effect=False)
async def again() -> str:
    """Do something small."""
    return "more"


async def test_waves_of_a_model_that_closes_nobody_keep_to_the_slots_and_are_refused_by_name(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Sixty children in waves of twenty below six slots; then more than it may have, and one there is not."""
    most = 0
    heard: list[str] = []

    def root(c: Conversation) -> Any:
        heard.extend(result.content for result in c.results)
        if c.steps < 6:
            wave = [{"prompt": f"child {n}"} for n in range(20)]
            return (
                reply_calls(("spawn_agents", {"agents": wave}))
                if c.steps % 2 == 0
                else reply_calls(("wait_agents", {}))
            )
        if c.steps == 6:
            return reply_calls(("spawn_agent", {"prompt": "child 9"}), ("cancel_agent", {"id": "agent.999"}))
        return reply_text("end")

    def child(c: Conversation) -> Any:
        nonlocal most
        most = max(most, swarm._runtime.slots.active)
        return late(0.1 + int(c.task.split()[1]) / 100)

    async with opened(by_task(root=root, child=child), max_active=6, limits=Limits(max_children=60)) as swarm:
        outcome = await (await swarm.spawn("root go")).wait()
        check_all_is_given_back(swarm)
        for _ in range(2):
            await swarm.agent(7).close()
        with pytest.raises(UnknownAgentError, match=r"no agent 999"):
            swarm.agent(999)
    assert outcome.status == "completed"
    assert most == 6
    assert heard[-2] == ("max_children of agent.1 is 60, and it has 60, 0 of them unfinished; let those it has do more")
    assert heard[-1].startswith("no agent 'agent.999' in this tree")


ENDS: dict[str, tuple[Any, str, str]] = {
    "limited": (ModelError("429 slow down", kind="rate_limited", status=429), "failed", "429 slow down (6 attempts)"),
    "poor": (reply_calls(("again", {}), usage=Usage(output=10_000)), "budget_exceeded", "the budget of kid.2"),
    "busy": (reply_calls(("again", {}), text="found 9"), "failed", "max_steps of kid.2 reached (12 model calls"),
    "cut": (late(1_000), "cancelled", "cancelled by agent.1"),
}


@pytest.mark.parametrize("how", ENDS)
async def test_a_parent_hears_how_its_child_ended_why_and_what_it_said_last(
    autojump_clock: trio.testing.MockClock, how: str
) -> None:
    """The child makes five calls first; none of the ends is ``completed`` with nothing."""
    last, status, reason = ENDS[how]
    heard: list[str] = []

    def kid(c: Conversation) -> Any:
        return reply_calls(("again", {}), text=f"found {c.steps}") if c.steps < 5 else last

    def root(c: Conversation) -> Any:
        heard.append(c.results[0].content if c.results else c.last_text)
        if c.steps == 0:
            budget = {"budget_usd": 0.05} if how == "poor" else {}
            return reply_calls(("spawn_agent", {"prompt": "kid go", "name": "kid", **budget}))
        if c.steps == 1 and how == "cut":
            return Late(reply_calls(("cancel_agent", {"id": "kid.2"})), 5)
        return reply_text("end")

    script = by_task(root=root, kid=kid)
    async with opened(script, tools=[again], price=DEAR, limits=Limits(max_steps=12, max_output_tokens=2_000)) as swarm:
        agent = await swarm.spawn("root go")
        await agent.wait()
        outcome = await swarm.agent("kid.2").wait()
        check_all_is_given_back(swarm)
        text = "\n".join(text_of(m) for m in messages_of(agent._node) if m.role == "user")
        assert (outcome.status, outcome.result, outcome.agent) == (status, None, 2)
        assert outcome.reason.startswith(reason)
        assert outcome.last_text.startswith("found")
        assert outcome.usage.output > 0
        if how == "cut":
            assert "kid.2 is ended; its last text: found 4" in heard
        else:
            assert f"[kid.2 {status}: {outcome.reason}; its last text: {outcome.last_text}]" in text
        resumed = await swarm.resume(outcome.agent)
        assert resumed.id == 2


def runaway(c: Conversation) -> Any:
    if c.last_text and any(tool.name == "spawn_agents" for tool in c.tools) and not c.results:
        return reply_calls(("spawn_agents", {"agents": [{"prompt": "do everything"}] * 3}))
    return late(0.5, "; ".join(result.content for result in c.results)[:500] or "done")


def check_caps(swarm: nanotrio.Swarm, depth: int, total: int) -> None:
    for view in swarm.agents():
        assert view.depth <= depth
    for root in {view.root or view.id for view in swarm.agents()}:
        assert sum(view.root == root and view.id != root for view in swarm.agents()) <= total


async def test_a_runaway_that_is_killed_and_resumed_is_held_by_the_same_caps(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = taped_store()
    limits = Limits(max_depth=4, max_total=60, max_turns=4)
    async with opened(runaway, store=store, limits=limits) as swarm:
        outcome = await (await swarm.spawn("do everything")).wait()
        assert outcome.status in {"completed", "failed"}
        check_caps(swarm, 4, 60)
        ends = [await swarm.agent(view.id).wait() for view in swarm.agents()]
        assert any("max_total" in end.last_text for end in ends)
    for cut in range(1, len(store.batches), max(1, len(store.batches) // 8)):
        async with opened(runaway, store=await store.as_of(cut), limits=limits) as swarm:
            for each in await swarm.resume_all():
                await each.wait()
            check_caps(swarm, 4, 60)
            check_all_is_given_back(swarm)


async def test_a_fork_of_a_runaway_has_the_levels_that_its_source_had_left(
    autojump_clock: trio.testing.MockClock,
) -> None:
    limits = Limits(max_depth=3, max_total=40, max_turns=4)
    store = taped_store()
    async with opened(runaway, limits=limits, store=store) as swarm:
        await (await swarm.spawn("do everything")).wait()
        last = next(view for view in swarm.agents() if view.depth == 3)
        middle = next(view for view in swarm.agents() if view.depth == 2)
        for source, levels in ((last, 0), (middle, 1)):
            fork = await swarm.agent(source.id).fork()
            await fork.send("do everything")
            await fork.wait()
            below = [view for view in swarm.agents() if view.root == fork.id and view.id != fork.id]
            assert max([view.depth for view in below], default=0) == levels
            assert len(below) <= 40
        check_all_is_given_back(swarm)
    async with opened(runaway, limits=limits, store=await store.as_of(len(store.batches))) as swarm:
        fork = await swarm.fork(last.id)
        assert not fork._node.may_spawn


async def test_six_hundred_children_killed_at_310_done_and_again_are_each_told_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked: Counter[str] = Counter()

    def child(c: Conversation) -> Any:
        asked[c.task] += 1
        return late(1.0 + int(c.task.split()[1]) / 1_000, "done")

    def root(c: Conversation) -> Any:
        if c.steps == 0:
            return reply_calls(
                ("spawn_agents", {"agents": [{"prompt": f"child {n}", "name": "kid"} for n in range(600)]})
            )
        return reply_calls(("wait_agents", {})) if c.steps == 1 else reply_text("all are done")

    store = taped_store()
    script = by_task(root=root, child=child)
    for done in (310, 450):
        left = done - sum(ended_of(store).values())
        with trio.CancelScope() as scope:
            async with opened(script, store=store) as swarm, swarm.events() as events:
                if done == 310:
                    await swarm.spawn("root go")
                else:
                    await swarm.resume_all()
                async for event in events:
                    left -= isinstance(event, TurnFinished)
                    if not left:
                        scope.cancel()
        store = await store.as_of(len(store.batches))
        before = ended_of(store)
        assert 0 <= sum(before.values()) - done < 20
    first, asked = asked, Counter()
    async with opened(script, store=store) as swarm:
        assert {view.status for view in swarm.agents()} == {"interrupted"}
        (agent,) = await swarm.resume_all()
        outcome = await agent.wait()
        assert outcome.result == "all are done"
        assert [view.name for view in swarm.agents()] == ["agent.1", *[f"kid.{n}" for n in range(2, 602)]]
        assert {view.outcome for view in swarm.agents()} == {"completed"}
        assert {view.status for view in swarm.agents()} == {"idle"}
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)
        results = [part.content for m in messages_of(agent._node) for part in m.parts if hasattr(part, "call_id")]
        assert results[-1].count(" completed: done") == 600, "each is told once"
    assert set(ended_of(store).values()) == {1}
    assert len(ended_of(store)) == 600
    assert sum(asked.values()) == 600 - sum(before.values()), "who had finished stays finished"
    assert set(first) == {f"child {n}" for n in range(600)}


def ended_of(store: UnreliableStore) -> Counter[int]:
    """Return how often each child's end is on its parent's chain; and see that nobody was made twice."""
    ended: Counter[int] = Counter()
    spawned: Counter[int] = Counter()
    for batch in store.batches:
        for record in batch.records:
            for fact in decode_facts(record.facts):
                if isinstance(fact, ChildEnded):
                    ended[fact.child] += 1
                elif isinstance(fact, Spawned):
                    spawned[record.agent] += 1
    assert set(spawned.values()) <= {1}
    return ended


async def test_a_restart_at_nine_tenths_of_a_cap_refills_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """0.10 of 1.00 is left at the restart, and fifty children whose call may cost 0.05 wake up."""
    store = taped_store()
    dear = Usage(output=900_000)
    limits = Limits(max_output_tokens=45_000, min_output_tokens=45_000)
    script = by_task(root=[reply_text("ok", usage=dear)], child=[late(1, "x" * 4 * 44_000)])
    with trio.CancelScope() as scope:
        async with opened(script, store=store, price=DEAR, limits=limits) as swarm:
            agent = await swarm.spawn("root go", budget_usd=1.0)
            await agent.wait()
            swarm._runtime.slots._max_active = 0
            await agent.spawn_many([f"child {n}" for n in range(50)])
            scope.cancel()
            await trio.lowlevel.checkpoint()
    async with opened(script, store=store, price=DEAR, limits=limits) as swarm:
        (agent,) = await swarm.resume_all()
        assert agent.budget().settled_nano == nano_usd(0.9) + agent._node.session.usage.input * 1_000
        await agent.wait()
        ends = [await swarm.agent(view.id).wait() for view in swarm.agents() if view.parent]
        assert Counter(end.status for end in ends) == {"completed": 2, "budget_exceeded": 48}
        assert agent.budget().settled_nano <= nano_usd(1.0)
        check_all_is_given_back(swarm)


async def test_a_chain_of_four_hundred_generations_is_refused_long_before_trio_would_fail() -> None:
    said: list[str] = []

    def deeper(c: Conversation) -> Any:
        if c.results:
            said.append(c.results[0].content)
            return reply_text(c.results[0].content)
        return reply_calls(("spawn_agent", {"prompt": "deeper", "background": False}))

    async with opened(deeper, limits=Limits(max_depth=400)) as swarm:
        outcome = await (await swarm.spawn("deeper")).wait()
        assert outcome.status == "completed"
        assert max(view.depth for view in swarm.agents()) == HARD_MAX_DEPTH
        assert len(swarm.agents()) == HARD_MAX_DEPTH + 1
        check_all_is_given_back(swarm)
    assert f"max_depth is reached: agent.{HARD_MAX_DEPTH + 1} is at depth {HARD_MAX_DEPTH}" in said[0]


async def heartbeat(stalls: list[float]) -> None:
    """Note how long the loop stood still, as far as it was this process's own doing."""
    while True:
        wall, own = time.perf_counter(), time.process_time()
        await trio.sleep(0.001)
        stalls.append(min(time.perf_counter() - wall, time.process_time() - own))


@pytest.mark.deadline(600)
async def test_many_siblings_cancelled_at_once_leave_the_loop_alive(capsys: pytest.CaptureFixture[str]) -> None:
    """Some work, the others are pending; one more agent is written to meanwhile."""
    stalls: list[float] = []
    script = by_task(root=[reply_text("ok")], child=[late(3_600)], other=[reply_text("here")])
    limits = Limits(max_live=200_000, max_children=200_000)
    async with opened(script, max_active=5_000, limits=limits) as swarm:
        other = await swarm.spawn("other go")
        agent = await swarm.spawn("root go")
        await agent.wait()
        for _ in range(counts.SIBLINGS // 1_000):
            await agent.spawn_many(["child go"] * 1_000)
            await trio.lowlevel.checkpoint()
        assert swarm.statistics().resident < 8_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(heartbeat, stalls)
            await trio.sleep(0.01)
            nursery.start_soon(agent.cancel)
            await other.send("are you there")
            assert (await other.wait()).turn == 2
            await agent.cancel()
            nursery.cancel_scope.cancel()
        await swarm.flush()
        heads = await read_heads(swarm._runtime.store, {})
        ends = Counter((head.outcome, head.status) for head in heads if head.parent)
        assert ends == {("cancelled", "closed"): counts.SIBLINGS}
        check_all_is_given_back(swarm)
    with capsys.disabled():
        sys.stderr.write(f"\n{counts.SIBLINGS} siblings cancelled: worst stall {max(stalls) * 1000:.0f} ms\n")
    if counts.SOAK:
        assert max(stalls) < 0.1

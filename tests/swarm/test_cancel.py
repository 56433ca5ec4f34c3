"""Cancelling, closing, interrupting and resuming within one process."""

from __future__ import annotations

import logging
import math
import signal
import sys
from typing import Any

import pytest
import trio

import nanotrio
from nanotrio.errors import ClosedError, UnknownAgentError
from nanotrio.limits import Limits
from nanotrio.models.scripted import Conversation
from nanotrio.swarm import events
from tests.swarm.worlds import (
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

SPAWN_TWO = reply_calls(("spawn_agent", {"prompt": "child a"}), ("spawn_agent", {"prompt": "child b"}))


@nanotrio.tool
async def stubborn(seconds: float) -> str:
    """Stay, whatever happens."""
    with trio.CancelScope(shield=True):
        await trio.sleep(seconds)
    return "stayed"


async def test_a_cancelled_child_is_a_value_and_its_sibling_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    heard: list[str] = []

    def root(c: Conversation) -> Any:
        heard.append(c.last_text)
        return SPAWN_TWO if c.steps == 0 else reply_text("ok")

    async with opened(by_task(root=root, child=lambda c: late(10, c.task))) as swarm:
        agent = await swarm.spawn("root go")
        await trio.sleep(5)
        outcome = await swarm.agent(2).cancel()
        assert (outcome.status, outcome.reason) == ("cancelled", "cancelled by its user")
        assert await swarm.agent(2).cancel() == outcome
        assert await swarm.agent(2).wait() == outcome
        assert (await swarm.agent(3).wait()).result == "child b"
        assert (await agent.wait()).status == "completed"
        assert "[agent.2 cancelled: cancelled by its user]" in heard
        with pytest.raises(ClosedError, match="takes no mail"):
            await swarm.agent(2).send("x")
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


async def test_a_whole_subtree_is_cancelled_in_every_state(autojump_clock: trio.testing.MockClock) -> None:
    def node(c: Conversation) -> Any:
        depth = len(c.task.split())
        if c.steps == 0 and depth < 4:
            return reply_calls(("spawn_agents", {"agents": [{"prompt": f"{c.task} x"} for _ in range(4)]}))
        return reply_text("end") if depth == 2 else late(1_000)

    async with opened(node, max_active=30) as swarm:
        agent = await swarm.spawn("go")
        await trio.sleep(5)
        statuses = {view.status for view in swarm.agents()}
        assert statuses == {"running", "settling", "pending"}
        start = trio.current_time()
        await agent.cancel()
        assert trio.current_time() - start < 1
        assert {(view.status, view.outcome) for view in swarm.agents() if view.depth != 1} == {("closed", "cancelled")}
        assert {(view.status, view.outcome) for view in swarm.agents() if view.depth == 1} == {("closed", "completed")}
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


async def test_two_who_cancel_at_once_both_return_when_it_is_gone(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(by_task(root=[SPAWN_TWO, late(99)], child=[late(99)])) as swarm:
        agent = await swarm.spawn("root go")
        await trio.sleep(1)
        outcomes = []

        async def cancel(who: nanotrio.Agent) -> None:
            outcomes.append(await who.cancel())

        async with trio.open_nursery() as nursery:
            for who in (agent, swarm.agent(2), agent, swarm.agent(3)):
                nursery.start_soon(cancel, who)
        assert {outcome.status for outcome in outcomes} == {"cancelled"}
        check_all_is_given_back(swarm)


async def test_a_tool_that_shields_itself_is_left_behind_and_named(autojump_clock: trio.testing.MockClock) -> None:
    script = by_task(
        root=[reply_calls(("spawn_agent", {"prompt": "child a"})), late(9, "root done")],
        child=[reply_calls(("stubborn", {"seconds": 60}))],
    )
    async with opened(script, tools=[stubborn], limits=Limits(max_reap_seconds=2)) as swarm:
        agent = await swarm.spawn("root go")
        await trio.sleep(1)
        start = trio.current_time()
        outcome = await swarm.agent(2).cancel()
        assert trio.current_time() - start == pytest.approx(2)
        assert outcome.status == "cancelled"
        assert outcome.survivors == ("agent.2 (its task does not end)",)
        await swarm.agent(2).close()
        await swarm.agent(2).close()
        assert (await agent.wait()).status == "completed"
        assert trio.current_time() - start < 20, "nobody waits for the task that does not end"
        assert swarm._runtime.slots.active == 1, "it holds its slot as long as it works"
        await trio.sleep(60)
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


async def test_who_leaves_is_told_what_does_not_let_them_and_not_too_often(
    autojump_clock: trio.testing.MockClock,
) -> None:
    told: list[tuple[float, str]] = []

    class Tells(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append((trio.current_time() - start, record.getMessage()))

    script = by_task(
        root=[reply_calls(("spawn_agent", {"prompt": "child a"}), ("spawn_agent", {"prompt": "polite b"})), late(99)],
        child=[reply_calls(("stubborn", {"seconds": 100}))],
        polite=[late(99)],
    )
    start = 0.0
    logger, handler = logging.getLogger("nanotrio"), Tells()
    logger.addHandler(handler)
    try:
        with pytest.raises(KeyError):
            async with opened(script, tools=[stubborn], limits=Limits(max_reap_seconds=5)) as swarm:
                await swarm.spawn("root go")
                await trio.sleep(1)
                start = trio.current_time()
                raise KeyError
    finally:
        logger.removeHandler(handler)
    line = "leaving waits for what does not end though cancelled: agent.2 (stubborn)"
    assert [(round(at), text) for at, text in told] == [(5, line), (35, line), (65, line), (95, line)]


async def test_who_leaves_without_an_error_is_told_too_and_others_hear_nothing(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    script = by_task(
        root=[reply_calls(("spawn_agent", {"prompt": "child a"})), reply_text("done")],
        child=[reply_calls(("stubborn", {"seconds": 60}))],
    )
    async with opened(script, tools=[stubborn], limits=Limits(max_reap_seconds=5)) as swarm:
        await swarm.spawn("root go")
        await trio.sleep(1)
        await swarm.agent(2).cancel()
    assert caplog.messages == ["leaving waits for what does not end though cancelled: agent.2 (its task)"] * 2
    caplog.clear()
    async with opened(by_task(root=[late(9)])) as swarm:
        await swarm.spawn("root go")
    assert not caplog.messages


@pytest.mark.parametrize("max_idle", [0, 1_000])
async def test_closing_closes_all_below_in_memory_or_not(autojump_clock: trio.testing.MockClock, max_idle: int) -> None:
    script = by_task(root=[reply_text("ok")], child=[reply_text("done")])
    async with opened(script, limits=Limits(max_idle=max_idle)) as swarm:
        agent = await swarm.spawn("root go")
        child = await agent.spawn("child")
        leaf = await child.spawn("child")
        await agent.wait()
        await swarm.flush()
        await trio.sleep(1)
        assert swarm.statistics().resident == (3 if max_idle else 0)
        await agent.close()
        for each in (agent, child, leaf):
            assert each.view().status == "closed"
            with pytest.raises(ClosedError, match="takes no mail"):
                await each.send("x")
        await swarm.resume(child.id)
        await child.send("go on")
        assert (await child.wait()).result == "done"
        assert [each.view().status for each in (agent, child, leaf)] == ["idle", "idle", "closed"]
        await agent.wait()
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


@pytest.mark.parametrize("max_idle", [0, 1_000])
@pytest.mark.parametrize("way", ["close", "cancel"])
async def test_who_was_closed_with_a_parent_stays_so_as_a_sibling_is_resumed_also_by_the_next_process(
    autojump_clock: trio.testing.MockClock, way: str, max_idle: int
) -> None:
    store = taped_store()
    options = {"store": store, "limits": Limits(max_idle=max_idle)}
    script = by_task(root=[reply_text("ok")], child=[reply_text("done")])
    async with opened(script, **options) as swarm:
        boss = await swarm.spawn("root go")
        mid = await boss.spawn("child")
        one, two = await mid.spawn_many(["child", "child"])
        for each in (boss, mid, one, two):
            await each.wait()
        await swarm.flush()
        await trio.sleep(1)
        await getattr(boss, way)()
        await swarm.resume(one.id)
        third = await (await swarm.find(mid.id)).spawn("child")
        assert (await third.wait()).result == "done"
        with pytest.raises(ClosedError, match="takes no mail"):
            await two.send("x")
        await swarm.resume(two.id)
        await two.send("go on")
        await two.wait()
        await (await swarm.find(mid.id)).close()
    async with opened(script, store=await store.as_of(len(store.batches))) as swarm:
        await swarm.resume(one.id)
        for closed in (two, third):
            with pytest.raises(ClosedError, match="takes no mail"):
                await (await swarm.find(closed.id)).send("x")
        await check_store_holds_the_live_state(swarm)


async def test_closing_is_idempotent_and_returns_mail(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(by_task(root=[reply_text("ok")])) as swarm:
        agent = await swarm.spawn("root go")
        await agent.wait()
        for _ in range(2):
            await agent.close()
            assert agent.view().status == "closed"
            assert (await agent.wait()).status == "completed"
        running = await swarm.spawn("root go")
        await running.close()
        assert (await running.wait()).status == "cancelled"
        with pytest.raises(UnknownAgentError):
            swarm.agent(77)
        check_all_is_given_back(swarm)


async def test_an_interrupt_ends_the_turn_and_leaves_the_agent_open(autojump_clock: trio.testing.MockClock) -> None:
    heard: list[str] = []

    def root(c: Conversation) -> Any:
        heard.append(c.last_text)
        return SPAWN_TWO if c.steps == 0 else late(50, "said")

    async with opened(by_task(root=root, child=[late(999)])) as swarm:
        agent = await swarm.spawn("root go")
        await trio.sleep(5)
        await agent.interrupt()
        outcome = await agent.wait()
        assert (outcome.status, outcome.reason) == ("cancelled", "interrupted by its user")
        assert heard == ["root go", ""], "no turn begins on the news of what the interrupt ended"
        await agent.interrupt()
        await agent.send("again")
        assert (await agent.wait()).result == "said"
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


async def test_an_interrupt_while_only_children_run_begins_no_turn(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(by_task(root=[SPAWN_TWO, reply_text("waiting")], child=[late(999)])) as swarm:
        agent = await swarm.spawn("root go")
        await trio.sleep(5)
        assert agent.view().status == "settling"
        await agent.interrupt()
        outcome = await agent.wait()
        assert (outcome.status, outcome.turn) == ("completed", 1)
        check_all_is_given_back(swarm)


async def test_a_cancelled_agent_goes_on_when_it_is_resumed(autojump_clock: trio.testing.MockClock) -> None:
    def root(c: Conversation) -> Any:
        return SPAWN_TWO if c.steps == 0 else late(5, f"heard {c.last_text}")

    async with opened(by_task(root=root, child=lambda c: late(20, c.last_text))) as swarm:
        agent = await swarm.spawn("root go")
        await trio.sleep(1)
        await agent.cancel()
        child = await swarm.resume("agent.2")
        assert {view.name: view.status for view in swarm.agents()} == {
            "agent.1": "idle",
            "agent.2": "idle",
            "agent.3": "closed",
        }
        await child.send("go on")
        assert (await child.wait()).result == "go on"
        assert (await agent.wait()).result == "heard [agent.2 completed: go on]"
        assert (await child.spawn("child again")) is not None
        await agent.wait()
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


async def test_an_agents_own_cancel_of_its_child_is_no_news_to_it(autojump_clock: trio.testing.MockClock) -> None:
    def root(c: Conversation) -> Any:
        match c.steps:
            case 0:
                return SPAWN_TWO
            case 1:
                return reply_calls(("send_message", {"to": "agent.2", "text": "unread"}))
            case 2:
                return reply_calls(("cancel_agent", {"id": "agent.2"}), ("cancel_agent", {"id": "agent.3"}))
            case 3:
                assert [result.content for result in c.results] == ["agent.2 is ended", "agent.3 is ended"]
        return reply_text("end")

    async with opened(by_task(root=root, child=[late(999)])) as swarm:
        outcome = await (await swarm.spawn("root go")).wait()
        assert (outcome.turn, outcome.steps) == (1, 4)
        check_all_is_given_back(swarm)


@pytest.mark.parametrize("seconds", [1e300, sys.float_info.max, math.inf])
async def test_a_bound_of_a_turn_that_no_process_outlives_is_none(seconds: float) -> None:
    async with opened(by_task(root=[reply_text("done")])) as swarm:
        assert (await (await swarm.spawn("root go", timeout_seconds=seconds)).wait()).result == "done"


@pytest.mark.parametrize("how", ["turn_seconds", "tool_seconds", "max_steps"])
async def test_a_bound_in_time_or_steps_ends_the_turn_with_a_reason(
    autojump_clock: trio.testing.MockClock, how: str
) -> None:
    @nanotrio.tool
    async def slow() -> str:
        """Wait."""
        await trio.sleep(50)
        return "slept"

    limits = {
        "turn_seconds": Limits(turn_seconds=7),
        "tool_seconds": Limits(tool_seconds=3),
        "max_steps": Limits(max_steps=3),
    }[how]

    def root(c: Conversation) -> Any:
        if how == "tool_seconds" and c.steps:
            return reply_text(c.results[0].content)
        return reply_calls(("slow", {}))

    async with opened(by_task(root=root), tools=[slow], limits=limits) as swarm:
        start = trio.current_time()
        outcome = await (await swarm.spawn("root go")).wait()
        took = trio.current_time() - start
    match how:
        case "turn_seconds":
            assert (outcome.status, took) == ("deadline_exceeded", pytest.approx(7))
            assert outcome.reason == "turn_seconds of agent.1 reached (7 s)"
        case "tool_seconds":
            assert (outcome.status, took) == ("completed", pytest.approx(3))
            assert "tool_seconds of agent.1 reached (3 s)" in outcome.result
        case _:
            assert outcome.status == "failed"
            assert "max_steps of agent.1" in outcome.reason


async def test_a_deadline_ends_the_children_too_and_no_turn_follows(autojump_clock: trio.testing.MockClock) -> None:
    script = by_task(root=[SPAWN_TWO, reply_calls(("wait_agents", {}))], child=[late(999)])
    async with opened(script, latency_seconds=1) as swarm:
        agent = await swarm.spawn("root go", timeout_seconds=10)
        outcome = await agent.wait()
        assert (outcome.status, outcome.turn) == ("deadline_exceeded", 1)
        assert outcome.survivors == ("agent.2", "agent.3")
        assert {view.outcome for view in swarm.agents() if view.parent} == {"cancelled"}
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


async def test_slots_do_not_leak_over_waves_that_are_cancelled_at_any_moment(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def child(c: Conversation) -> Any:
        number = int(c.task.split()[1])
        if c.steps == 0 and number % 5 == 0:
            return reply_calls(("stubborn", {"seconds": 0.002}))
        return late(number % 7 / 1_000)

    async with opened(by_task(root=[reply_text("ok")], child=child), tools=[stubborn], max_active=6) as swarm:
        agent = await swarm.spawn("root go")
        for wave in range(6):
            children = await agent.spawn_many([f"child {number}" for number in range(60)])
            async with trio.open_nursery() as nursery:
                for number, each in enumerate(children[::2]):
                    await trio.sleep((number + wave) % 4 / 1_000)
                    nursery.start_soon(each.cancel)
            for each in children:
                assert (await each.wait()).status in {"completed", "cancelled"}
        await agent.wait()
        check_all_is_given_back(swarm)
        assert (await (await agent.spawn("child 1")).wait()).status == "completed"


async def test_events_tell_a_run_in_order_and_a_turns_end_once(autojump_clock: trio.testing.MockClock) -> None:
    script = by_task(root=[SPAWN_TWO, reply_text("waiting"), reply_text("end")], child=[late(3)])
    async with opened(script) as swarm, swarm.events() as stream:
        agent = await swarm.spawn("root go")
        await agent.wait()
        await agent.cancel()
        seen = []
        while True:
            try:
                seen.append(stream.receive_nowait())
            except trio.WouldBlock:
                break
    mine = [type(event).__name__ for event in seen if event.agent == 2]
    assert mine == ["AgentSpawned", "TurnBegan", "TextDelta", "MessageReplied", "TurnFinished"]
    assert [event.outcome.turn for event in seen if isinstance(event, events.TurnFinished) and event.agent == 1] == [2]


async def test_a_watcher_of_an_agent_sees_its_descendants_and_no_others(autojump_clock: trio.testing.MockClock) -> None:
    script = by_task(root=[reply_calls(("spawn_agent", {"prompt": "child x"})), reply_text("end")], child=[late(3)])
    async with opened(script) as swarm:
        other = await swarm.spawn("root other")
        agent = await swarm.spawn("root go")
        async with agent.events() as stream:
            await agent.wait()
            await other.wait()
            seen = set()
            while stream.statistics().current_buffer_used:
                seen.add(stream.receive_nowait().agent)
        assert agent.id in seen
        assert len(seen) == 2
        assert other.id not in seen
        assert swarm._runtime.watchers.count == 0


@pytest.mark.parametrize("error", [None, ValueError("the program's own")])
@pytest.mark.parametrize("presses", [1, 2, 5])
def test_ctrl_c_while_a_swarm_ends_neither_hangs_nor_leaves_an_agent(presses: int, error: ValueError | None) -> None:
    store = taped_store()
    ends: list[str] = []

    @nanotrio.tool
    async def lasting() -> str:
        """Stay for a while, whatever happens."""
        with trio.CancelScope(shield=True):
            await trio.sleep(10)
        ends.append("lasting")
        return "stayed"

    async def press() -> None:
        for _ in range(presses):
            await trio.sleep(1)
            signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        async with opened([reply_calls(("lasting", {}))], store=store, tools=[lasting]) as swarm:
            agent = await swarm.spawn("go")
            await trio.sleep(0.5)
            trio.lowlevel.spawn_system_task(press)
            if error is not None:
                raise error
            await agent.wait()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert ends == ["lasting"]
    (session,) = trio.run(sessions_in, store).values()
    assert session.status == "running"
    assert session.turn is not None

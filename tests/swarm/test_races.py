"""What two do to one agent at once, and tools and models that misbehave: nobody else is harmed, and nothing leaks."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

import nanotrio
from nanotrio.errors import ModelError, UsageError
from nanotrio.limits import Limits
from nanotrio.messages import Thinking, Usage
from nanotrio.models import Reply
from nanotrio.models.scripted import Conversation
from nanotrio.session import Session
from nanotrio.swarm.pump import Pump
from nanotrio.swarm.slots import Slots
from nanotrio.tools import ToolContext
from tests.swarm.worlds import (
    by_task,
    check_all_is_given_back,
    check_store_holds_the_live_state,
    late,
    opened,
    reply_calls,
    reply_text,
)

LONE = "\ud800"


async def test_the_end_of_a_pending_child_wakes_a_parent_without_a_task(autojump_clock: trio.testing.MockClock) -> None:
    heard: list[str] = []

    def root(c: Conversation) -> Any:
        heard.append(c.last_text)
        return reply_text("ok")

    with trio.fail_after(100):
        async with opened(by_task(root=root, busy=[late(5)], child=[late(1)]), max_active=1) as swarm:
            parent = await swarm.spawn("root go")
            await parent.wait()
            await swarm.spawn("busy")
            await trio.sleep(1)
            child = await parent.spawn("child", name="child")
            assert child.view().status == "pending"
            await child.cancel()
            assert (await parent.wait()).turn == 2
    assert heard == ["root go", f"[{child.name} cancelled: cancelled by its user]"]
    check_all_is_given_back(swarm)


async def test_an_agent_that_stands_in_the_queue_twice_takes_one_slot() -> None:
    slots = Slots(2, Pump(), lambda _: None, lambda: True)
    first, second, twice = nodes = [
        cast(
            Any,
            SimpleNamespace(
                is_queued=False, has_slot=False, unfinished_children=0, parent=None, session=Session(number)
            ),
        )
        for number in range(3)
    ]
    for node in nodes:
        slots.enqueue(node)
    twice.is_queued = False  # ended while it was pending
    slots.enqueue(twice)  # and resumed
    slots.release(first)
    slots.release(second)
    assert (slots.active, slots.pending) == (1, 0)


async def test_two_who_interrupt_at_once_both_return(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(by_task(root=[late(50)])) as swarm:
        agent = await swarm.spawn("root go")
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.interrupt)
            nursery.start_soon(agent.interrupt)
        assert agent.view().outcome == "cancelled"


async def test_a_resume_waits_for_the_cancel_and_no_effect_runs_twice(autojump_clock: trio.testing.MockClock) -> None:
    runs: Counter[str] = Counter()

    @nanotrio.tool
    async def effect(context: ToolContext) -> str:
        """Have an effect."""
        runs[context.call_id] += 1
        try:
            await trio.sleep(30)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)  # it takes a while to end
        return "done"

    async with opened(by_task(root=[reply_calls(("effect", {})), reply_text("ok")]), tools=[effect]) as swarm:
        agent = await swarm.spawn("root go")
        await trio.sleep(1)
        outcomes = []

        async def cancel() -> None:
            outcomes.append(await agent.cancel())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel)
            await trio.sleep(0.5)
            await swarm.resume(agent.id)
        assert [outcome.status for outcome in outcomes] == ["cancelled"]
        assert agent.view().status == "idle"
        await agent.send("go on")
        assert (await agent.wait()).result == "ok"
        assert runs == {"call_0_0": 1}


async def test_a_parent_is_not_told_again_of_a_turn_it_knows(autojump_clock: trio.testing.MockClock) -> None:
    heard: list[str] = []

    def root(c: Conversation) -> Any:
        heard.append(c.last_text)
        return reply_calls(("spawn_agent", {"prompt": "child", "name": "kid"})) if c.steps == 0 else reply_text("ok")

    async with opened(by_task(root=root, child=[reply_text("child done")], grandchild=[late(99)])) as swarm:
        parent = await swarm.spawn("root go")
        await parent.wait()
        child = swarm.agent("kid.2")
        await child.spawn("grandchild")
        await trio.sleep(1)
        await child.interrupt()
        await parent.wait()
        assert sum("child done" in text for text in heard) == 1
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


@nanotrio.tool
async def stray() -> str:
    """Raise the cancel of a scope that has ended."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            stray = cancelled
    raise stray


@nanotrio.tool
async def untidy() -> str:
    """Wait, and raise something while the cancel passes."""
    await _untidy()
    return "never"


async def _untidy() -> None:
    async def breaks() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while cleaning up")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(breaks)
        nursery.start_soon(trio.sleep_forever)


async def test_a_cancel_that_is_not_the_agents_is_an_error_of_the_tool(autojump_clock: trio.testing.MockClock) -> None:
    script = by_task(root=[reply_calls(("stray", {})), reply_text("ok")], other=[late(5, "other")])
    async with opened(script, tools=[stray]) as swarm:
        other = await swarm.spawn("other")
        agent = await swarm.spawn("root go")
        assert (await agent.wait()).result == "ok"
        assert (await other.wait()).result == "other"


async def test_a_tool_that_breaks_while_it_is_cancelled_harms_nobody(autojump_clock: trio.testing.MockClock) -> None:
    script = by_task(root=[reply_calls(("untidy", {}))], other=[late(5, "other")])
    async with opened(script, tools=[untidy]) as swarm:
        other = await swarm.spawn("other")
        agent = await swarm.spawn("root go")
        await trio.sleep(1)
        assert (await agent.cancel()).status == "cancelled"
        assert (await other.wait()).result == "other"


async def test_who_approves_may_break_while_it_is_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    async def approve(_: Any) -> bool:
        await _untidy()
        return True

    script = by_task(root=[reply_calls(("stray", {}))], other=[late(5, "other")])
    async with opened(script, tools=[stray], permission_mode="manual", approve=approve) as swarm:
        other = await swarm.spawn("other")
        agent = await swarm.spawn("root go")
        await trio.sleep(1)
        assert (await agent.cancel()).status == "cancelled"
        assert (await other.wait()).result == "other"


@nanotrio.tool
async def raises_odd_text() -> str:
    """Raise a text that no store takes."""
    raise ValueError(f"odd {LONE}")


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (reply_text(f"said {LONE}"), "completed"),
        (Reply((Thinking(f"thought {LONE}", LONE), *reply_text("x").parts), "end", Usage(1, 1)), "completed"),
        (ModelError(f"failed {LONE}", kind="rejected"), "failed"),
        (reply_calls(("raises_odd_text", {})), "completed"),
    ],
)
async def test_a_lone_surrogate_is_cleaned_wherever_it_comes_from(first: Any, status: str) -> None:
    script = by_task(root=[first, reply_text("ok")], other=[reply_text("other")])
    async with opened(script, tools=[raises_odd_text]) as swarm:
        agent = await swarm.spawn("root go", uuid=f"session-{LONE}")
        assert (await agent.wait()).status == status
        assert (await (await swarm.spawn("other")).wait()).result == "other"
        await check_store_holds_the_live_state(swarm)


async def test_an_error_of_a_tool_is_bounded_like_its_result() -> None:
    @nanotrio.tool
    async def shouts() -> str:
        """Raise a long text."""
        raise ValueError("x" * 1_000_000)

    seen: list[str] = []

    def root(c: Conversation) -> Any:
        seen.extend(result.content for result in c.results)
        return reply_text("ok") if c.steps else reply_calls(("shouts", {}))

    async with opened(by_task(root=root), tools=[shouts], limits=Limits(max_result_bytes=2_000)) as swarm:
        await (await swarm.spawn("root go")).wait()
    assert len(seen[0]) <= 2_000


WAITS = {"background": False}


@pytest.mark.parametrize("max_active", [1, 2])
@pytest.mark.parametrize(
    "calls",
    [
        [("spawn_agent", {"prompt": "kid", **WAITS})] * 6,
        [
            *[("spawn_agent", {"prompt": each, "name": each}) for each in ("slow", "boss")],
            ("cancel_agent", {"id": "slow.2"}),
            ("wait_agents", {"ids": ["boss.3"]}),
        ],
        [
            *[("spawn_agent", {"prompt": "slow"})] * 4,
            ("wait_agents", {"mode": "any", "timeout_seconds": 1}),
            ("wait_agents", {}),
        ],
    ],
)
async def test_a_call_that_has_its_result_takes_no_slot_from_whom_another_call_waits_for(
    autojump_clock: trio.testing.MockClock, calls: Any, max_active: int
) -> None:
    """The calls of one reply come back one by one; whoever the last one waits for may have no slot until then."""
    script = by_task(
        root=[reply_calls(*calls), reply_text("ok")],
        boss=[reply_calls(("spawn_agent", {"prompt": "kid", **WAITS})), reply_text("ok")],
        kid=[late(1)],
        slow=[late(50)],
    )
    with trio.fail_after(1_000):
        async with opened(script, max_active=max_active) as swarm:
            assert (await (await swarm.spawn("root go")).wait()).status == "completed"
            check_all_is_given_back(swarm)
            await check_store_holds_the_live_state(swarm)


async def test_an_option_that_spawn_does_not_take_is_refused() -> None:
    async with opened(by_task(root=[reply_text("ok")])) as swarm:
        with pytest.raises(UsageError, match="takes no budget;"):
            await swarm.spawn("root go", budget=0.5)  # type: ignore[call-arg]
        with pytest.raises(UsageError, match="no amount that can be counted"):
            await swarm.spawn("root go", budget_usd=1e300)
        with pytest.raises(UsageError, match="is larger than any number of its kind"):
            await swarm.spawn("root go", timeout_seconds=10**5_000)
        for option in ("name", "model", "system", "permission_mode", "uuid"):
            with pytest.raises(UsageError, match=f"{option} is of the type int; give a text"):
                await swarm.spawn("root go", **{option: 5})  # type: ignore[misc]
        unfit: list[tuple[dict[str, Any], str]] = [
            ({"limits": 5}, "limits is of the type int"),
            ({"directory": 5}, "directory is of the type int"),
            ({"directory": "x" * 300}, "the directory cannot be looked at"),
            ({"tools": 5}, "tools are a list"),
            ({"tools": [None]}, "one of the tools is None"),
            ({"budget_usd": 10**400}, "budget_usd is larger than any number"),
            ({"timeout_seconds": 10**400}, "timeout_seconds is larger than any number"),
        ]
        for options, message in unfit:
            with pytest.raises(UsageError, match=message):
                await swarm.spawn("root go", **options)
            if not options.keys() & {"budget_usd", "timeout_seconds"}:
                with pytest.raises(UsageError, match=message):
                    await opened(by_task(), **options).__aenter__()
        with pytest.raises(UsageError, match="a prompt is text, and this is of the type bytes"):
            await swarm.spawn(b"root go")  # type: ignore[arg-type]
        assert swarm.agents() == []
        root = await swarm.spawn("root go")
        with pytest.raises(UsageError, match="uuid names the session of a root"):
            await root.spawn("root go", uuid="mine")

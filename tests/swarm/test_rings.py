"""Agents that wait for each other: the call that would close the ring is refused and names it, and all go on."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from nanotrio.models.scripted import Conversation, Late
from tests.swarm.worlds import (
    by_task,
    check_all_is_given_back,
    check_store_holds_the_live_state,
    late,
    opened,
    reply_calls,
    reply_text,
)


def wait(*ids: str, **more: Any) -> Any:
    return reply_calls(("wait_agents", {"ids": list(ids), **more}))


def waiter(delay_seconds: float, *ids: str, **more: Any) -> Any:
    """Return a script that waits for others after a while, and ends with what it was told."""

    def script(c: Conversation) -> Any:
        if c.steps == 0:
            return Late(wait(*ids, **more), delay_seconds)
        return reply_text(f"told: {c.results[0].content}")

    return script


def spawner(*tasks: str) -> Any:
    """Return a script that spawns children, named after their tasks, and ends."""
    calls = [("spawn_agent", {"prompt": f"{task} go", "name": task}) for task in tasks]
    return [reply_calls(*calls), reply_text("spawned")]


async def ends_of(scripts: dict[str, Any]) -> tuple[dict[str, str], float]:
    """Run scripts by name below ``root``; return what each came to, and how many seconds it all took."""
    began = trio.current_time()
    async with opened(by_task(**scripts)) as swarm:
        await (await swarm.spawn("root go", name="root")).wait()
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)
        runtime = swarm._runtime
        assert (runtime.waits.by_agent, runtime.waits.by_target) == ({}, {})
        ends = {view.name: str((await swarm.agent(view.id).wait()).result) for view in swarm.agents()}
    return ends, trio.current_time() - began


async def test_two_siblings(autojump_clock: trio.testing.MockClock) -> None:
    ends, seconds = await ends_of({"root": spawner("a", "b"), "a": waiter(1, "b"), "b": waiter(2, "a")})
    assert ends["b.3"] == (
        "told: you would wait for a.2, which waits for you, and that would never end; "
        "go on without it, or end your turn"
    )
    assert ends["a.2"].startswith("told: b.3 completed: told: you would wait for a.2")
    assert seconds == 2, "seen at once"


async def test_a_ring_of_five(autojump_clock: trio.testing.MockClock) -> None:
    names = ["a", "b", "c", "d", "e"]
    scripts = {name: waiter(number, names[(number + 1) % 5]) for number, name in enumerate(names)}
    ends, seconds = await ends_of({"root": spawner(*names), **scripts})
    ring = "a.2, which waits for b.3, which waits for c.4, which waits for d.5, which waits for you"
    assert f"told: you would wait for {ring}, and" in ends["e.6"]
    assert seconds == 4
    assert all("completed" in ends[name] for name in ("a.2", "b.3", "c.4", "d.5"))


async def test_a_ring_through_descendants(autojump_clock: trio.testing.MockClock) -> None:
    """``a`` waits for its own child, whose child waits for ``b``; so ``b`` cannot wait for ``a``."""
    scripts = {
        "root": spawner("a", "b"),
        "a": lambda c: (
            reply_calls(("spawn_agent", {"prompt": "mid go", "name": "mid", "background": False}))
            if not c.steps
            else reply_text("a is done")
        ),
        "mid": spawner("low"),
        "low": waiter(1, "b.3"),
        "b": waiter(2, "a"),
    }
    ends, seconds = await ends_of(scripts)
    assert "told: you would wait for a.2, which waits for low.5, which waits for you, and" in ends["b.3"]
    assert ends["low.5"].startswith("told: b.3 completed")
    assert ends["a.2"] == "a is done"
    assert seconds == 2


async def test_a_background_child_is_waited_for_with_its_parent(autojump_clock: trio.testing.MockClock) -> None:
    """``a`` has ended its turn and settles; whoever waits for it waits for its child too."""
    scripts = {"root": spawner("a", "b"), "a": spawner("low"), "low": waiter(1, "b.3"), "b": waiter(2, "a")}
    ends, _ = await ends_of({**scripts, "a": lambda c: spawner("low")[min(c.steps, 1)]})
    assert "told: you would wait for a.2, which waits for low.4, which waits for you, and" in ends["b.3"]
    assert ends["low.4"].startswith("told: b.3 completed")


async def test_waiting_for_any_is_refused_only_where_every_way_leads_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    scripts = {
        "root": spawner("a", "b", "c", "d"),
        "a": waiter(1, "d"),
        "b": waiter(1, "d"),
        "c": [late(9, "c is done")],
        "d": _waits_for_any_twice,
    }
    ends, seconds = await ends_of(scripts)
    assert "you would wait for a.2, which waits for you" in ends["d.5"]
    assert "c.4 completed: c is done" in ends["d.5"]
    assert seconds == 9


def _waits_for_any_twice(c: Conversation) -> Any:
    match c.steps:
        case 0:
            return Late(wait("a", "b", mode="any"), 2)
        case 1:
            return reply_calls(("wait_agents", {"ids": ["a", "c"], "mode": "any"}), text=c.results[0].content)
        case _:
            said = [part.text for message in c.messages for part in message.parts if hasattr(part, "text")]
            return reply_text(f"{said} {c.results[0].content}")


async def test_the_last_way_out_of_any_is_closed_too(autojump_clock: trio.testing.MockClock) -> None:
    """``x`` waits for any of ``a`` and ``b``; ``a`` waits for ``x``, and then ``b`` would."""
    scripts = {
        "root": spawner("x", "a", "b"),
        "x": waiter(1, "a", "b", mode="any"),
        "a": waiter(2, "x"),
        "b": waiter(3, "x"),
    }
    ends, seconds = await ends_of(scripts)
    assert "you would wait for x.2, which waits for you" in ends["b.4"]
    assert ends["a.3"].startswith("told: x.2 completed")
    assert seconds == 3


async def test_a_wait_with_a_time_limit_closes_no_ring(autojump_clock: trio.testing.MockClock) -> None:
    scripts = {"root": spawner("a", "b"), "a": waiter(1, "b", timeout_seconds=5), "b": waiter(2, "a")}
    ends, seconds = await ends_of(scripts)
    assert "b.3 has not ended" in ends["a.2"]
    assert ends["b.3"].startswith("told: a.2 completed")
    assert seconds == 6


@pytest.mark.parametrize("timeout", [{}, {"timeout_seconds": 5.0}])
async def test_nobody_waits_for_itself_or_for_whom_it_is_below(
    autojump_clock: trio.testing.MockClock, timeout: dict[str, float]
) -> None:
    scripts = {"root": spawner("a"), "a": spawner("low"), "low": waiter(1, "root.1", **timeout)}
    ends, seconds = await ends_of(scripts)
    assert "you would wait for root.1, which waits for you" in ends["low.3"]
    ends, _ = await ends_of({"root": spawner("a"), "a": waiter(1, "a.2", **timeout)})
    assert "you would wait for yourself" in ends["a.2"]
    assert seconds == 1


async def test_one_who_is_woken_again_is_waited_for_again_without_harm(autojump_clock: trio.testing.MockClock) -> None:
    """``a`` waits for ``b`` and ``c``; ``b`` has ended once, and may then wait for ``a``."""

    def b(c: Conversation) -> Any:
        match c.steps:
            case 0:
                return reply_text("once")
            case 1:
                return wait("a")
            case _:
                return reply_text(c.results[0].content)

    async with opened(
        by_task(root=spawner("a", "b", "c"), a=waiter(1, "b", "c"), b=b, c=[late(10, "c is done")])
    ) as swarm:
        root = await swarm.spawn("root go", name="root")
        await trio.sleep(2)
        await swarm.agent("b.3").send("again")
        assert (await swarm.agent("b.3").wait()).result.startswith("a.2 completed")
        await root.wait()
        check_all_is_given_back(swarm)


async def test_one_who_is_cancelled_while_it_waits_is_on_no_ring(autojump_clock: trio.testing.MockClock) -> None:
    scripts = {"root": spawner("a", "b"), "a": waiter(1, "b"), "b": waiter(3, "a")}
    async with opened(by_task(**scripts)) as swarm:
        root = await swarm.spawn("root go", name="root")
        await trio.sleep(2)
        await swarm.agent("a.2").cancel()
        assert not swarm._runtime.waits.by_agent
        assert (await swarm.agent("b.3").wait()).result.startswith("told: a.2 cancelled")
        await root.wait()
        check_all_is_given_back(swarm)

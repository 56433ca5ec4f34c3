"""Looking at a cap and setting it while agents run, and what keeping one costs below it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import nanotrio
from nanotrio.budget import Ledger
from nanotrio.errors import UsageError
from nanotrio.limits import Limits, nano_usd
from nanotrio.messages import Usage
from nanotrio.models.scripted import ScriptedModel
from tests.swarm.worlds import DEAR, by_task, check_all_is_given_back, late, opened, reply_text

SMALL = Limits(max_output_tokens=2_000)


async def test_a_budget_tells_what_is_spent_held_and_left_and_who_is_the_tightest(
    autojump_clock: trio.testing.MockClock,
) -> None:
    cent = Usage(output=10_000)
    script = by_task(root=[reply_text("ok", usage=cent)], child=[late(10)])
    async with opened(script, price=DEAR, limits=SMALL) as swarm:
        top = await swarm.spawn("root a", budget_usd=1.0)
        await top.wait()
        assert (top.budget().cap_usd, top.budget().settled_usd, top.budget().left_usd) == (1.0, 0.01, 0.99)
        middle = await top.spawn("root b", budget_usd=0.3)
        await middle.wait()
        leaf = await middle.spawn("child c")
        await trio.sleep(1)
        budget = leaf.budget()
        assert budget.cap_usd is None
        assert budget.settled_usd == 0
        assert budget.reserved_nano == middle.budget().reserved_nano == top.budget().reserved_nano > 0
        assert (budget.left_usd, budget.tightest) == (0.29, middle.name)
        assert (top.budget().settled_usd, top.budget().tightest) == (0.03, top.name), (
            "with the turn that told it of its child"
        )
        await top.set_budget(0.1)
        assert leaf.budget().tightest == top.name
        await top.set_budget(0.001)
        assert leaf.budget().left_nano == 0
        await top.set_budget(None)
        await middle.set_budget(None)
        assert (leaf.budget().left_usd, leaf.budget().tightest) == (None, "")


async def test_a_cap_lowered_below_what_is_spent_ends_the_next_call_of_each_below_and_names_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def child(c: Any) -> Any:
        return late(10, "first") if not c.steps else late(10, "second")

    async with opened(by_task(root=[reply_text("ok")], child=child), price=DEAR, limits=SMALL) as swarm:
        top = await swarm.spawn("root go", budget_usd=1.0)
        await top.wait()
        children = await top.spawn_many(["child a", "child b"])
        await trio.sleep(1)
        await top.set_budget(0.0001)
        for each in children:
            assert (await each.wait()).result == "first", "a call in flight is not cut off"
            await each.send("again")
            outcome = await each.wait()
            assert outcome.status == "budget_exceeded"
            assert "the budget of agent.1 (0.0001 USD)" in outcome.reason
        await top.set_budget(1.0)
        await children[0].send("again")
        assert (await children[0].wait()).result == "second"
        await top.wait()
        check_all_is_given_back(swarm)


@asynccontextmanager
async def with_an_unpriced_model(**options: Any) -> AsyncIterator[nanotrio.Swarm]:
    script = by_task(root=[reply_text("ok")], busy=[late(100)], child=[reply_text("done")])
    async with opened(script, price=DEAR, max_active=1, **options) as swarm:
        unpriced = ScriptedModel(script, name="scripted/unpriced", price=None)
        swarm._runtime.models[unpriced.name] = unpriced
        yield swarm


async def test_a_cap_over_a_pending_child_whose_model_has_no_price_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with with_an_unpriced_model() as swarm:
        swarm._runtime.slots.max_resident = 0
        top = await swarm.spawn("root go")
        other = await swarm.spawn("root go")
        await other.wait()
        await swarm.spawn("busy")
        child = await top.spawn("child", model="scripted/unpriced", name="child")
        with pytest.raises(UsageError, match=r"price of scripted/unpriced is unknown.*over child\.4 cannot"):
            await top.set_budget(0.5)
        await other.set_budget(0.5)
        assert (await child.wait()).status == "completed"


async def test_an_agent_without_a_price_that_had_left_memory_spends_nothing_under_a_later_cap(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with with_an_unpriced_model(limits=Limits(max_idle=0)) as swarm:
        top = await swarm.spawn("root go")
        await (await top.spawn("child", model="scripted/unpriced")).wait()
        await top.wait()
        await swarm.flush()
        await trio.sleep(1)
        assert swarm.statistics().resident == 0
        await top.set_budget(0.5)
        child = await swarm.find(2)
        await child.send("again")
        outcome = await child.wait()
        assert (outcome.status, outcome.unpriced) == ("budget_exceeded", 1)
        assert "price of scripted/unpriced is unknown, so the budget of agent.1 (0.5 USD) cannot" in outcome.reason
        await top.set_budget(None)
        await child.send("again")
        assert (await child.wait()).status == "completed"


def lines_run(work: Callable[[], object]) -> int:
    """Return how many lines of Python ``work`` runs."""
    count = 0

    def trace(_: Any, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(former)
    return count


def test_a_reservation_costs_the_same_below_one_cap_for_one_agent_and_for_ten_thousand() -> None:
    assert _lines_of_a_reservation(1) == _lines_of_a_reservation(10_000)


def _lines_of_a_reservation(siblings: int) -> int:
    top = Ledger("top", nano_usd(1_000))
    ledgers = [Ledger(f"agent.{number}", None, top) for number in range(siblings)]
    for ledger in ledgers:
        ledger.reserve(10)

    def call() -> None:
        assert ledgers[-1].refusing(10) is None
        ledgers[-1].reserve(10)
        ledgers[-1].settle(20, 15)
        ledgers[-1].tightest()

    lines = lines_run(call)
    assert top.settled == 15
    return lines


async def test_a_call_and_a_change_of_the_cap_cost_the_same_below_ten_agents_and_ten_thousand(
    autojump_clock: trio.testing.MockClock,
) -> None:
    runs: list[int] = []
    for siblings in (10, 10_000):
        script = by_task(root=[reply_text("ok")], child=[late(600)], one=[reply_text("ok"), reply_text("again")])
        limits = Limits(max_output_tokens=100, min_output_tokens=100, max_live=20_000, turn_seconds=10_000)
        async with opened(script, price=DEAR, limits=limits, max_active=20_000) as swarm:
            top = await swarm.spawn("root go", budget_usd=10_000.0)
            await top.wait()
            one = await top.spawn("one go")
            await one.wait()
            for _ in range(siblings // 1_000 or 1):
                await top.spawn_many(["child go"] * min(siblings, 1_000))
            await trio.sleep(1)
            node, runtime = one._node, swarm._runtime
            assert top.budget().reserved_nano > siblings * 100_000

            from nanotrio.swarm.calls import admit_next
            from nanotrio.swarm.caps import set_cap
            from nanotrio.swarm.warnings import warn

            def work(node: Any = node, runtime: Any = runtime, top: Any = top) -> None:
                node.ledger.reserve(1_000)
                warn(runtime, node, node.ledger.settle(1_000, 500))
                admit_next(runtime, node)
                set_cap(runtime, top._node, 9_999.0)
                top.budget()

            runs.append(lines_run(work))
            await top.cancel()
    assert runs[1] <= runs[0] + 5, runs

"""Budgets as agents meet them: waiting for room, lowering the answer, refusing and naming."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

import nanotrio
from nanotrio.errors import BudgetError, UsageError
from nanotrio.limits import Limits
from nanotrio.models.scripted import Conversation
from tests.swarm.worlds import (
    DEAR,
    by_task,
    check_all_is_given_back,
    check_store_holds_the_live_state,
    late,
    opened,
    reply_calls,
    reply_text,
)

SMALL = Limits(max_output_tokens=2_000)
"""A call may cost a little over 0.002 USD; what is really said costs far less."""


async def test_calls_wait_for_room_rather_than_fail(autojump_clock: trio.testing.MockClock) -> None:
    together: list[int] = [0, 0]

    def child(c: Conversation) -> Any:
        together[1] = max(together[1], sum(bool(n.ledger.reserved) for n in runtime.nodes.values() if n.parent))
        return late(1)

    async with opened(by_task(root=[reply_text("ok")], child=child), price=DEAR) as swarm:
        runtime = swarm._runtime
        agent = await swarm.spawn("root go", budget_usd=0.04, limits=SMALL)
        await agent.wait()
        children = await agent.spawn_many([f"child {n}" for n in range(15)])
        await trio.sleep(0.5)
        waiting = [view for view in swarm.agents() if view.waiting_for == "the budget of agent.1"]
        assert waiting
        assert runtime.slots.active < 15, "who waits for money holds no slot"
        outcomes = [await child.wait() for child in children]
        assert Counter(outcome.status for outcome in outcomes) == {"completed": 15}
        assert 1 < together[1] < 15
        await agent.wait()
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


async def test_the_answer_is_shortened_when_money_runs_low_but_not_below_the_least() -> None:
    asked: list[int] = []

    def root(c: Conversation) -> Any:
        asked.append(c.max_tokens)
        return reply_text("x" * 4 * (c.max_tokens // 2))

    async with opened(by_task(root=root), price=DEAR) as swarm:
        agent = await swarm.spawn("root go", budget_usd=0.03, limits=Limits(), tools=["submit_result"])
        outcome = await agent.wait()
        while outcome.status == "completed":
            await agent.send("more")
            outcome = await agent.wait()
        view = agent.view()
    assert outcome.status == "budget_exceeded"
    assert "the budget of agent.1 (0.03 USD)" in outcome.reason
    assert asked[0] == 8_192
    assert asked == sorted(asked, reverse=True)
    assert asked[-1] < 8_192
    assert min(asked) >= 1_024
    assert view.spent_nano <= 30_000_000


async def test_the_tightest_ancestor_holds_and_is_named(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(by_task(root=[reply_text("ok")]), price=DEAR, limits=SMALL) as swarm:
        top = await swarm.spawn("root a", budget_usd=1.0)
        middle = await top.spawn("root b", budget_usd=0.3)
        await middle.wait()
        with pytest.raises(BudgetError, match=r"agent\.2 has 0\.29") as refused:
            await middle.spawn("root c", budget_usd=0.5)
        assert refused.value.holder == middle.name
        await middle.set_budget(0.0)
        low = await middle.spawn("root d")
        outcome = await low.wait()
        assert outcome.status == "budget_exceeded"
        assert f"the budget of {middle.name} (0 USD)" in outcome.reason
        assert outcome.agent == low.id
        assert outcome.last_text == ""


async def test_a_cap_raised_in_flight_lets_who_waits_go_on(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(by_task(root=[reply_text("ok")], child=[late(100)]), price=DEAR, limits=SMALL) as swarm:
        agent = await swarm.spawn("root go", budget_usd=0.008)
        await agent.wait()
        first, second = await agent.spawn_many(["child a", "child b"])
        third = await agent.spawn("child c")
        await trio.sleep(1)
        assert {each.view().waiting_for for each in (first, second, third)} == {"", "the budget of agent.1"}
        await agent.set_budget(1.0)
        await trio.sleep(1)
        assert {each.view().waiting_for for each in (first, second, third)} == {""}
        await agent.set_budget(None)
        assert swarm._runtime.nodes[1].session.limits == swarm._runtime.nodes[1].limits
        await check_store_holds_the_live_state(swarm)


async def test_one_who_waits_for_money_can_be_cancelled_and_forgets_nobody(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(by_task(root=[reply_text("ok")], child=[late(10)]), price=DEAR, limits=SMALL) as swarm:
        agent = await swarm.spawn("root go", budget_usd=0.011)
        await agent.wait()
        children = await agent.spawn_many([f"child {n}" for n in range(6)])
        await trio.sleep(1)
        waiting = [child for child in children if child.view().waiting_for]
        assert len(waiting) >= 3
        for child in waiting[::2]:
            assert (await child.cancel()).status == "cancelled"
        for child in waiting[1::2]:
            assert (await child.wait()).status == "completed"
        await agent.wait()
        check_all_is_given_back(swarm)


@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf")])
async def test_an_amount_that_is_none_is_refused(amount: float) -> None:
    async with opened(by_task(root=[reply_text("ok")]), price=DEAR) as swarm:
        with pytest.raises(UsageError):
            await swarm.spawn("root go", budget_usd=amount)
        agent = await swarm.spawn("root go")
        with pytest.raises(UsageError):
            await agent.set_budget(amount)


async def test_a_misspelt_model_under_a_budget_is_told_which_names_are_like_it() -> None:
    async with nanotrio.open_swarm(environment={"ANTHROPIC_API_KEY": "key"}) as swarm:
        with pytest.raises(UsageError, match=r"or no budget; did you mean anthropic/claude-sonnet-4-5"):
            await swarm.spawn("go", model="anthropic/claude-sonet-4-5", budget_usd=1.0)


async def test_a_model_without_a_price_takes_no_budget_and_says_so_later() -> None:
    async with opened(by_task(root=[reply_text("ok")]), price=None) as swarm:
        with pytest.raises(UsageError, match="price of scripted/test is unknown"):
            await swarm.spawn("root go", budget_usd=1.0)
        agent = await swarm.spawn("root go")
        with pytest.raises(UsageError, match="price of scripted/test is unknown"):
            await agent.set_budget(1.0)
        outcome = await agent.wait()
        assert (outcome.unpriced, outcome.cost_nano) == (1, 0)


async def test_totals_of_a_parent_are_its_own_and_its_childrens(autojump_clock: trio.testing.MockClock) -> None:
    def node(c: Conversation) -> Any:
        if c.steps == 0 and len(c.task.split()) < 4:
            return reply_calls(("spawn_agents", {"agents": [{"prompt": f"{c.task} {n}"} for n in range(3)]}))
        return reply_text("done")

    async with opened(node, price=DEAR) as swarm:
        await (await swarm.spawn("go")).wait()
        nodes = swarm._runtime.nodes
        assert len(nodes) == 40
        for each in nodes.values():
            below = sum(child.session.spent_nano for child in (each.children or {}).values())
            usage = [child.session.usage for child in (each.children or {}).values()]
            each.session.unpack()
            steps = [m for m in each.session.messages if m.role == "assistant"]
            assert each.session.spent_nano > below
            assert each.session.usage.input > sum(each.input for each in usage)
            assert len(steps) >= 1
        check_all_is_given_back(swarm)

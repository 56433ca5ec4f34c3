"""Who is told that a cap is three quarters or nine tenths spent, when, and how often."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from nanotrio.limits import Limits, nano_usd
from nanotrio.messages import Usage, text_of
from nanotrio.models.scripted import Conversation
from nanotrio.swarm.events import BudgetWarned
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

SMALL = Limits(max_output_tokens=1_500)
TENTH = Usage(output=10_000)
"""A reply that costs 0.01 USD, a tenth of the caps below; it bills past ``max_tokens``, as a server may."""
CAP_USD = 0.1


def spender(steps: int, text: str = "done", usage: Usage = TENTH) -> Any:
    """Return a script that costs a tenth of the cap at each of so many steps."""

    def script(c: Conversation) -> Any:
        if c.steps < steps:
            return reply_calls(("list_agents", {}), usage=usage)
        return reply_text(text, usage=Usage())

    return script


def warnings_of(swarm: Any, agent: int) -> list[str]:
    """Return the warnings that an agent's model has read."""
    messages = messages_of(swarm._runtime.nodes[agent])
    texts = "\n".join(text_of(message) for message in messages if message.role == "user")
    return [line for line in texts.split("\n") if line.startswith("[warning]")]


async def test_holder_and_parent_are_told_once_at_each_share_and_between_steps(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def root(c: Conversation) -> Any:
        if c.steps == 0:
            call = ("spawn_agent", {"prompt": "child go", "name": "kid", "budget_usd": CAP_USD, "background": False})
            return reply_calls(call, usage=Usage())
        return reply_text("end", usage=Usage())

    async with opened(by_task(root=root, child=spender(9)), price=DEAR, limits=SMALL) as swarm:
        seen = []
        async with swarm.events() as events:
            agent = await swarm.spawn("root go")
            outcome = await agent.wait()
            while True:
                try:
                    event = events.receive_nowait()
                except trio.WouldBlock:
                    break
                seen.append(event) if isinstance(event, BudgetWarned) else None
        told = warnings_of(swarm, 2)
        assert told == [
            "[warning] 80 % of the budget of kid.2 is spent: 0.08 USD of 0.1 USD, 0.02 USD left",
            "[warning] 90 % of the budget of kid.2 is spent: 0.09 USD of 0.1 USD, 0.01 USD left",
        ]
        assert warnings_of(swarm, 1) == told
        assert (outcome.turn, outcome.steps) == (1, 2), "no turn was begun for a warning"
        assert [(each.name, each.spent_nano, each.cap_nano) for each in seen] == [
            ("kid.2", nano_usd(0.08), nano_usd(0.1)),
            ("kid.2", nano_usd(0.09), nano_usd(0.1)),
        ]
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


async def test_a_last_reply_that_passes_a_share_begins_no_turn_and_is_told_with_the_next_one() -> None:
    script = by_task(root=[reply_text("the answer", usage=Usage(output=80_000)), reply_text("more", usage=Usage())])
    async with opened(script, price=DEAR, limits=SMALL) as swarm:
        agent = await swarm.spawn("root go", budget_usd=CAP_USD)
        outcome = await agent.wait()
        assert (outcome.result, outcome.turn, outcome.steps) == ("the answer", 1, 1)
        assert not agent._node.session.is_unfinished
        assert warnings_of(swarm, 1) == []
        await agent.send("go on")
        assert (await agent.wait()).result == "more"
        (told,) = warnings_of(swarm, 1)
        assert told.startswith("[warning] 80 % of the budget of agent.1")
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


@pytest.mark.parametrize(
    ("caps", "told"),
    [
        ((0.2, CAP_USD), ["80 %"]),  # 40 % of the raised cap, and lowered again
        ((0.105,), []),  # 76 %: that was told
        ((0.085,), ["94 %"]),
        ((None, CAP_USD), ["80 %"]),
        ((0.05,), ["160 %"]),
    ],
)
async def test_a_cap_that_is_set_anew_is_warned_of_anew(caps: tuple[float | None, ...], told: list[str]) -> None:
    script = by_task(root=[reply_text("one", usage=Usage(output=80_000)), reply_text("two", usage=Usage())])
    async with opened(script, price=DEAR, limits=SMALL) as swarm:
        agent = await swarm.spawn("root go", budget_usd=CAP_USD)
        await agent.wait()
        before = len(agent._node.session.unread)
        for cap in caps:
            await agent.set_budget(cap)
        texts = [mail.text for mail in agent._node.session.unread[before:]]
        assert [text.partition(" of")[0] for text in texts] == told
        await check_store_holds_the_live_state(swarm)


async def test_a_restart_repeats_no_warning_and_loses_none(autojump_clock: trio.testing.MockClock) -> None:
    """Killed after each commit of a whole life, each share is told once in the end."""
    script = by_task(root=[reply_text("up", usage=Usage())], child=spender(9))
    store = taped_store()
    async with opened(script, price=DEAR, limits=SMALL, store=store) as swarm:
        agent = await swarm.spawn("root go")
        await (await agent.spawn("child go", name="kid", budget_usd=CAP_USD)).wait()
        await agent.wait()
    for cut in range(1, len(store.batches)):
        crashed = await store.as_of(cut)
        async with opened(script, price=DEAR, limits=SMALL, store=crashed) as swarm:
            for each in await swarm.resume_all():
                await each.wait()
            if 2 not in swarm._runtime.nodes:
                continue
            told = [line.split()[1] for line in warnings_of(swarm, 2)]
            spent = swarm._runtime.nodes[2].ledger.settled
            assert len(told) == (spent * 100 >= nano_usd(75 * CAP_USD)) + (spent * 100 >= nano_usd(90 * CAP_USD))
            assert told == sorted(told)
            check_all_is_given_back(swarm)


async def test_what_a_kill_leaves_uncertain_is_warned_of_once(autojump_clock: trio.testing.MockClock) -> None:
    store = taped_store()
    limits = Limits(max_output_tokens=8_000)
    with trio.move_on_after(5):
        async with opened(by_task(root=[late(99)]), price=DEAR, limits=limits, store=store) as swarm:
            await swarm.spawn("root go", budget_usd=0.01)
            await trio.sleep_forever()
    script = by_task(root=[reply_text("ok", usage=Usage())])
    for _ in range(2):
        store = await store.as_of(len(store.batches))
        async with opened(script, price=DEAR, limits=limits, store=store) as swarm:
            root = await swarm.resume(1)
            await root.wait()
            await root.set_budget(1.0)
            await root.send("what now")
            await root.wait()
            assert len(warnings_of(swarm, 1)) == 1
            assert "% of the budget of agent.1" in warnings_of(swarm, 1)[0]


async def test_who_is_cancelled_or_closed_gets_no_warning(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(by_task(root=[late(99)]), price=DEAR, limits=SMALL) as swarm:
        agent = await swarm.spawn("root go", budget_usd=0.0035)
        await trio.sleep(1)
        outcome = await agent.cancel()
        assert outcome.uncertain_nano * 100 > nano_usd(0.0035 * 75)
        assert outcome.status == "cancelled"
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)

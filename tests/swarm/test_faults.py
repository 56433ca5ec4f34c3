"""How trees of agents break for their users, and what happens here instead."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

import nanotrio
from nanotrio.errors import ClosedError, LimitError, ModelError
from nanotrio.fact_form import decode_facts
from nanotrio.limits import Limits
from nanotrio.messages import Usage, text_of
from nanotrio.models.scripted import Conversation, Late
from nanotrio.records import MailArrived, MailRead, MailReturned, TurnStarted
from nanotrio.testing import UnreliableStore
from tests import counts
from tests.swarm.worlds import (
    DEAR,
    by_task,
    check_all_is_given_back,
    check_store_holds_the_live_state,
    late,
    opened,
    reply_calls,
    reply_text,
    taped_store,
)

BROKEN = ModelError("HTTP 500 from the server", kind="transient", status=500)


@nanotrio.tool(effect=False)
async def explode() -> str:
    """Break."""
    raise SystemExit(3)


@nanotrio.tool(effect=False)
async def again() -> str:
    """Do something small."""
    return "more"


def raising(_: Conversation) -> Any:
    raise RuntimeError("the script broke")


def leaving(_: Conversation) -> Any:
    raise SystemExit(4)


CHILDREN: dict[str, Any] = {
    "answers": [reply_text("fine")],
    "errors": lambda c: BROKEN,
    "silent": [Late(ModelError("no data for 300 s", kind="transient"), 300)],
    "explodes": lambda c: reply_calls(("explode", {})) if not c.steps else reply_text(c.results[0].content),
    "loops": lambda c: reply_calls(("again", {})),
    "raises": raising,
    "leaves": leaving,
}


@pytest.mark.parametrize("seconds", [None, 5.0])
async def test_stuck_children_each_end_once_with_a_reason(
    autojump_clock: trio.testing.MockClock, seconds: float | None
) -> None:
    told: list[str] = []

    def root(c: Conversation) -> Any:
        if c.steps == 0:
            return reply_calls(*[("spawn_agent", {"prompt": f"{name} x", "name": name}) for name in CHILDREN])
        if c.steps == 1:
            return reply_calls(("wait_agents", {} if seconds is None else {"timeout_seconds": seconds}))
        told.extend(c.results[0].content.split("\n") if c.steps == 2 else [])
        return reply_text("end")

    limits = Limits(max_steps=200, max_attempts=3)
    async with opened(by_task(root=root, **CHILDREN), tools=[explode, again], limits=limits) as swarm:
        agent = await swarm.spawn("root go")
        assert (await agent.wait()).status == "completed"
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)
        ends = {view.name.partition(".")[0]: await swarm.agent(view.id).wait() for view in swarm.agents()}
    assert {name: end.status for name, end in ends.items() if name != "agent"} == {
        "answers": "completed",
        "errors": "failed",
        "silent": "failed",
        "explodes": "completed",
        "loops": "failed",
        "raises": "failed",
        "leaves": "failed",
    }
    assert ends["errors"].reason == "HTTP 500 from the server (3 attempts)"
    assert "SystemExit: 3" in ends["explodes"].result
    assert "max_steps of loops" in ends["loops"].reason
    assert "the script broke" in ends["raises"].reason
    finished = [line for line in told if "has not ended" not in line]
    assert len(told) == len(CHILDREN)
    assert len(finished) == (len(CHILDREN) if seconds is None else len(CHILDREN) - 1)


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("429", "failed", "429"),
        ("quota", "failed", "no quota"),
        ("budget", "budget_exceeded", "the budget of agent.1"),
        ("steps", "failed", "max_steps"),
        ("cancel", "cancelled", "cancelled by its user"),
        ("empty", "failed", "without a word"),
    ],
)
async def test_work_is_never_thrown_away(
    autojump_clock: trio.testing.MockClock, how: str, status: str, reason: str
) -> None:
    def root(c: Conversation) -> Any:
        if c.steps < 5:
            return reply_calls(("again", {}), text="" if how == "empty" else f"found {c.steps}")
        match how:
            case "429":
                return ModelError("429 slow down", kind="rate_limited", status=429)
            case "quota":
                return ModelError("no quota", kind="quota", status=429)
            case "cancel":
                return late(999)
            case "empty":
                return reply_text("")
        return reply_calls(("again", {}), text=f"found {c.steps}", usage=Usage(10, 2_000))

    options: dict[str, Any] = {"limits": Limits(max_steps=8)} if how == "steps" else {}
    async with opened(by_task(root=root), tools=[again], price=DEAR, **options) as swarm:
        agent = await swarm.spawn("root go", budget_usd=0.03 if how == "budget" else None)
        if how == "cancel":
            await trio.sleep(5)
            await agent.cancel()
        outcome = await agent.wait()
        check_all_is_given_back(swarm)
        assert outcome.status == status
        assert reason in outcome.reason
        assert outcome.last_text.startswith("" if how == "empty" else "found")
        assert outcome.result is None
        assert outcome.usage.output > 0
        assert outcome.cost_nano > 0
        assert outcome.agent == agent.id
        if how == "429":
            assert outcome.reason == "429 slow down (6 attempts)"


async def test_a_stated_wait_is_honoured_by_all_who_call_the_model(autojump_clock: trio.testing.MockClock) -> None:
    calls: list[float] = []
    refused: list[float] = []
    start = trio.current_time()

    def child(_: Conversation) -> Any:
        now = trio.current_time() - start
        calls.append(now)
        if now < 3:
            refused.append(now)
            return ModelError("429", kind="rate_limited", status=429, retry_after_seconds=3.0)
        return reply_text("ok")

    script = by_task(root=[reply_text("ok")], child=child)
    async with opened(script, price=DEAR, max_active=100, latency_seconds=0.01) as swarm:
        calls.clear()
        agent = await swarm.spawn("root go", budget_usd=1.0)
        await agent.wait()
        children = await agent.spawn_many([f"child {n}" for n in range(200)])
        await trio.sleep(1)
        assert swarm._runtime.slots.active == 0, "who waits for the rate limit holds no slot"
        assert swarm._runtime.nodes[1].ledger.reserved == 0, "nor a reservation"
        waiting = Counter(view.waiting_for for view in swarm.agents())
        assert waiting["a rate limit"] + waiting["another attempt"] == 200
        assert (await children[7].cancel()).status == "cancelled"
        ends = Counter([(await each.wait()).status for each in children])
        await agent.wait()
        check_all_is_given_back(swarm)
    assert ends == {"completed": 199, "cancelled": 1}
    late_calls = [at for at in calls if at > max(refused)]
    assert len(refused) <= 110
    assert min(late_calls) >= 3
    assert len({round(at, 3) for at in late_calls}) > 50, "they do not come back together"


STATES = ["pending", "running", "waiting for a child", "idle", "closed", "cancelled while it works"]


@pytest.mark.parametrize("state", STATES)
async def test_each_mail_has_one_fate(autojump_clock: trio.testing.MockClock, state: str) -> None:
    store = taped_store()

    def child(c: Conversation) -> Any:
        if c.steps == 0 and state == "waiting for a child":
            return reply_calls(("spawn_agent", {"prompt": "leaf x", "background": False}))
        return late(0.5, "ok")

    returned: list[str] = []

    def writer(c: Conversation) -> Any:
        returned.extend(line for line in c.last_text.split("\n") if line.startswith("[returned]"))
        if c.steps or c.task.endswith("idle"):
            return reply_text("ok")
        return reply_calls(*[("send_message", {"to": "kid.3", "text": f"mail {n}"}) for n in range(20)])

    script = by_task(root=[reply_text("ok")], child=child, leaf=[late(2)], writer=writer)
    refusals = sent = 0
    async with opened(script, store=store, limits=Limits(max_mailbox=2_000)) as swarm:
        root = await swarm.spawn("root go")
        await root.spawn("writer idle")
        if state == "pending":
            swarm._runtime.slots._max_active = 0
        kid = await root.spawn("child x", name="kid")
        if state == "idle":
            await kid.wait()
        if state == "closed":
            await kid.close()
        await trio.sleep(0.1)
        other = await root.spawn("writer now") if state != "pending" else None
        for number in range(counts.MAILS):
            try:
                await (kid.steer if number % 3 == 0 else kid.send)(f"mine {number}.")
                sent += 1
            except (ClosedError, LimitError):
                refusals += 1
            if state == "cancelled while it works" and number == counts.MAILS // 2:
                await kid.cancel()
        swarm._runtime.slots._max_active = 100
        swarm._runtime.slots.hand_on()
        for each in filter(None, (kid, other, root)):
            await each.wait()
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)
        session = kid._node.session
    assert sent + refusals == counts.MAILS
    assert bool(refusals) == (state in {"closed", "cancelled while it works"})
    assert not _unread(store, kid.id)
    assert not session.unread
    told = "\n".join(text_of(message) for message in session.messages if message.role == "user")
    assert all(told.count(f"mine {number}.") <= 1 for number in range(counts.MAILS))
    if not refusals:
        assert all(told.count(f"mine {number}.") == 1 for number in range(counts.MAILS))


def _unread(store: UnreliableStore, agent: int) -> dict[int, str]:
    """Return the mails of ``agent`` that neither a turn, a step nor a return has consumed, by its records."""
    unread: dict[int, str] = {}
    records = [record for batch in store.batches for record in batch.records if record.agent == agent]
    for record in records:
        for fact in decode_facts(record.facts):
            match fact:
                case MailArrived(kind):
                    unread[record.seq] = kind
                case TurnStarted(_, seq) | MailReturned(seq):
                    unread = {each: kind for each, kind in unread.items() if each > seq}
                case MailRead(seq):
                    unread = {each: kind for each, kind in unread.items() if each > seq or kind in {"prompt", "text"}}
                case _:
                    pass
    return unread


async def test_unread_mail_of_one_who_closes_goes_back_to_its_sender(autojump_clock: trio.testing.MockClock) -> None:
    heard: list[str] = []

    def writer(c: Conversation) -> Any:
        heard.append(c.last_text)
        return reply_calls(("send_message", {"to": "kid.2", "text": "hello"})) if c.steps == 0 else reply_text("ok")

    script = by_task(root=[reply_text("ok")], child=[late(99)], writer=writer)
    async with opened(script) as swarm:
        root = await swarm.spawn("root go")
        kid = await root.spawn("child x", name="kid")
        await trio.sleep(1)
        other = await root.spawn("writer x")
        await other.wait()
        await kid.cancel()
        assert (await other.wait()).turn == 2
        await root.wait()
        check_all_is_given_back(swarm)
    assert heard[-1] == "[returned] kid.2 closed without reading your message: hello"


async def test_mails_that_come_back_are_one_notice_that_a_full_mailbox_takes_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: list[str] = []

    def writer(c: Conversation) -> Any:
        heard.append(c.last_text)
        if c.steps == 0:
            return reply_calls(*[("send_message", {"to": "kid.2", "text": letter * 990}) for letter in "ab"])
        return late(10) if c.steps == 1 else reply_text("ok")

    script = by_task(root=[reply_text("ok")], child=[late(99)], writer=writer)
    async with opened(script, limits=Limits(max_mailbox=2, max_message_bytes=1_000)) as swarm:
        root = await swarm.spawn("root go")
        kid = await root.spawn("child x", name="kid")
        await trio.sleep(1)
        other = await root.spawn("writer x")
        await trio.sleep(1)
        for text in ("one", "two"):
            await other.send(text)
        with pytest.raises(LimitError):
            await other.send("three")
        await kid.cancel()
        await other.wait()
        await root.wait()
        check_all_is_given_back(swarm)
    (back,) = [line for text in heard for line in text.splitlines() if line.startswith("[returned]")]
    assert back == f"[returned] kid.2 closed without reading your 2 messages: {'a' * 250}..."


async def test_mail_queued_before_a_kill_is_read_after_it(autojump_clock: trio.testing.MockClock) -> None:
    store = taped_store()
    heard: list[str] = []

    def root(c: Conversation) -> Any:
        heard.append(c.last_text)
        return late(10, "ok")

    with trio.move_on_after(5):
        async with opened(by_task(root=root), store=store) as swarm:
            agent = await swarm.spawn("root go")
            await trio.sleep(1)
            await agent.send("later")
            await agent.steer("sooner")
            await trio.sleep_forever()
    for cut in range(1, len(store.batches) + 1):
        crashed = await store.as_of(cut)
        facts = [fact for record in await crashed.scan(0) for fact in decode_facts(record.facts)]
        mails = sum(isinstance(fact, MailArrived) for fact in facts) - 1
        heard.clear()
        async with opened(by_task(root=root), store=crashed) as swarm:
            (resumed,) = await swarm.resume_all()
            await resumed.wait()
            check_all_is_given_back(swarm)
        said = "\n".join(heard)
        assert (said.count("later"), said.count("sooner")) == (int(mails >= 1), int(mails >= 2))


async def test_a_runaway_that_always_delegates_is_held_by_every_cap(autojump_clock: trio.testing.MockClock) -> None:
    def runaway(c: Conversation) -> Any:
        if c.steps == 0 and any(tool.name == "spawn_agents" for tool in c.tools):
            return reply_calls(("spawn_agents", {"agents": [{"prompt": c.task}] * 3}))
        return reply_text("; ".join(result.content for result in c.results) or "done")

    async with opened(runaway, limits=Limits(max_depth=9, max_total=200)) as swarm:
        outcome = await (await swarm.spawn("do everything")).wait()
        assert outcome.status == "completed"
        assert len(swarm.agents()) <= 201
        ends = [await swarm.agent(view.id).wait() for view in swarm.agents()]
        assert any("max_total" in end.last_text for end in ends)
        check_all_is_given_back(swarm)

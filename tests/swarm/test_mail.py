"""Mail from sibling to sibling, a thousand at a time, to one in each state, and across a kill at any moment."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

import nanotrio
from nanotrio.fact_form import decode_facts
from nanotrio.limits import Limits
from nanotrio.messages import ToolResult, text_of
from nanotrio.models.scripted import Conversation, Late
from nanotrio.records import MailArrived, MailRead, MailReturned, MailTaken, ToolEnded, TurnStarted
from nanotrio.testing import UnreliableStore
from tests import counts
from tests.swarm.worlds import (
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

STATES = ["pending", "running", "settling", "idle", "closed"]
A_STEP = 20
"""Mails that the writer sends in one step."""
ROOMY = Limits(max_mailbox=5_000)


def kid(state: str) -> Any:
    """Return the script of one who gets all the mail while it is in ``state``."""

    def script(c: Conversation) -> Any:
        if c.task.startswith("kid") and not c.steps:
            if state == "running":
                return late(1_000)
            if state == "settling":
                return reply_calls(("spawn_agent", {"prompt": "leaf go"}))
        return reply_text("read")

    return script


def writer(c: Conversation) -> Any:
    """Send all the mails, so many in a step."""
    sent = (c.steps - 1) * A_STEP
    if c.steps == 0:
        return Late(reply_calls(("list_agents", {})), 2)
    if sent >= counts.MAILS:
        return reply_text("sent")
    return reply_calls(*[("send_message", {"to": "kid", "text": f"mail {sent + number};"}) for number in range(A_STEP)])


def script_of(state: str) -> Any:
    return by_task(root=[reply_text("ok")], kid=kid(state), writer=writer, leaf=[late(1_000)])


async def begin(swarm: nanotrio.Swarm, state: str) -> tuple[nanotrio.Agent, nanotrio.Agent]:
    """Start a writer, and beside it a kid that is in ``state`` when the writer begins to write."""
    root = await swarm.spawn("root go")
    sender = await root.spawn("writer go", name="writer")
    target = await root.spawn("kid go", name="kid")
    if state in {"idle", "closed"}:
        await target.wait()
    if state == "closed":
        await target.close()
    await trio.sleep(1)
    assert target.view().status == state
    return sender, target


def fates_of(store: UnreliableStore, agent: int) -> Counter[str]:
    """Return how many mails of an agent were consumed by a turn or a step, came back, or wait, by its records."""
    waiting: list[tuple[int, str]] = []
    fates: Counter[str] = Counter()
    records = [record for batch in store.batches for record in batch.records if record.agent == agent]
    for record in records:
        for fact in decode_facts(record.facts):
            match fact:
                case MailArrived(kind):
                    waiting.append((record.seq, kind))
                    continue
                case TurnStarted(_, seq):
                    fate, over = "consumed", [mail for mail in waiting if mail[0] <= seq]
                case MailRead(seq):
                    over = [mail for mail in waiting if mail[0] <= seq and mail[1] not in {"prompt", "text"}]
                    fate = "consumed"
                case MailReturned(seq):
                    fate, over = "returned", [mail for mail in waiting if mail[0] <= seq]
                case _:
                    continue
            fates[fate] += sum(kind == "text" for _, kind in over)
            waiting = [mail for mail in waiting if mail not in over]
    fates["waiting"] = sum(kind == "text" for _, kind in waiting)
    return fates


def read_by(agent: nanotrio.Agent) -> Counter[str]:
    """Return the mails that an agent's model has read, each with how often."""
    messages = messages_of(agent._node)
    text = "\n".join(text_of(message) for message in messages if message.role == "user")
    return Counter(word for line in text.split("\n") if "] mail " in line for word in [line.partition("] ")[2]])


ALL = {f"mail {number};": 1 for number in range(counts.MAILS)}


@pytest.mark.parametrize("state", STATES)
async def test_each_mail_of_a_sibling_has_one_fate(autojump_clock: trio.testing.MockClock, state: str) -> None:
    store = taped_store()
    max_active = 1 if state == "pending" else 100
    async with opened(script_of(state), store=store, limits=ROOMY, max_active=max_active) as swarm:
        sender, target = await begin(swarm, state)
        outcome = await sender.wait()
        await swarm.agent(1).wait()
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)
        answers = Counter(
            part.content.partition(" ")[0]
            for message in messages_of(sender._node)
            for part in message.parts
            if isinstance(part, ToolResult) and part.content != "no agents below you"
        )
        assert outcome.status == "completed"
        if state == "closed":
            assert answers == {target.name: counts.MAILS}, "refused, each by its name"
            assert read_by(target) == {}
        else:
            assert answers == {"sent": counts.MAILS}
            assert read_by(target) == ALL
            assert fates_of(store, target.id) == {"consumed": counts.MAILS, "waiting": 0}


@pytest.mark.parametrize("state", ["running", "settling", "idle"])
async def test_each_mail_has_one_fate_whenever_the_process_dies(
    autojump_clock: trio.testing.MockClock, state: str
) -> None:
    store = taped_store()
    async with opened(script_of(state), store=store, limits=ROOMY, latency_seconds=0.01) as swarm:
        await begin(swarm, state)
    total = len(store.batches)
    for cut in sorted({*range(1, total, max(1, total // 12)), total}):
        crashed = await store.as_of(cut)
        async with opened(script_of(state), store=crashed, limits=ROOMY) as swarm:
            for each in await swarm.resume_all():
                await each.wait()
            check_all_is_given_back(swarm)
            await check_store_holds_the_live_state(swarm)
            if 3 not in swarm._runtime.nodes:  # killed before there was one to write to
                continue
            assert read_by(swarm.agent(3)) == ALL, f"killed after {cut} of {total} commits"
            assert fates_of(crashed, 3) == {"consumed": counts.MAILS, "waiting": 0}


async def test_a_full_mailbox_is_an_error_that_its_sender_survives(autojump_clock: trio.testing.MockClock) -> None:
    """The error names bound and holder; met many times in a row it is no mistake that ends the turn."""
    said: list[str] = []

    def sender(c: Conversation) -> Any:
        said.extend(result.content for result in c.results)
        if c.steps < 12:
            return reply_calls(("send_message", {"to": "kid", "text": f"mail {c.steps};"}))
        return reply_text("end")

    script = by_task(root=[reply_text("ok")], kid=[late(100), reply_text("read")], sender=sender)
    async with opened(script, limits=Limits(max_mailbox=5)) as swarm:
        root = await swarm.spawn("root go")
        target = await root.spawn("kid go", name="kid")
        await trio.sleep(1)
        outcome = await (await root.spawn("sender go")).wait()
        await root.wait()
        check_all_is_given_back(swarm)
        assert read_by(target) == {f"mail {number};": 1 for number in range(5)}
    assert outcome.status == "completed"
    assert outcome.steps == 13
    refused = [text for text in said if not text.startswith("sent")]
    assert len(refused) == 7
    assert set(refused) == {"max_mailbox of kid.2 is reached: 5 mails wait unread; let it read them first"}


async def test_five_hundred_children_that_end_together_cost_few_turns_and_none_is_forgotten(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A hundred end within 5 ms of the parent's last token, the others around them."""
    children = 500

    def root(c: Conversation) -> Any:
        if c.steps == 0:
            return reply_calls(("spawn_agents", {"agents": [{"prompt": f"kid {n}"} for n in range(children)]}))
        return late(1.0, "done") if c.steps == 1 else late(0.3, "told")

    def child(c: Conversation) -> Any:
        number = int(c.task.split()[1])
        return late(0.995 + (number % 100) / 10_000 if number < 100 else 0.5 + number / 500, "fine")

    async with opened(by_task(root=root, kid=child)) as swarm:
        agent = await swarm.spawn("root go")
        outcome = await agent.wait()
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)
        session = agent._node.session
        text = "\n".join(text_of(message) for message in messages_of(agent._node) if message.role == "user")
    told = text.count(" completed: fine]")
    more = sum(int(line.split()[1]) for line in text.split("\n") if line.startswith("and ") and " more:" in line)
    assert told + more == children
    assert session.usage.output > children
    assert outcome.turn <= 4


@pytest.mark.parametrize("max_resident", [0, 100])
async def test_mail_to_one_that_is_cancelled_before_it_began_goes_back_to_who_sent_it(
    autojump_clock: trio.testing.MockClock, max_resident: int
) -> None:
    """Its own prompt counts as read, so that it can be resumed; nothing else does."""
    heard: list[str] = []

    def sender(c: Conversation) -> Any:
        heard.append(c.last_text)
        return Late(reply_calls(("send_message", {"to": "kid", "text": "mail 1;"})), 2) if not c.steps else late(8)

    script = by_task(root=[reply_text("ok")], busy=[late(100)], kid=[reply_text("kid done")], sender=sender)
    store = taped_store()
    async with opened(script, store=store, max_active=2) as swarm:
        swarm._runtime.slots.max_resident = max_resident
        root = await swarm.spawn("root go")
        await root.wait()
        await swarm.spawn("busy")
        writer = await root.spawn("sender go")
        await trio.sleep(1)
        target = await root.spawn("kid go", name="kid")
        await trio.sleep(2)
        assert target.view().status == "pending"
        assert (await target.cancel()).status == "cancelled"
        assert (await writer.wait()).turn == 2
        await root.wait()
        await swarm.flush()
        assert fates_of(store, target.id) == {"returned": 1, "waiting": 0, "consumed": 0}
        assert heard[2:] == ["[returned] kid.4 closed without reading your message: mail 1;"]
        await swarm.resume(target.id)
        await target.send("go on")
        assert (await target.wait()).result == "kid done"
        texts = [text_of(message) for message in messages_of(target._node)]
        assert texts == ["kid go", "go on", "kid done"]
        await check_store_holds_the_live_state(swarm)


async def test_a_notice_is_taken_in_the_group_of_the_result_that_tells_the_same(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = taped_store()
    kids = {"agents": [{"prompt": f"child {number}", "name": "kid"} for number in range(3)]}
    root = [reply_calls(("spawn_agents", kids)), reply_calls(("wait_agents", {"mode": "any"})), reply_text("ok")]
    async with opened(by_task(root=root, child=[late(5)]), store=store, max_active=1) as swarm:
        await (await swarm.spawn("root go")).wait()  # as it is told, another child has the only slot for 5 s
    facts = [[type(fact) for fact in decode_facts(record.facts)] for record in await store.scan(0)]
    assert [types for types in facts if MailTaken in types] == [[MailTaken, ToolEnded]]

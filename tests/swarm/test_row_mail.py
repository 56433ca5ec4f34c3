"""Mail to pending agents that are not in memory: they stay where they are, and it is read with the prompt."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

import nanotrio
from nanotrio.errors import ClosedError, LimitError, StoreError
from nanotrio.fact_form import decode_facts
from nanotrio.journal.limits import JournalLimits
from nanotrio.limits import Limits
from nanotrio.messages import ToolResult
from nanotrio.models.scripted import Conversation
from nanotrio.records import Head, MailArrived
from nanotrio.stores import MemoryStore
from nanotrio.swarm.recovery import tail_heads
from nanotrio.testing import UnreliableStore
from tests.swarm.test_residence import tight
from tests.swarm.worlds import (
    by_task,
    check_all_is_given_back,
    check_store_holds_the_live_state,
    late,
    reply_calls,
    reply_text,
    sessions_in,
    taped_store,
)

TINY = JournalLimits(heads_records=3, heads_slice=2, max_batch_records=4)


def heard_by(heard: dict[str, list[str]]) -> Any:
    """Return a script that notes what each child reads in its first turn."""

    def child(c: Conversation) -> Any:
        if c.steps == 0:
            lines = [line for line in c.messages[0].parts[0].text.splitlines() if line]
            heard[lines[0]] = lines
        return late(1, "done")

    return by_task(root=[reply_text("ok")], child=child)


def hold_back(swarm: nanotrio.Swarm) -> None:
    """Bring no row in before its turn."""
    swarm._runtime.slots.ahead = 0


def go_on(swarm: nanotrio.Swarm) -> None:
    swarm._runtime.slots.ahead = 1_024
    swarm._runtime.residence.stir()


async def check_heads(store: Any) -> list[Head]:
    """Every head in the store is what the records make, but for the counts; return them."""
    heads = await store.heads()
    sessions = await sessions_in(store)
    for head in heads:
        counts = (head.model, head.children, head.descendants, head.counted_agent)
        assert head == sessions[head.agent].head(*counts)
    return list(heads)


async def test_a_row_that_gets_mail_stays_a_row_and_reads_it_with_its_prompt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: dict[str, list[str]] = {}
    async with tight(heard_by(heard), max_active=1) as swarm:
        hold_back(swarm)
        root = await swarm.spawn("root go")
        kids = await root.spawn_many([f"child {number}" for number in range(8)], name="kid")
        resident = swarm.statistics().resident
        await kids[6].send("one")
        await kids[6].steer("two")
        await kids[6].send("three")
        await swarm.agent("kid.7").send("four")
        assert swarm.statistics().resident == resident
        assert kids[6].view().status == "pending"
        await swarm.flush()
        head = (await check_heads(swarm._runtime.store))[7]
        assert (head.agent, head.status) == (8, "pending")
        assert head.updated_us >= head.created_us
        assert not swarm._runtime.residence.row_mail._behind
        go_on(swarm)
        await root.wait()
        assert [line for line in heard["child 6"] if line in {"one", "three"}] == ["one", "three"]
        assert any("two" in line for line in heard["child 6"])
        assert heard["child 5"] == ["child 5", "four"]
        assert not swarm._runtime.slots.rows.letters
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)
        await check_heads(swarm._runtime.store)


async def test_mail_to_a_row_is_refused_as_to_any_agent(autojump_clock: trio.testing.MockClock) -> None:
    limits = Limits(max_idle=2, max_mailbox=3, max_message_bytes=20)
    async with tight(heard_by({}), limits=limits, max_active=1) as swarm:
        hold_back(swarm)
        root = await swarm.spawn("root go")
        kids = await root.spawn_many([f"child {number}" for number in range(8)], name="kid")
        for _ in range(2):
            await kids[6].send("x")
        with pytest.raises(LimitError, match=r"max_mailbox of kid.8 is reached: 3 mails wait unread"):
            await kids[6].send("x")
        with pytest.raises(LimitError, match=r"max_message_bytes of kid.7 is 20"):
            await kids[5].send("ä" * 11)
        assert kids[5]._node is None
        await root.cancel()
        with pytest.raises(ClosedError, match=r"kid.7 is closed"):
            await kids[5].send("x")


async def test_the_mailbox_of_a_row_is_counted_anew_where_the_store_was_reopened(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = taped_store()
    limits = Limits(max_idle=2, max_mailbox=3)
    with pytest.raises(KeyError):
        async with tight(heard_by({}), limits=limits, store=store, max_active=1) as swarm:
            hold_back(swarm)
            root = await swarm.spawn("root go")
            kids = await root.spawn_many([f"child {number}" for number in range(30)], name="kid")
            await kids[26].send("x")
            raise KeyError
    await check_heads(store)
    heard: dict[str, list[str]] = {}
    async with tight(heard_by(heard), limits=limits, store=store, max_active=1) as swarm:
        hold_back(swarm)
        swarm._runtime.unresumed.max_shown = 4
        await swarm.resume_all()
        await swarm.agent(28).send("y")
        await swarm.agent(27).send("y")
        assert 28 in swarm._runtime.nodes, "how much mail it has is not known, so it was brought in"
        assert 27 not in swarm._runtime.nodes
        with pytest.raises(LimitError, match=r"max_mailbox of kid.28 is reached: 3 mails"):
            await swarm.agent(28).send("z")
        go_on(swarm)
        await swarm.agent(1).wait()
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)
    await check_heads(store)
    assert (heard["child 26"], heard["child 25"]) == (["child 26", "x", "y"], ["child 25", "y"])


async def test_mail_to_a_row_that_is_being_loaded_is_read_once(autojump_clock: trio.testing.MockClock) -> None:
    class SlowStore(UnreliableStore):
        async def load(self, ends: Any) -> Any:
            loading.set()
            chains = await super().load(ends)
            await trio.sleep(0.3)
            return chains

    loading = trio.Event()
    heard: dict[str, list[str]] = {}
    store = SlowStore(MemoryStore(), tape=True)
    async with tight(heard_by(heard), store=store, max_active=1) as swarm:
        hold_back(swarm)
        root = await swarm.spawn("root go")
        kids = await root.spawn_many([f"child {number}" for number in range(8)], name="kid")
        await kids[4].send("before")
        loading = trio.Event()
        go_on(swarm)
        await loading.wait()
        assert kids[4]._node is None
        await kids[4].send("meanwhile")
        await kids[5].send("meanwhile")
        assert kids[4]._node is None
        await root.wait()
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)
    assert heard["child 4"] == ["child 4", "before", "meanwhile"]
    assert heard["child 5"] == ["child 5", "meanwhile"]


async def test_rows_with_mail_are_ended_with_all_their_records(autojump_clock: trio.testing.MockClock) -> None:
    store = taped_store()
    async with tight(heard_by({}), store=store, max_active=1) as swarm:
        hold_back(swarm)
        root = await swarm.spawn("root go")
        kids = await root.spawn_many([f"child {number}" for number in range(20)], name="kid")
        for kid in kids[5:]:
            await kid.send(f"to {kid.id}")
        await kids[7].cancel()
        with pytest.raises(ClosedError, match=r"kid.9 is closed"):
            await kids[7].send("late")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(root.cancel)
            await trio.testing.wait_all_tasks_blocked(0.0)
            with pytest.raises(ClosedError, match=r"kid.21 is closed"):
                await kids[19].send("late")
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)
        assert not swarm._runtime.slots.rows.letters
        assert not swarm._runtime.residence.row_mail._behind
    await check_heads(store)
    sessions = await sessions_in(store)
    assert {sessions[kid.id].status for kid in kids} == {"closed"}
    assert not any(session.unread for session in sessions.values())


def siblings(heard: Counter[tuple[str, str]], count: int) -> Any:
    """Return a script whose root makes ``count`` children, each of which writes to three that come later."""

    def root(c: Conversation) -> Any:
        if c.steps == 0:
            agents = [{"prompt": f"child {number}", "name": "kid"} for number in range(count)]
            return reply_calls(
                ("spawn_agents", {"agents": agents}),
                ("send_message", {"to": f"kid.{count}", "text": "from the root"}),
            )
        return reply_text("end")

    def child(c: Conversation) -> Any:
        row = int(c.task.split()[1])
        if c.steps == 0:
            for line in c.messages[0].parts[0].text.splitlines()[1:]:
                heard[c.task, line] += 1
            calls = [
                ("send_message", {"to": f"kid.{row + 2 + step}", "text": f"from {row}"})
                for step in (3, 5, 7)
                if row + 2 + step < count + 2
            ]
            if calls:
                return reply_calls(*calls)
        return late(1, f"done {[each.content for each in c.results if type(each) is ToolResult]}")

    return by_task(root=root, child=child)


def mails(batches: Any) -> Counter[tuple[int, str]]:
    """Count the mails that others wrote, by who got them."""
    found: Counter[tuple[int, str]] = Counter()
    for batch in batches:
        for record in batch.records:
            for fact in decode_facts(record.facts):
                if isinstance(fact, MailArrived) and fact.kind == "text":
                    found[record.agent, fact.text] += 1
    return found


async def test_a_crash_at_any_batch_loses_no_mail_to_a_row_and_doubles_none(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = taped_store()
    count = 14
    async with tight(siblings(Counter(), count), store=store, max_active=2) as swarm:
        swarm._runtime.journal.limits = TINY
        await (await swarm.spawn("root go")).wait()
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)
    await check_heads(store)
    wanted = {(row + 2 + step, f"from {row}") for row in range(count) for step in (3, 5, 7) if row + step < count}
    wanted.add((count, "from the root"))
    assert mails(store.batches) == Counter(wanted)
    for cut in range(2, len(store.batches) + 1):
        again = await store.as_of(cut)
        held, heads = await tail_heads(again, (await again.statistics()).heads_seq)
        for head in await again.heads():  # up to heads_seq all are true
            if head.agent not in held.last_seq:
                assert head.last_seq == (await sessions_in(again))[head.agent].last_seq
        assert {head.agent for head in heads.values()} <= {*held.last_seq, 1}
        async with tight(siblings(Counter(), count), store=again, max_active=2) as swarm:
            swarm._runtime.journal.limits = TINY
            swarm._runtime.unresumed.max_shown = 2
            for agent in await swarm.resume_all():
                await agent.wait()
            made = swarm._runtime.next_agent - 1
            check_all_is_given_back(swarm)
            await check_store_holds_the_live_state(swarm)
        await check_heads(again)
        assert mails(again.batches) == (Counter(wanted) if made else Counter())
        assert not any(session.unread for session in (await sessions_in(again)).values())


async def test_heads_of_rows_that_cannot_be_read_are_asked_for_again(autojump_clock: trio.testing.MockClock) -> None:
    class Unreadable(UnreliableStore):
        failures = 0

        async def heads(self, **options: Any) -> list[Head]:
            if self.failures:
                self.failures -= 1
                raise StoreError("not now")
            return await super().heads(**options)

    store = Unreadable(MemoryStore(), tape=True)
    async with tight(heard_by({}), store=store, max_active=1) as swarm:
        hold_back(swarm)
        root = await swarm.spawn("root go")
        kids = await root.spawn_many([f"child {number}" for number in range(8)], name="kid")
        await kids[7].send("x")
        store.failures = 3
        await swarm.flush()
        assert not store.failures
        assert not swarm.statistics().store_trouble
        await check_heads(store)
        go_on(swarm)


async def test_mail_in_the_group_that_made_the_row_is_in_its_head(autojump_clock: trio.testing.MockClock) -> None:
    store = taped_store()
    limits = JournalLimits(heads_records=1)

    def root(c: Conversation) -> Any:
        if c.steps == 0:
            agents = [{"prompt": f"child {number}", "name": "kid"} for number in range(9)]
            return reply_calls(
                ("spawn_agents", {"agents": agents}),
                *[("send_message", {"to": f"kid.{agent}", "text": f"to {agent}"}) for agent in (8, 8, 9, 10)],
            )
        return late(5, "end")

    with pytest.raises(KeyError):
        async with tight(by_task(root=root, child=[late(50, "x")]), store=store, max_active=1) as swarm:
            hold_back(swarm)
            swarm._runtime.journal.limits = limits
            await swarm.spawn("root go")
            await trio.sleep(3)
            assert 8 not in swarm._runtime.nodes
            raise KeyError
    heads = await check_heads(store)
    assert [head.status for head in heads] == ["running"] + ["pending"] * 9
    sessions = await sessions_in(store)
    assert [mail.text for mail in sessions[8].unread] == ["child 6", "to 8", "to 8"]

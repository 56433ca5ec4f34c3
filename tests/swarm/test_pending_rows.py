"""Agents that wait for their first slot outside of memory: who addresses one cannot tell, and their order holds."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

import nanotrio
from nanotrio.errors import ClosedError, UsageError
from nanotrio.fact_form import birth_encoder, encode_facts
from nanotrio.messages import ToolResult
from nanotrio.models.scripted import Conversation
from nanotrio.records import Head, MailArrived, Spawned
from nanotrio.swarm.rows import RowKind, Rows
from tests.swarm.test_residence import tight
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


def test_rows_are_found_taken_and_passed_whatever_the_order_of_their_ids() -> None:
    chance = random.Random(5)
    rows, model = Rows(), []
    kinds = [RowKind(1, "kid", 7), RowKind(2, "kid", 7), RowKind(1, "dog", 8)]
    agent = 100_000
    ids = {agent}
    for _ in range(20_000):
        match chance.randrange(5):
            case 0 | 1 | 2:
                agent = chance.choice((agent + 2, agent + 3)) if chance.random() < 0.999 else max(ids) - 20_001
                if agent not in ids:
                    ids.add(agent)
                    kind = chance.choice(kinds)
                    rows.push(agent, agent * 10, kind)
                    model.append([agent, agent * 10, kind])
            case 3 if model:
                index = chance.randrange(len(model))
                if model[index][1]:
                    place = rows.find(model[index][0])
                    assert place == rows.at + index
                    rows.take(place)
                    model[index][1] = 0
            case _ if model:
                assert rows.peek(rows.at) == (model[0][0], not model[0][1])
                if model[0][1]:
                    rows.take(rows.at)
                rows.pass_over(rows.at)
                del model[0]
        assert (rows.waiting, rows.left) == (len(model), sum(bool(each[1]) for each in model)) or agent % 50
    more = Rows()
    more.push(7, 70, kinds[2])
    more.push(9, 90, kinds[0])
    rows.extend(more)
    model += [[7, 70, kinds[2]], [9, 90, kinds[0]]]
    assert [rows.find(each[0]) - rows.at for each in model if each[1]] == [n for n, each in enumerate(model) if each[1]]
    assert rows.counts() == Counter(each[2].parent for each in model if each[1])
    assert rows.below(1) == [each[0] for each in model if each[1] and each[2].parent == 1]
    assert rows.named(1, "dog") == [each[0] for each in model if each[1] and each[2] is kinds[2]]
    rows.clear()
    assert (rows.waiting, rows.left, rows.find(agent)) == (0, 0, -1)


@pytest.mark.parametrize("size", [1, 23, 24, 255, 256, 65_535, 65_536])
def test_a_row_is_encoded_as_any_record_is(size: int) -> None:
    spawned = Spawned(3, 1, 2, "é.77", 912_345)
    prompt = "ü" + "x" * (size - 1)
    assert birth_encoder(spawned)("é.77", prompt) == encode_facts((spawned, MailArrived("prompt", 3, prompt)))


SCRIPT = by_task(root=[reply_text("ok")], child=lambda c: late(1, f"done {c.task} {len(c.messages)}"))


async def test_pending_agents_beyond_a_bound_are_rows_with_true_heads_and_run_in_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = taped_store()
    asked: list[str] = []

    def child(c: Conversation) -> Any:
        asked.append(c.task)
        return late(1, "done")

    async with tight(by_task(root=[reply_text("ok")], child=child), store=store, max_active=2) as swarm:
        root = await swarm.spawn("root go")
        kids = await root.spawn_many([f"child {number}" for number in range(30)], name="kid")
        assert swarm.statistics().pending >= 28
        assert swarm.statistics().resident < 10
        heads = {head.agent: head for head in await store.heads()}
        for agent, session in (await sessions_in(store)).items():
            if agent > 6:
                assert heads[agent] == msgspec.structs.replace(session.head(), model="scripted/test")
        view = kids[29].view()
        assert (view.status, view.task, view.waiting_for, view.name) == ("pending", "child 29", "a slot", "kid.31")
        assert swarm.agent("kid.31").view().name == "kid.31"
        assert swarm.agent(31).view().status == "pending"
        await root.wait()
        places = [int(task.split()[1]) for task in asked]
        assert all(abs(place - number) <= 1 for number, place in enumerate(places)), "two start at a time"
        assert {kid.view().outcome for kid in kids} == {"completed"}
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


async def test_a_row_that_is_cancelled_comes_in_and_all_others_keep_their_places(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked: list[str] = []

    def child(c: Conversation) -> Any:
        asked.append(f"{c.task} {len(c.first.parts[0].text.splitlines())}")
        return late(1, "done")

    async with tight(by_task(root=[reply_text("ok")], child=child), max_active=1) as swarm:
        swarm._runtime.slots.ahead = 0  # nobody is brought in but who is addressed
        root = await swarm.spawn("root go")
        await trio.sleep(1)
        kids = await root.spawn_many([f"child {number}" for number in range(10)], name="kid")
        await kids[7].send("hello")
        assert kids[7]._node is None
        await kids[5].cancel()
        assert kids[5].view().status == "closed"
        with pytest.raises(ClosedError):
            await kids[5].send("x")
        with pytest.raises(UsageError, match="has not ended a turn"):
            await kids[8].fork()
        swarm._runtime.slots.ahead = 8
        swarm._runtime.residence.stir()
        await root.wait()
        assert [line.split()[1] for line in asked] == ["0", "1", "2", "3", "4", "6", "7", "8", "9"]
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


async def test_who_waits_for_a_row_is_told_when_it_has_ended(autojump_clock: trio.testing.MockClock) -> None:
    async with tight(SCRIPT, max_active=1) as swarm:
        root = await swarm.spawn("root go")
        kids = await root.spawn_many([f"child {number}" for number in range(10)], name="kid")
        with trio.move_on_after(0.5) as scope:
            await kids[9].wait()
        assert scope.cancelled_caught
        assert (await kids[9].wait()).result == "done child 9 1"
        assert not swarm._runtime.residence.waiters


async def test_tools_reach_rows_in_the_reply_that_made_them(autojump_clock: trio.testing.MockClock) -> None:
    told: list[str] = []

    def root(c: Conversation) -> Any:
        if c.steps == 0:
            agents = [{"prompt": f"child {number}", "name": "kid" if number else "one"} for number in range(8)]
            return reply_calls(
                ("spawn_agents", {"agents": agents}),
                ("send_message", {"to": "kid.9", "text": "hello"}),
                ("send_message", {"to": "one", "text": "hello"}),
                ("send_message", {"to": "kid", "text": "hello"}),
                ("cancel_agent", {"id": "kid.8"}),
                ("list_agents", {}),
            )
        if c.steps == 1:
            return reply_calls(("wait_agents", {"ids": ["kid.9"]}))
        told[:] = [part.content for message in c.messages for part in message.parts if isinstance(part, ToolResult)]
        return reply_text("end")

    def child(c: Conversation) -> Any:
        return late(1, f"done {c.task} {len(c.messages[0].parts[0].text.splitlines())}")

    async with tight(by_task(root=root, child=child), 1, max_active=1) as swarm:
        await (await swarm.spawn("root go")).wait()
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)
    assert told[1:3] == ["sent to kid.9", "sent to one.2"]
    assert told[3].startswith("7 agents are called 'kid': kid.3,")
    assert told[4] == "kid.8 is ended"
    assert "wait to be started" in told[5]
    assert told[6].startswith("kid.9 completed: done child 7")


@pytest.mark.parametrize("resident", [2, 1_000])
async def test_a_wide_tree_is_cancelled_whole_with_the_same_records(
    autojump_clock: trio.testing.MockClock, resident: int
) -> None:
    store = taped_store()
    async with tight(SCRIPT, resident, store=store, max_active=3) as swarm:
        root = await swarm.spawn("root go")
        other = await swarm.spawn("root other")
        kids = await root.spawn_many([f"child {number}" for number in range(400)], name="kid")
        mine = await other.spawn_many([f"child {number}" for number in range(5)], name="mine")
        await trio.sleep(0.5)
        outcome = await root.cancel()
        assert outcome.status == "cancelled" or root.view().status == "closed"
        assert {(kid.view().status, kid.view().outcome) for kid in kids} == {("closed", "cancelled")}
        for each in mine:
            assert (await each.wait()).status == "completed"
        await other.wait()
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)
    sessions = await sessions_in(store)
    assert {sessions[kid.id].status for kid in kids} == {"closed"}
    assert not any(sessions[kid.id].owes_report for kid in kids)


async def test_rows_below_one_who_hands_in_its_result_are_ended_and_counted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def boss(c: Conversation) -> Any:
        if c.steps == 0:
            return reply_calls(("spawn_agents", {"agents": [{"prompt": f"child {n}"} for n in range(40)]}))
        return reply_calls(("submit_result", {"result": 1}))

    async with tight(by_task(root=[reply_text("ok")], boss=boss, child=SCRIPT), max_active=1) as swarm:
        root = await swarm.spawn("root go")
        boss_agent = await root.spawn("boss x")
        outcome = await boss_agent.wait()
        assert outcome.result == 1
        assert outcome.survivors[-1].startswith("and ")
        await root.wait()
        assert swarm.statistics().pending == 0
        assert (await swarm.find(40)).view().outcome == "cancelled"
        check_all_is_given_back(swarm)


async def test_leaving_by_an_exception_leaves_rows_in_the_store_and_resume_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = taped_store()
    with pytest.raises(KeyError):
        async with tight(SCRIPT, store=store, max_active=2) as swarm:
            root = await swarm.spawn("root go")
            kids = await root.spawn_many([f"child {number}" for number in range(50)], name="kid")
            await trio.sleep(0.5)
            batches = len(store.batches)
            raise KeyError
    written = [record for batch in store.batches[batches:] for record in batch.records]
    assert not written, "the interrupted write nothing"
    assert kids[49].view().status == "interrupted"
    for cut in (batches, len(store.batches), 4):
        again = await store.as_of(cut)
        async with tight(SCRIPT, store=again, max_active=2) as swarm:
            for agent in await swarm.resume_all():
                await agent.wait()
            assert swarm._runtime.next_agent == (52 if cut > 4 else swarm._runtime.next_agent)
            check_all_is_given_back(swarm)
            await check_store_holds_the_live_state(swarm)
        assert {head.outcome for head in await again.heads()} == {"completed"}


async def test_thousands_of_pending_agents_of_a_store_are_numbers_until_their_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = taped_store()
    with pytest.raises(KeyError):
        async with opened(SCRIPT, store=store, max_active=2) as swarm:
            root = await swarm.spawn("root go")
            await root.spawn_many([f"child {number}" for number in range(3_000)], name="kid")
            raise KeyError
    async with opened(SCRIPT, store=store, max_active=500) as swarm:
        assert 1_000 < len(swarm.agents()) < 1_100
        (root,) = await swarm.resume_all()
        assert swarm.statistics().resident < 1_700
        assert swarm.statistics().pending > 2_400
        await root.wait()
        check_all_is_given_back(swarm)
    assert {head.outcome for head in await store.heads()} == {"completed"}


async def test_a_crash_at_any_batch_of_a_wide_tree_loses_no_row_and_starts_none_twice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = taped_store()
    async with tight(SCRIPT, store=store, max_active=2) as swarm:
        root = await swarm.spawn("root go")
        await root.spawn_many([f"child {number}" for number in range(12)], name="kid")
        await root.wait()
    for cut in range(2, len(store.batches) + 1):
        again = await store.as_of(cut)
        async with tight(SCRIPT, store=again, max_active=2) as swarm:
            await swarm.resume_all()
            made = swarm._runtime.next_agent - 1
        heads: list[Head] = await again.heads()
        assert len(heads) == made
        assert {head.outcome for head in heads} == {"completed"}
        assert {head.turn for head in heads if head.parent} <= {1}


async def test_a_root_that_waits_for_all_its_children_need_not_have_them_in_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    told: list[str] = []

    def root(c: Conversation) -> Any:
        if c.steps == 0:
            return reply_calls(
                ("spawn_agents", {"agents": [{"prompt": f"child {n}", "name": "kid"} for n in range(1_500)]}),
                ("wait_agents", {}),
            )
        told.extend(result.content for result in c.results)
        return reply_text("end")

    most = 0
    script = by_task(root=root, child=lambda c: late(1, f"done {c.task}"))
    limits = nanotrio.Limits(max_idle=5, max_result_bytes=1_000_000)
    async with tight(script, 5, limits=limits, max_active=10) as swarm:
        agent = await swarm.spawn("root go")
        await trio.sleep(0.5)
        most = swarm.statistics().resident
        await agent.wait()
    assert most < 1_300
    assert [line for line in told[1].splitlines() if "completed" not in line] == []
    assert len(told[1].splitlines()) == 1_500


@pytest.mark.parametrize("shown", [0, 1_024])
async def test_a_pending_agent_whose_children_ended_still_counts_them_after_a_restart(
    shown: int, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanotrio.swarm.unresumed.MAX_SHOWN", shown)
    store = taped_store()
    script = by_task(root=[late(100)], child=[reply_text("done")])
    with trio.move_on_after(10):
        async with tight(script, 0, store=store, max_active=1) as swarm:
            root = await swarm.spawn("root go")
            kids = await root.spawn_many([f"child {number}" for number in range(4)])
            below = await kids[-1].spawn("child below")
            await below.cancel()
            await trio.sleep_forever()
    async with tight(script, 0, store=store, max_active=1) as swarm:
        (root,) = await swarm.resume_all()
        await root.wait()
        await swarm.flush()
        (head,) = await store.heads(agents=[kids[-1].id])
        assert (head.children, head.status) == (1, "idle")
        check_all_is_given_back(swarm)

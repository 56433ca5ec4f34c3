"""Agents leave memory and come back: who addresses one cannot tell, and nothing is counted or paid twice."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import trio
import trio.testing

import nanotrio
from nanotrio.errors import ClosedError, LimitError, UnknownAgentError
from nanotrio.limits import Limits
from nanotrio.messages import ToolResult
from nanotrio.models.scripted import Conversation
from nanotrio.swarm.node import Node
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


@asynccontextmanager
async def tight(script: Any, resident: int = 2, **options: Any) -> AsyncIterator[nanotrio.Swarm]:
    limits = options.pop("limits", Limits(max_idle=resident))
    async with opened(script, limits=limits, **options) as swarm:
        swarm._runtime.slots.max_resident = resident
        yield swarm


async def all_leave(swarm: nanotrio.Swarm) -> None:
    """Wait until as many left as can."""
    with trio.fail_after(10):
        while swarm._runtime.residence.surplus > 0:  # noqa: ASYNC110 - the virtual clock jumps
            await trio.sleep(0.1)


def child(conversation: Conversation) -> Any:
    return reply_text(f"done {conversation.task} {len(conversation.messages)}")


SCRIPT = by_task(root=[reply_text("ok")], child=child)


async def test_only_max_idle_finished_agents_stay_in_memory_and_the_youngest_do(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with tight(SCRIPT, 3) as swarm:
        root = await swarm.spawn("root go")
        for number in range(10):
            await (await root.spawn(f"child {number}", name="kid")).wait()
        await root.wait()
        await all_leave(swarm)
        assert sorted(swarm._runtime.nodes) == [1, 10, 11], "the root leaves last"
        assert not swarm._runtime.cold or all(agent in swarm._runtime.journal.due for agent in swarm._runtime.cold)
        await swarm.flush()
        assert not swarm._runtime.cold


async def test_mail_wakes_an_agent_that_left_and_it_remembers(autojump_clock: trio.testing.MockClock) -> None:
    heard: list[int] = []

    def kid(c: Conversation) -> Any:
        heard.append(len(c.messages))
        return reply_text("done")

    async with tight(by_task(root=[reply_text("ok")], child=kid), 1) as swarm:
        root = await swarm.spawn("root go")
        await root.spawn_many([f"child {number}" for number in range(5)])
        await root.wait()
        await all_leave(swarm)
        gc.collect()
        assert list(swarm._runtime.nodes) == [1]
        assert swarm._runtime.departed.get(2) is None
        heard.clear()
        found = await swarm.find("agent.2")
        assert found.view().status == "idle"
        await found.send("and now?")
        outcome = await found.wait()
        assert (outcome.turn, heard) == (2, [3])
        await root.wait()
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


async def test_a_handle_of_an_agent_that_left_stays_true(autojump_clock: trio.testing.MockClock) -> None:
    async with tight(SCRIPT, 1) as swarm:
        root = await swarm.spawn("root go")
        kids = await root.spawn_many([f"child {number}" for number in range(4)])
        await root.wait()
        await all_leave(swarm)
        assert list(swarm._runtime.nodes) == [1]
        assert [kid.view().status for kid in kids] == ["idle"] * 4
        assert swarm.agent(kids[0].id)._node is kids[0]._node, "there is never a second node of one agent"
        await kids[1].send("more")
        assert (await kids[1].wait()).turn == 2
        assert kids[1].view().turn == 2
        await root.cancel()
        assert {kid.view().status for kid in kids} == {"closed"}
        for kid in kids:
            with pytest.raises(ClosedError, match="closed"):
                await kid.send("too late")


async def test_tools_reach_agents_that_left_by_name_id_and_parent(autojump_clock: trio.testing.MockClock) -> None:
    told: list[str] = []

    def root(c: Conversation) -> Any:
        if c.steps == 0:
            return reply_calls(
                ("spawn_agents", {"agents": [{"prompt": f"child {n}", "name": "kid"} for n in range(6)]})
            )
        if c.steps == 1:
            return reply_calls(("wait_agents", {}))
        if c.steps == 2:
            return late(5, "rest")
        if c.steps == 3:
            return reply_calls(
                ("send_message", {"to": "kid.2", "text": "again"}),
                ("wait_agents", {"ids": ["kid.3", "4"]}),
                ("cancel_agent", {"id": "kid.5"}),
                ("send_message", {"to": "kid.77", "text": "again"}),
                ("send_message", {"to": "dog.4", "text": "again"}),
                ("list_agents", {}),
            )
        if c.steps == 4:
            return reply_calls(("wait_agents", {"ids": ["kid.2"]}), ("send_message", {"to": "kid.5", "text": "x"}))
        results = [part.content for message in c.messages for part in message.parts if isinstance(part, ToolResult)]
        told[:] = results[2:]  # without those of the turn before
        return reply_text("end")

    async with tight(by_task(root=root, child=child), 1) as swarm:
        agent = await swarm.spawn("root go")
        await agent.wait()
        await all_leave(swarm)
        await agent.send("go on")
        await agent.wait()
        check_all_is_given_back(swarm)
    assert told[0] == "sent to kid.2"
    assert told[1] == "kid.3 completed: done child 1 1\nkid.4 completed: done child 2 1"
    assert told[2] == "kid.5 is ended; its last text: done child 3 1"
    assert [text.startswith("no agent 'kid.77'") for text in told[3:4]] == [True]
    assert told[4].startswith("no agent 'dog.4'")
    assert "and 6 more" in told[5] or "kid." in told[5]
    assert told[6] == "kid.2 completed: done child 0 3"
    assert "closed" in told[7]


async def test_caps_on_children_count_those_that_left_also_after_a_restart(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = taped_store()
    limits = Limits(max_idle=1, max_children=6, max_total=8)
    async with tight(SCRIPT, limits=limits, store=store) as swarm:
        root = await swarm.spawn("root go")
        await root.spawn_many([f"child {number}" for number in range(5)])
        await root.wait()
        await all_leave(swarm)
        with pytest.raises(LimitError, match=r"max_children of agent\.1 is 6, and it has 5"):
            await root.spawn_many(["child a", "child b"])
    for cut in (len(store.batches), len(store.batches) - 1, 3):
        again = await store.as_of(cut)
        async with tight(SCRIPT, limits=limits, store=again) as swarm:
            root = await swarm.resume(1)
            await root.wait()
            made = swarm._runtime.next_agent - 2
            head = swarm._runtime.head_of(swarm._runtime.nodes[1])
            assert (head.children, head.descendants) == (made, made)
            grand = await swarm.find(2)
            await grand.spawn_many([f"child {number}" for number in range(8 - made)])
            await root.wait()
            with pytest.raises(LimitError, match=r"max_total of agent\.1 is 8: 8 were spawned below it"):
                await grand.spawn("child more")
            await swarm.flush()
            heads = await again.heads(agents=[1, 2])
            assert [(each.children, each.descendants) for each in heads] == [(made, 8), (8 - made, 0)]


async def test_what_an_agent_spent_is_charged_once_however_often_it_comes_and_goes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with tight(SCRIPT, 1, price=DEAR) as swarm:
        root = await swarm.spawn("root go", budget_usd=10)
        kids = [kid.id for kid in await root.spawn_many([f"child {number}" for number in range(4)])]
        await root.wait()
        for _ in range(3):
            await all_leave(swarm)
            gc.collect()
            for kid in kids:
                await (await swarm.find(kid)).send("again")
            await root.wait()
        node = swarm._runtime.nodes[1]
        assert node.ledger.settled == node.session.spent_nano
        spent = [(await swarm.find(kid)).view().spent_nano for kid in kids]
        own = node.session.spent_nano - sum(spent)
        assert own > 0
        check_all_is_given_back(swarm)


async def test_an_agent_that_left_is_forked_resumed_and_closed(autojump_clock: trio.testing.MockClock) -> None:
    async with tight(SCRIPT, 1) as swarm:
        root = await swarm.spawn("root go")
        await root.spawn_many([f"child {number}" for number in range(4)])
        await root.wait()
        await all_leave(swarm)
        gc.collect()
        fork = await swarm.fork(2)
        await fork.send("go on")
        assert (await fork.wait()).turn == 2
        assert (await swarm.resume("agent.3")).view().status == "idle"
        closed = await swarm.find(4)
        await closed.close()
        del closed
        await all_leave(swarm)
        gc.collect()
        assert 4 not in swarm._runtime.nodes
        with pytest.raises(ClosedError):
            await (await swarm.find(4)).send("x")
        opened_again = await swarm.resume(4)
        await opened_again.send("x")
        assert (await opened_again.wait()).turn == 2
        with pytest.raises(UnknownAgentError, match="await find"):
            swarm.agent(99)
        with pytest.raises(UnknownAgentError):
            await swarm.find(99)


async def test_a_message_that_was_not_read_goes_back_to_a_sender_that_left(
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: list[str] = []

    def sender(c: Conversation) -> Any:
        heard.append(c.last_text)
        return reply_calls(("send_message", {"to": "kid.2", "text": "hello"})) if c.steps == 0 else reply_text("sent")

    script = by_task(root=[reply_text("ok")], kid=[late(100)], sender=sender, other=[reply_text("ok")])
    async with tight(script, 1) as swarm:
        root = await swarm.spawn("root go")
        kid = await root.spawn("kid x", name="kid")
        author = await root.spawn("sender x")
        await author.wait()
        await (await root.spawn("other x")).wait()
        await (await root.spawn("other y")).wait()
        agent = author.id
        del author
        await all_leave(swarm)
        gc.collect()
        assert agent not in swarm._runtime.nodes
        await kid.cancel()
        await root.wait()
        with trio.fail_after(10):
            while not any("without reading" in text for text in heard):  # noqa: ASYNC110 - the virtual clock jumps
                await trio.sleep(0.1)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_hundred_generations_of_agents_hold_memory_for_a_few(kind: str, tmp_path: Path) -> None:
    count = 2_000
    others = WeakSet(each for each in gc.get_objects() if isinstance(each, Node))
    store = f"sqlite:{tmp_path / 's.db'}" if kind == "sqlite" else None
    async with tight(SCRIPT, 20, max_active=10, store=store) as swarm:
        root = await swarm.spawn("root go")
        most = 0
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal most
                while True:
                    runtime = swarm._runtime
                    durable = [
                        node for node in runtime.nodes.values() if node.session.last_seq <= runtime.journal.durable_seq
                    ]
                    most = max(most, len(durable))
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(watch)
            for start in range(0, count, 500):
                await root.spawn_many([f"child {start + number}" for number in range(500)])
            await root.wait()
            nursery.cancel_scope.cancel()
        await swarm.flush()
        gc.unfreeze()  # what was set aside, be it by this swarm or when it opened, is counted too
        gc.collect()
        nodes = sum(isinstance(each, Node) and each not in others for each in gc.get_objects())
        assert nodes <= 25
        assert most < 1_700, "those ahead in the queue"
        assert swarm._runtime.nodes[1].children_made == count


async def test_a_call_about_many_who_left_has_all_of_them_at_once(autojump_clock: trio.testing.MockClock) -> None:
    told: list[str] = []

    def root(c: Conversation) -> Any:
        if c.last_text == "wait for them" and not c.results:
            return reply_calls(("wait_agents", {"ids": [f"kid.{number}" for number in range(2, 6)]}))
        told.extend(result.content for result in c.results)
        return reply_text("end")

    with trio.fail_after(60):
        async with tight(by_task(root=root, child=child), 1) as swarm:
            agent = await swarm.spawn("root go")
            for number in range(6):
                await (await agent.spawn(f"child {number}", name="kid")).wait()
            await agent.wait()
            await all_leave(swarm)
            await agent.send("wait for them")
            with trio.move_on_after(30) as scope:
                await agent.wait()
            assert not scope.cancelled_caught
    assert len(told[-1].splitlines()) == 4

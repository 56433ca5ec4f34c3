"""Mail that a closing agent has not read goes back, also to senders out of memory, whenever the process dies."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

import nanotrio
from nanotrio.fact_form import decode_facts
from nanotrio.limits import Limits
from nanotrio.messages import text_of
from nanotrio.models.scripted import FREE, Conversation, ScriptedModel
from nanotrio.records import MailArrived, MailReturned
from nanotrio.session import Session
from nanotrio.stores import MemoryStore
from nanotrio.testing import assert_replays
from tests.swarm.worlds import (
    SlowToRead,
    by_task,
    check_all_is_given_back,
    check_store_holds_the_live_state,
    late,
    opened,
    reply_calls,
    reply_text,
    sessions_in,
)

BACK = "kid.2 closed without reading your message: hello"
NEAR_NONE = Limits(max_idle=1)


def writer(c: Conversation) -> Any:
    return reply_calls(("send_message", {"to": "kid.2", "text": "hello"})) if c.steps == 0 else reply_text("sent")


SCRIPT = by_task(root=[reply_text("ok")], kid=[late(100)], writer=writer, other=[reply_text("ok")])


async def cancel_one_with_mail_of_absent_senders(swarm: nanotrio.Swarm, *tools: Any, **options: Any) -> nanotrio.Agent:
    """Have agents write to a kid, leave memory, and then the kid cancelled; return the root."""
    root = await swarm.spawn("root go")
    kid = await root.spawn("kid x", name="kid")
    senders = [await root.spawn("writer x", tools=["send_message", *tools], **options) for _ in range(2)]
    for sender in senders:
        await sender.wait()
    ids = [sender.id for sender in senders]
    del senders, sender
    for _ in range(3):
        await (await root.spawn("other x")).wait()
    with trio.fail_after(10):
        while swarm._runtime.residence.surplus > 0:  # noqa: ASYNC110 - the virtual clock jumps
            await trio.sleep(0.1)
    gc.collect()
    assert not swarm._runtime.nodes.keys() & ids
    await kid.cancel()
    return root


async def all_rest(swarm: nanotrio.Swarm) -> None:
    runtime = swarm._runtime
    with trio.fail_after(1_000):
        while runtime.unfinished_roots or runtime.residence.owes:  # noqa: ASYNC110 - the virtual clock jumps
            await trio.sleep(1)


async def test_mail_goes_back_to_a_sender_out_of_memory_whenever_the_process_dies(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = SlowToRead(MemoryStore(), tape=True)
    store.seconds = 1
    async with opened(SCRIPT, store=store, limits=NEAR_NONE) as swarm:
        await (await cancel_one_with_mail_of_absent_senders(swarm)).wait()
    fates: Counter[str] = Counter()
    for cut in range(1, len(store.batches) + 1):
        crashed = await store.as_of(cut)
        async with opened(SCRIPT, store=crashed, limits=NEAR_NONE) as swarm:
            await swarm.resume_all()
            await all_rest(swarm)
            check_all_is_given_back(swarm)
            await check_store_holds_the_live_state(swarm)
        await assert_replays(crashed)
        sent = heard = returned = 0
        for record in await crashed.scan(0):
            for fact in decode_facts(record.facts):
                match fact:
                    case MailArrived("text", text="hello"):
                        sent += 1
                    case MailArrived("returned"):
                        assert fact.text == BACK
                        heard += 1
                    case MailReturned():
                        returned = sent
        sessions = await sessions_in(crashed)
        assert not any(session.unread for session in sessions.values()), f"killed after {cut}"
        assert heard == returned, f"killed after {cut} of {len(store.batches)} commits"
        fates["returned" if returned else "read"] += 1
    assert min(fates["returned"], fates["read"]) > 1


def heard_by(sessions: dict[int, Session]) -> list[str]:
    """Return what came back to the writers and was read by them."""
    texts = [text_of(message) for agent in (3, 4) for message in sessions[agent].messages]
    return [text for text in texts if text.startswith("[returned]")]


async def interrupted(*tools: Any, model: str = "scripted/test") -> SlowToRead:
    """Leave a swarm while mail is on its way back, and return its store."""
    store = SlowToRead(MemoryStore(), tape=True)
    store.seconds = 1
    with trio.move_on_after(1_000) as scope:
        async with opened(SCRIPT, store=store, limits=NEAR_NONE) as swarm:
            swarm._runtime.models[model] = ScriptedModel(SCRIPT, name=model, price=FREE)
            await cancel_one_with_mail_of_absent_senders(swarm, *tools, model=model)
            assert swarm._runtime.residence.owes
            scope.cancel()
            await trio.sleep_forever()
    store.seconds = 0
    return store


async def test_mail_that_was_on_its_way_back_as_the_swarm_was_left_comes_back_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = await interrupted()
    (kid,) = await store.heads(agents=[2])
    assert (kid.status, kid.unfinished) == ("closed", True)
    async with opened(SCRIPT, store=store, limits=NEAR_NONE) as swarm:
        await swarm.resume(1)
    assert heard_by(await sessions_in(store)) == [f"[returned] {BACK}"] * 2


async def test_one_that_is_resumed_before_its_mail_went_back_does_not_read_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = await interrupted()
    async with opened(SCRIPT, store=store, limits=NEAR_NONE) as swarm:
        kid = await swarm.resume(2)
        assert kid.view().status == "idle"
        await kid.send("go on")
        assert (await kid.wait()).turn == 2
    sessions = await sessions_in(store)
    assert heard_by(sessions) == [f"[returned] {BACK}"] * 2
    assert [text_of(message) for message in sessions[2].messages] == ["kid x", "go on", "late"]


async def test_mail_to_a_sender_whose_tool_is_missing_waits_in_the_store_until_the_tool_is_there(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    @nanotrio.tool
    async def rare() -> str:
        """Do what only some programs can."""
        return "done"

    store = await interrupted(rare)
    async with opened(SCRIPT, store=store, limits=NEAR_NONE) as swarm:
        await swarm.resume(1)
    assert "what kid.2 has not read cannot go back before its tree is resumed: " in caplog.text
    assert heard_by(await sessions_in(store)) == []
    async with opened(SCRIPT, store=store, limits=NEAR_NONE, tools=[rare]) as swarm:
        await swarm.resume(1)
    assert heard_by(await sessions_in(store)) == [f"[returned] {BACK}"] * 2


@pytest.mark.parametrize("model", ["openai-chat/without-a-key", "scripted/unregistered", "scripted:/no/such/file"])
async def test_mail_to_a_sender_whose_model_is_missing_does_not_keep_the_swarm_from_ending(
    model: str, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = await interrupted(model=model)
    with trio.fail_after(10):
        async with opened(SCRIPT, store=store, limits=NEAR_NONE) as swarm:
            await swarm.resume(1)
    assert "what kid.2 has not read cannot go back before its tree is resumed: " in caplog.text
    async with opened(SCRIPT, store=store, limits=NEAR_NONE) as swarm:
        swarm._runtime.models[model] = ScriptedModel(SCRIPT, name=model, price=FREE)
        await swarm.resume(1)
    assert heard_by(await sessions_in(store)) == [f"[returned] {BACK}"] * 2

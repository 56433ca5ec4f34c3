"""Seeded faults: the same seed has the same faults, and a swarm gets through them."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import trio

import nanotrio
from nanotrio.errors import ModelError, StoreError
from nanotrio.models import Conversation, ScriptedModel, reply_calls, reply_text
from nanotrio.stores import MemoryStore, this_process
from nanotrio.stores.store import Batch
from nanotrio.testing import UnreliableModel, UnreliableStore, assert_each_call_answered, assert_prefix, unreliable_tool
from tests import counts


async def outcomes(model: UnreliableModel) -> str:
    """What came of twenty attempts: a letter each."""
    codec = model.codec
    body = codec.join(codec.encode_head(model.name, "", (), 100), [])
    body += b'\n["user",[["text","hi"]],""]'
    said = ""
    for _ in range(20):
        try:
            await model.attempt(body, None, idle_seconds=1)
        except ModelError as error:
            said += "?" if not error.is_transient else "c" if error.usage else "f"
        else:
            said += "."
    return said


async def test_a_model_fails_and_is_cut_off_by_its_seed(autojump_clock: trio.testing.MockClock) -> None:
    def model(seed: int) -> UnreliableModel:
        inner = ScriptedModel(lambda _: reply_text("hello"))
        return UnreliableModel(inner, seed, fail=0.3, cut=0.3, delay_seconds=2.0)

    first = await outcomes(model(1))
    assert set(first) == {"c", "f", "."}
    assert await outcomes(model(1)) == first
    assert await outcomes(model(2)) != first
    assert trio.current_time() > 10


async def test_the_error_of_a_store_that_is_broken_for_long_does_not_grow() -> None:
    store = UnreliableStore(MemoryStore())
    store.error = StoreError("the disk is full")
    lengths = set()
    for number in range(1, 6):
        with pytest.raises(StoreError):
            await store.commit(Batch(number, []))
        lengths.add(len(list(traceback.walk_tb(store.error.__traceback__))))
    assert len(lengths) == 1


async def test_a_store_fails_and_loses_answers_by_its_seed(autojump_clock: trio.testing.MockClock) -> None:
    async def run(seed: int) -> tuple[str, int]:
        inner = MemoryStore()
        store = UnreliableStore(inner, seed, fail=0.3, lose=0.3, delay_seconds=1.0)
        await store.acquire(this_process())
        said = ""
        for number in range(1, 21):
            try:
                await store.commit(Batch(number, []))
            except StoreError:
                said += "x"
            else:
                said += "."
        return said, (await inner.statistics()).commits

    first = await run(1)
    assert await run(1) == first
    assert first[0].count(".") < first[1] < 20  # some were made whose answer was lost, and some were not made


@pytest.mark.parametrize("seed", range(max(3, counts.FAULTS // 10)))
async def test_a_swarm_gets_through_all_of_them_at_once(seed: int, autojump_clock: trio.testing.MockClock) -> None:
    ran: list[str] = []

    async def note(text: str) -> str:
        """Note. text: what to note."""
        ran.append(text)
        return "noted"

    def script(conversation: Conversation) -> Any:
        if conversation.task == "root":
            if conversation.steps == 0:
                return reply_calls(("spawn_agents", {"agents": [{"prompt": f"child {n}"} for n in range(10)]}))
            return reply_text("end")
        return reply_calls(("note", {"text": conversation.task})) if conversation.steps == 0 else reply_text("done")

    inner = MemoryStore()
    store = UnreliableStore(inner, seed, fail=0.2, lose=0.2, delay_seconds=0.1)
    model = UnreliableModel(ScriptedModel(script), seed, fail=0.1, cut=0.1, delay_seconds=0.1)
    tools = [unreliable_tool(note, seed, fail=0.2, lose=0.2, delay_seconds=0.1)]
    async with nanotrio.open_swarm(store=store, model=model, tools=tools, environment={}) as swarm:
        outcome = await (await swarm.spawn("root")).wait()
    assert outcome.status in {"completed", "failed"}  # six transient errors in a row end a turn
    assert store.refused
    assert len(ran) == len(set(ran))
    await assert_prefix(inner)
    await assert_each_call_answered(inner)

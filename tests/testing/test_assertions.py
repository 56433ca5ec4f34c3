"""The assertions of the crash kit hold of what is right, and find what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import nanotrio
from nanotrio.errors import UsageError
from nanotrio.fact_form import encode_facts
from nanotrio.messages import ToolCall, Usage
from nanotrio.models import Conversation, ScriptedModel, reply_calls, reply_text
from nanotrio.records import (
    ChildEnded,
    Fact,
    Head,
    Record,
    Replied,
    Settled,
    Spawned,
    ToolEnded,
    ToolIntended,
    TurnEnded,
    TurnStarted,
)
from nanotrio.stores import MemoryStore, StoreCare, open_store, this_process
from nanotrio.stores.store import Batch
from nanotrio.testing import (
    Calls,
    EffectsLog,
    assert_each_call_answered,
    assert_groups_whole,
    assert_no_effect_twice,
    assert_prefix,
    assert_replays,
    assert_results_kept,
    log_effects,
    read_calls,
)
from nanotrio.turn import INTERRUPTED


async def store_of(
    *records: tuple[int, tuple[Fact, ...]], heads: tuple[Head, ...] = (), heads_seq: int = 0
) -> MemoryStore:
    """A store with these records, each an agent and its facts."""
    store = MemoryStore()
    await store.acquire(this_process())
    last: dict[int, int] = {}
    made = []
    for seq, (agent, facts) in enumerate(records, 1):
        made.append(Record(seq, last.get(agent, 0), agent, 1_000_000 + seq, encode_facts(facts)))
        last[agent] = seq
    await store.commit(Batch(1, made, heads, heads_seq))
    return store


def reply(*call_ids: str) -> Replied:
    parts = tuple([ToolCall(call_id, "note", "{}") for call_id in call_ids])
    return Replied("scripted/test", parts, "tool_use", Usage(), 0)


SPAWNED = Spawned(0, 1, 0, "root.1", 0)


async def a_real_store() -> MemoryStore:
    """What a parent, its child and their tools write."""
    store = MemoryStore()

    async def note(text: str) -> str:
        """Note. text: what to note."""
        return text

    def script(conversation: Conversation) -> Any:
        if conversation.task == "root":
            asked = [
                ("spawn_agent", {"prompt": "child"}),
                ("note", {"text": "a"}),
                ("send_message", {"to": "agent.2", "text": "b"}),
            ]
            return reply_calls(*asked) if conversation.steps == 0 else reply_text("end")
        return reply_text("done")

    async with nanotrio.open_swarm(store=store, model=ScriptedModel(script), tools=[note], environment={}) as swarm:
        await swarm.spawn("root")
        await swarm.flush()
    return store


async def test_all_hold_of_what_a_swarm_wrote() -> None:
    store = await a_real_store()
    calls = await read_calls(store)
    assert len(calls.ended) == 3
    await assert_prefix(store, max(calls.agents))
    await assert_groups_whole(store)
    await assert_replays(store)
    await assert_each_call_answered(store)
    await assert_results_kept(store, calls)
    (note,) = calls.intended
    await assert_no_effect_twice(store, EffectsLog({note: 1}, {note: 1}))


async def test_a_lost_record_is_found() -> None:
    store = await a_real_store()
    last = (await store.statistics()).records
    with pytest.raises(
        AssertionError, match=f"record {last + 1} was acknowledged as durable, and the log ends at {last}"
    ):
        await assert_prefix(store, last + 1)


class Lossy:
    """A driver that passes over record 3, and says nothing."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.statistics = store.statistics
        self.heads = store.heads

    async def scan(self, after_seq: int, *, limit: int = 4096) -> list[Record]:
        return [record for record in await self._store.scan(after_seq, limit=limit) if record.seq != 3]


async def test_a_gap_is_found() -> None:
    lossy: Any = Lossy(await a_real_store())
    with pytest.raises(AssertionError, match="record 4 follows record 2"):
        await assert_prefix(lossy)


async def test_a_head_that_is_not_what_the_records_make_is_found() -> None:
    store = await a_real_store()
    (first, *_) = await store.heads()
    await store.commit(Batch(1_000, [], [msgspec.structs.replace(first, spent_nano=5)]))
    with pytest.raises(AssertionError, match="spent_nano=5"):
        await assert_replays(store)
    await store.commit(Batch(1_001, [], [msgspec.structs.replace(first, last_seq=1)]))
    with pytest.raises(AssertionError, match=f"the head of {first.name} names record 1"):
        await assert_prefix(store)


async def test_a_child_that_settled_and_was_not_told_of_is_found() -> None:
    child = (Spawned(1, 1, 1, "kid.2", 0), TurnStarted(1, 1), TurnEnded("completed", "", "", "x"))
    told = ChildEnded(2, "kid.2", 1, "completed", "", "", "x", Usage(), 0)
    await assert_groups_whole(await store_of((1, (SPAWNED,)), (2, child), (2, (Settled(),)), (1, (told,))))
    with pytest.raises(AssertionError, match=r"kid\.2 settled in record 3, and its parent was not told"):
        await assert_groups_whole(await store_of((1, (SPAWNED,)), (2, child), (2, (Settled(),))))
    former = msgspec.structs.replace(told, turn=0)
    with pytest.raises(AssertionError, match=r"kid\.2 settled in record 4, and its parent was not told"):
        await assert_groups_whole(await store_of((1, (SPAWNED,)), (1, (former,)), (2, child), (2, (Settled(),))))


async def test_a_parent_may_be_told_in_a_record_before_the_one_that_settles_its_child() -> None:
    # both are of one group, in which a record is numbered when the first fact of it is there
    begun = (Spawned(1, 1, 1, "kid.2", 0), TurnStarted(1, 1))
    told = ChildEnded(2, "kid.2", 1, "completed", "", "", "x", Usage(), 0)
    end = (TurnEnded("completed", "", "", "x"), Settled())
    await assert_groups_whole(await store_of((1, (SPAWNED,)), (2, begun), (1, (told,)), (2, end)))


async def test_a_call_with_no_result_or_two_is_found() -> None:
    begun = (1, (SPAWNED, TurnStarted(1, 1), reply("a")))
    await assert_each_call_answered(await store_of(begun))
    with pytest.raises(AssertionError, match=r"note \(1, 'a'\) has no result, and the turn is over"):
        await assert_each_call_answered(await store_of(begun, (1, (TurnEnded("failed", "", "", ""),))))
    with pytest.raises(AssertionError, match=r"\(1, 'a'\) has 2 results"):
        await assert_each_call_answered(await store_of(begun, (1, (ToolEnded("a", "x"), ToolEnded("a", "y")))))


@pytest.mark.parametrize(
    ("facts", "log", "words"),
    [
        ((ToolIntended("a"),), EffectsLog({(1, "a"): 2}, {}), "was run 2 times"),
        ((), EffectsLog({(1, "a"): 1}, {}), "its intent is not in the store"),
        ((ToolIntended("a"), ToolIntended("a")), EffectsLog({}, {}), "was intended 2 times"),
        ((ToolIntended("a"), ToolEnded("a", "done")), EffectsLog({(1, "a"): 1}, {}), "its run did not end"),
        ((ToolEnded("a", INTERRUPTED, True),), EffectsLog({}, {}), "is told to be unknown, and was never begun"),
    ],
)
async def test_an_effect_that_was_had_wrongly_is_found(facts: tuple[Fact, ...], log: EffectsLog, words: str) -> None:
    store = await store_of((1, (SPAWNED, TurnStarted(1, 1), reply("a"))), *([(1, facts)] if facts else []))
    with pytest.raises(AssertionError, match=words):
        await assert_no_effect_twice(store, log)


async def test_a_tool_that_may_be_run_again_may_be() -> None:
    store = await store_of((1, (SPAWNED, TurnStarted(1, 1), reply("a"), ToolIntended("a"), ToolIntended("a"))))
    await assert_no_effect_twice(store, EffectsLog({(1, "a"): 2}, {(1, "a"): 1}), repeatable=["note"])


async def test_a_result_that_changed_is_found() -> None:
    before = Calls(ended={(1, "a"): ["done"]})
    store = await store_of(
        (1, (SPAWNED, TurnStarted(1, 1), reply("a"), ToolIntended("a"), ToolEnded("a", INTERRUPTED, True)))
    )
    with pytest.raises(AssertionError, match=r"\(1, 'a'\) had the durable result \['done'\]"):
        await assert_results_kept(store, before)


async def test_what_holds_of_a_store_holds_once_it_was_pruned_and_what_cannot_be_seen_is_refused(
    tmp_path: Path,
) -> None:
    url, into = f"sqlite:{tmp_path}/whole", f"sqlite:{tmp_path}/pruned"

    async def note(text: str) -> str:
        """Note. text: what."""
        return f"noted {text}"

    def script(conversation: Conversation) -> Any:
        return reply_text("done") if conversation.steps else reply_calls(("note", {"text": conversation.task}))

    tools = [log_effects(note, tmp_path / "effects")]
    async with nanotrio.open_swarm(store=url, model=ScriptedModel(script), tools=tools, environment={}) as swarm:
        for number in range(3):
            await (await swarm.spawn(f"task {number}")).wait()
    whole = await open_store(url, read_only=True)
    crash = await read_calls(whole)
    await assert_prefix(whole, 10)
    await assert_no_effect_twice(whole, tmp_path / "effects")
    await whole.aclose()
    assert (await StoreCare(url).prune(into, 1 << 60)).roots == 2

    pruned = await open_store(into, read_only=True)
    await assert_prefix(pruned)
    await assert_groups_whole(pruned)
    await assert_each_call_answered(pruned)
    await assert_replays(pruned)
    await assert_no_effect_twice(pruned, EffectsLog({}, {}))
    for refused in (
        assert_prefix(pruned, 10),
        assert_no_effect_twice(pruned, tmp_path / "effects"),
        assert_results_kept(pruned, crash),
    ):
        with pytest.raises(UsageError, match=r"this store was pruned, so it does not say whether .*made from"):
            await refused
    await pruned.aclose()

"""Swarms on scripted models: scripts by task, a store that keeps its batches, and what holds once all is idle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

import nanotrio
from nanotrio.messages import Message
from nanotrio.models.model import Price
from nanotrio.models.scripted import FREE, Conversation, Late, ScriptedModel, reply_calls, reply_text
from nanotrio.records import Record
from nanotrio.session import Session
from nanotrio.stores import MemoryStore
from nanotrio.stores.store import Store
from nanotrio.swarm.entering import load_sessions
from nanotrio.swarm.recovery import read_heads, tail_heads
from nanotrio.testing import UnreliableStore

Answer = Callable[[Conversation], Any]

DEAR = Price(1_000, 1_000, 1_000, 1_000)
"""A thousand nano-USD a token: a call of 8,192 output tokens reserves 0.0082 USD and more."""

__all__ = [
    "DEAR",
    "SlowToRead",
    "by_task",
    "check_all_is_given_back",
    "check_store_holds_the_live_state",
    "late",
    "messages_of",
    "opened",
    "reply_calls",
    "reply_text",
    "sessions_in",
    "taped_store",
]


class SlowToRead(UnreliableStore):
    """Reads of chains take ``seconds``."""

    seconds = 0.0

    async def load(self, ends: Sequence[tuple[int, int]]) -> list[list[Record]]:
        await trio.sleep(self.seconds)
        return await super().load(ends)


def late(seconds: float, text: str = "late") -> Late:
    """Return a text that takes a while."""
    return Late(reply_text(text), seconds)


def by_task(**scripts: Answer | Sequence[Any]) -> Answer:
    """Return a script that answers by the first word of the agent's task; a list is answered step by step."""

    def script(conversation: Conversation) -> Any:
        answers = scripts[conversation.task.split(maxsplit=1)[0]]
        if callable(answers):
            return answers(conversation)
        return answers[min(conversation.steps, len(answers) - 1)]

    return script


def opened(
    script: Any,
    *,
    price: Price | None = FREE,
    latency_seconds: float = 0.0,
    **options: Any,
) -> AbstractAsyncContextManager[nanotrio.Swarm]:
    """Open a swarm whose only model is ``script``."""
    model = ScriptedModel(script, price=price, latency_seconds=latency_seconds)
    return nanotrio.open_swarm(model=model, environment={}, **options)


def taped_store() -> UnreliableStore:
    """Return a store in memory that keeps the batches it was given, so that a crash can be had at any of them."""
    return UnreliableStore(MemoryStore(), tape=True)


def messages_of(node: Any) -> list[Message]:
    """Return what was said, also where it was packed while the agent waits."""
    node.session.unpack()
    messages: list[Message] = node.session.messages
    return messages


async def sessions_in(store: Store) -> dict[int, Session]:
    """Return every session of a store, replayed."""
    _, tail = await tail_heads(store, (await store.statistics()).heads_seq)
    heads = await read_heads(store, tail)
    ends = [(head.last_seq, head.snapshot_seq) for head in heads]
    sessions = await load_sessions(store, [head.agent for head in heads], ends)
    return {session.agent: session for session in sessions}


async def check_store_holds_the_live_state(swarm: nanotrio.Swarm) -> None:
    """Every live session is what its records in the store make."""
    await swarm.flush()
    runtime = swarm._runtime
    stored = await sessions_in(runtime.store)
    for agent, node in runtime.nodes.items():
        await runtime.transcripts.restore(node)
        assert stored[agent] == node.session
        assert stored[agent].head() == node.session.head()


def check_all_is_given_back(swarm: nanotrio.Swarm) -> None:
    """Once every root is idle nothing is held: no slot, task, reservation, waiter or place in a queue."""
    runtime = swarm._runtime
    assert runtime.unfinished_roots == 0
    assert runtime.slots.active == 0
    assert runtime.live == 0
    assert not runtime.budget_queues
    for node in runtime.nodes.values():
        assert not node.is_counted, node.name
        assert node.unfinished_children == 0, node.name
        assert not node.has_task, node.name
        assert not node.has_slot, node.name
        assert node.ledger.reserved == 0, node.name
        assert not node.waiters, node.name
        assert node.session.turn is None, node.name
        assert node.session.status in {"idle", "closed"}, node.name
        spent = node.session.spent_nano + node.session.uncertain_nano
        assert node.ledger.settled == spent, node.name

"""What can be watched while it happens. Events may be lost; facts are not.

A watcher of an agent sees the agent and all its descendants. Each event names its agent, so a watcher that wants one
agent alone compares ``event.agent``.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ..messages import Message, ToolCall, ToolResult, Usage
from .outcome import Outcome

__all__ = [
    "AgentSpawned",
    "AgentWaiting",
    "AttemptRetried",
    "BudgetWarned",
    "Event",
    "MemoryShort",
    "MessageReplied",
    "StoreTroubled",
    "TextDelta",
    "ThinkingDelta",
    "ToolFinished",
    "ToolStarted",
    "TurnBegan",
    "TurnFinished",
]


class AgentSpawned(msgspec.Struct, frozen=True, gc=False):
    """A child was made; it may be pending."""

    agent: int
    name: str
    parent: int
    task: str


class TurnBegan(msgspec.Struct, frozen=True, gc=False):
    """A turn began; ``text`` is what the model reads first."""

    agent: int
    name: str
    turn: int
    text: str


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of the answer."""

    agent: int
    name: str
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of shown reasoning."""

    agent: int
    name: str
    text: str


class AttemptRetried(msgspec.Struct, frozen=True, gc=False):
    """An attempt failed and another follows after ``delay_seconds``; drop the text deltas since the last message."""

    agent: int
    name: str
    reason: str
    delay_seconds: float


class MessageReplied(msgspec.Struct, frozen=True, gc=False):
    """A whole reply of the model."""

    agent: int
    name: str
    message: Message
    usage: Usage
    cost_nano: int | None


class ToolStarted(msgspec.Struct, frozen=True, gc=False):
    """A call was dispatched."""

    agent: int
    name: str
    call: ToolCall


class ToolFinished(msgspec.Struct, frozen=True, gc=False):
    """A call has its result."""

    agent: int
    name: str
    call: ToolCall
    result: ToolResult


class AgentWaiting(msgspec.Struct, frozen=True, gc=False):
    """The agent gave its slot back and waits for ``reason`` (a child, a reservation, a rate limit)."""

    agent: int
    name: str
    reason: str


class BudgetWarned(msgspec.Struct, frozen=True, gc=False):
    """What was spent by the agent and all below it passed a share of its cap: three quarters, or nine tenths."""

    agent: int
    """Who holds the cap."""
    name: str
    spent_nano: int
    cap_nano: int
    message: str
    """The same for people: what was spent, of what, and how much is left."""


class TurnFinished(msgspec.Struct, frozen=True, gc=False):
    """The agent's turn ended and no descendant of it runs."""

    agent: int
    name: str
    outcome: Outcome


class StoreTroubled(msgspec.Struct, frozen=True, gc=False):
    """The store does not take writes for now; acknowledgements have stopped, and go on by themselves. Agent 0.

    ``message`` is empty once it goes on.
    """

    agent: int
    message: str


class MemoryShort(msgspec.Struct, frozen=True, gc=False):
    """The process has as much memory as it may have, so no new agent starts while any is active. Agent 0.

    ``message`` is empty once there is enough again.
    """

    agent: int
    message: str


Event: TypeAlias = (
    AgentSpawned
    | TurnBegan
    | TextDelta
    | ThinkingDelta
    | AttemptRetried
    | MessageReplied
    | ToolStarted
    | ToolFinished
    | AgentWaiting
    | BudgetWarned
    | TurnFinished
    | StoreTroubled
    | MemoryShort
)

"""Every bound nanotrio enforces, and its default.

Nothing waits for ever and nothing is unbounded: whatever could grow or hang is held by one field of ``Limits``.
A child's limits are the least of its own and its parent's, field by field (``Limits.within``).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec

from .errors import UsageError
from .given import MOST, real, whole

__all__ = ["HARD_MAX_DEPTH", "NANO", "Limits", "check_limits", "nano_usd", "usd", "usd_text"]

NANO = 1_000_000_000
"""Nano-USD in one USD; money is an integer of these inside."""

HARD_MAX_DEPTH = 64
"""Above this Trio's nested nurseries come too near Python's stack limit, so no ``max_depth`` passes it."""


def nano_usd(budget_usd: float) -> int:
    """Turn dollars that somebody gave as a budget into the integer that nanotrio counts in.

    Raises:
        UsageError: it is no amount, or negative, or too large to count.
    """
    budget_usd = real(budget_usd, "budget_usd")
    if budget_usd * NANO > MOST:
        raise UsageError(f"budget_usd is {budget_usd:g}; that is no amount that can be counted")
    return round(budget_usd * NANO)


def usd(amount_nano: int) -> float:
    """Turn nano-USD back into dollars, for people and JSON."""
    return amount_nano / NANO


def usd_text(amount_nano: int) -> str:
    """Return an amount in dollars to six digits, never with an exponent."""
    return f"{Decimal(f'{usd(amount_nano):.6g}'):f} USD"


class Limits(msgspec.Struct, frozen=True, cache_hash=True, gc=False, array_like=True, kw_only=True):
    """The bounds of one agent; of the first group, the tightest along its lineage holds.

    New fields are added at the end: the order is the stored form.
    """

    budget_nano: int | None = None
    """Money for the agent and all its descendants, over all its turns; None is no cap."""
    max_depth: int = 8
    """Generations below a root; a root has depth 0."""
    max_live: int = 10_000
    """Agents of one swarm that have a task: those that work, wait, or have descendants that do."""
    max_total: int = 1_000_000
    """Descendants of one root, ended ones included."""
    max_children: int = 1_000_000
    """Children of one agent over its life."""
    max_turns: int = 10_000
    """Turns of one agent over its life."""
    max_steps: int = 1_000
    """Model calls in one turn."""
    max_tool_calls: int = 10_000
    """Tool calls in one turn."""
    max_output_tokens: int = 8_192
    """Tokens asked of one model call; a budget may lower it to ``min_output_tokens``."""
    min_output_tokens: int = 1_024
    max_tokens: int | None = None
    """Tokens of all classes over the agent's life; None is no cap."""
    max_mailbox: int = 1_000
    """Unread mails of one agent."""
    max_attempts: int = 6
    """Tries of one model call."""
    max_bad_calls: int = 3
    """The same mistake in a row before the turn ends as failed."""
    turn_seconds: float = 3_600.0
    """Wall time of one turn, counted while the process runs."""
    idle_seconds: float = 300.0
    """Silence of a model's stream before the attempt is given up."""
    tool_seconds: float = 600.0
    """Wall time of one tool call."""
    max_reap_seconds: float = 5.0
    """How long a cancel waits for processes to go."""
    max_result_bytes: int = 50_000
    """Bytes of one tool result that go to the model; the rest lies in a file that the result names."""
    max_message_bytes: int = 200_000
    """Bytes of one mail's text."""
    max_output_file_bytes: int = 64 * 2**20
    """Bytes of a long output that are kept in the file its result names; what comes later is read and dropped."""
    max_idle: int = 1_000
    """Agents of one swarm with nothing to do that stay in memory; more of them are found in the store when needed."""

    def within(self, outer: Limits) -> Limits:
        """Return the least of both, field by field; None counts as no bound."""
        least = {}
        for field in self.__struct_fields__:
            own, its = getattr(self, field), getattr(outer, field)
            least[field] = its if own is None else own if its is None else min(own, its)
        return Limits(**least)


_DEFAULTS = msgspec.structs.asdict(Limits())
_AT_LEAST_ONE = frozenset({"max_steps", "max_attempts", "max_output_tokens"})


def check_limits(limits: Any) -> Limits:
    """Return ``limits`` that somebody gave, whole numbers as integers.

    Raises:
        UsageError: something else stands in their place, or in that of one of them.
    """
    if not isinstance(limits, Limits):
        raise UsageError(f"limits is of the type {type(limits).__name__}; give nanotrio.Limits(...)")
    fit: dict[str, Any] = {}
    for name, default in _DEFAULTS.items():
        value = getattr(limits, name)
        if isinstance(default, float):
            fit[name] = real(value, f"limits.{name}")
        elif value is not None or default is not None:
            fit[name] = whole(value, f"limits.{name}", int(name in _AT_LEAST_ONE))
    return msgspec.structs.replace(limits, **fit)

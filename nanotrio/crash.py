"""The points at which a process may be made to die, by name, so that tests can have a crash exactly there.

The rooms of nanotrio pass a point by ``if crash.here is not None: crash.here(NAME, NUMBER)``: one look at a module's
name where nothing is armed; what is passed once a commit calls ``pass_point`` or ``pass_commit``.
``nanotrio.testing.crash_at`` arms; nothing else sets ``here``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from .records import Head, Record

__all__ = ["CRASH_POINTS", "here", "pass_commit", "pass_point"]

CRASH_POINTS: Mapping[str, str] = MappingProxyType(
    {
        "before-takeover": "the store is open and another's, or nobody's; it is not acquired",
        "after-takeover": "the store is acquired; what it holds is not read",
        "before-resume": "the tree of a root is in memory; that it is taken up again is not recorded",
        "after-resume": "that a tree is taken up again is recorded and not durable",
        "before-spawn": "an agent was checked, and is not recorded",
        "after-spawn": "an agent and its first mail are recorded, and not durable",
        "after-mail": "a mail is recorded on its recipient's chain, and not durable",
        "before-read": "a turn is about to consume mail that is queued",
        "after-read": "a turn has consumed mail, which is recorded and not durable",
        "before-model-call": "a request is about to be sent; under a budget its reservation is durable",
        "after-model-reply": "a whole reply of the model came, and is not recorded",
        "after-reply-record": "a reply is recorded, and not durable",
        "before-intent": "calls with an effect are about to be intended",
        "after-intent": "their intents are durable; none is dispatched",
        "before-effect": "one of them is about to be dispatched",
        "after-effect": "it came back, and its result is not recorded",
        "after-result": "its result is recorded, and not durable",
        "before-settle": "an agent has nothing left to do; that is not recorded",
        "after-settle": "an agent is settled and its parent told; that is recorded and not durable",
        "before-cancel": "a subtree is about to be closed",
        "after-cancel": "an agent is closed; that is recorded and not durable",
        "before-commit": "a batch is about to be handed to the store",
        "in-commit": "the store has written some of a batch, and the batch is not committed",
        "after-commit": "the store has a batch, and the journal has not taken note",
        "before-acknowledgement": "records count as durable, and nobody who waits has been told",
        "after-acknowledgement": "those who waited for a batch have been woken",
        "before-heads": "a batch that carries heads is about to be handed to the store",
        "after-heads": "the store has a batch that carries heads",
        "before-close": "all agents are gone, and what is queued is about to be written",
        "after-close": "all is written, and the store is not given back",
    }
)
"""Each point, and what is so where it is passed."""

here: Callable[[str, int], None] | None = None
"""Called with the name of each point that is passed, and a number: of the agent where an agent passes it, of the last
record for the journal's (before a commit, of the last one in the batch), else 0. None in production."""


def pass_point(point: str, number: int) -> None:
    """Pass a point; for where a call more costs nothing."""
    if here is not None:
        here(point, number)


def pass_commit(side: str, records: Sequence[Record], heads: Sequence[Head]) -> None:
    """Pass the points on one side of a commit, ``before`` or ``after``."""
    if here is not None:
        last_seq = records[-1].seq if records else 0
        here(f"{side}-commit", last_seq)
        if heads:
            here(f"{side}-heads", last_seq)

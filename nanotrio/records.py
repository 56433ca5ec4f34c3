"""The durable facts, and the records that carry them.

Theory of operation
-------------------
A *fact* is one durable thing that happened to one agent. What one agent appends between two awaits is one *record*:
one sequence number, one row. Records of one agent form its *chain*: each names the one before it in ``prev`` (0 for
none), so a session is rebuilt by walking back from its last record to the newest snapshot, or to the first. A fork
is a first record whose ``prev`` lies on another agent's chain. Records that are committed together or not at all are
a *group*.

Content that is large or shared (a system prompt, a profile) is a record of agent 0, on no chain; others refer to it
by its sequence number.

The form on disk is CBOR (RFC 8949): ``facts`` is an array of facts, each an array ``[kind, field, field, ...]`` in
the order of the classes below. Fields are only ever added at the end and with a default, so an older reader passes
over a newer writer's extra fields; and since copying moves the bytes of ``facts`` without decoding them, those fields
survive it. A kind that this version does not know is refused by name.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from .limits import Limits
from .messages import Part, StopReason, Usage

__all__ = [
    "FORMAT_VERSION",
    "AttemptFailed",
    "ChildEnded",
    "Closed",
    "Content",
    "Fact",
    "Head",
    "LimitsSet",
    "MailArrived",
    "MailKind",
    "MailRead",
    "MailReturned",
    "MailTaken",
    "OutcomeStatus",
    "Profile",
    "Record",
    "Replied",
    "Reserved",
    "Restarted",
    "Settled",
    "Snapshot",
    "Spawned",
    "Status",
    "Submitted",
    "ToolEnded",
    "ToolIntended",
    "TurnEnded",
    "TurnStarted",
    "Unfit",
]

FORMAT_VERSION = 1
"""Raised when an older nanotrio could no longer read what this one writes."""

OutcomeStatus: TypeAlias = Literal["completed", "failed", "cancelled", "budget_exceeded", "deadline_exceeded"]
Status: TypeAlias = Literal["pending", "running", "settling", "idle", "closed"]
MailKind: TypeAlias = Literal["prompt", "text", "steer", "warning", "returned"]


class Content(msgspec.Struct, frozen=True, gc=False, tag="content", array_like=True):
    """Bytes that others refer to by this record's number; agent 0."""

    digest: bytes
    """BLAKE2b of ``body``, 16 bytes."""
    body: bytes


class Spawned(msgspec.Struct, frozen=True, gc=False, tag="spawned", array_like=True):
    """The first fact of an agent.

    Where its record names one before it, on another agent's chain, the agent is a fork of that one: it has the
    conversation up to the last turn that had ended by then.
    """

    parent: int
    """0 for a root."""
    root: int
    depth: int
    name: str
    """As people see it, ``NAME.N``."""
    profile: int
    """The number of the content record that holds the ``Profile``."""
    uuid: str = ""
    """Of a root."""


class MailArrived(msgspec.Struct, frozen=True, gc=False, tag="mail", array_like=True):
    """A mail, on its recipient's chain; its id is the record's number. At most one a record."""

    kind: MailKind
    sender: int
    """0 for a person or program outside the tree."""
    text: str
    sender_name: str = ""


class TurnStarted(msgspec.Struct, frozen=True, gc=False, tag="turn", array_like=True):
    """A turn began and consumed every mail up to ``read_seq``."""

    turn: int
    read_seq: int


class MailRead(msgspec.Struct, frozen=True, gc=False, tag="read", array_like=True):
    """A running turn consumed what is told between steps (all but texts and prompts) up to ``read_seq``."""

    read_seq: int


class MailTaken(msgspec.Struct, frozen=True, gc=False, tag="taken", array_like=True):
    """The agent knows of these ends of children, by the result of a waiting call say, so no notice repeats them."""

    seqs: tuple[int, ...]


class MailReturned(msgspec.Struct, frozen=True, gc=False, tag="unread", array_like=True):
    """The recipient closed: every unread mail up to ``read_seq`` went back as undeliverable."""

    read_seq: int


class Reserved(msgspec.Struct, frozen=True, gc=False, tag="reserved", array_like=True):
    """A model call in flight may cost this much; written where an ancestor has a budget."""

    amount_nano: int


class Replied(msgspec.Struct, frozen=True, gc=False, tag="replied", array_like=True):
    """A whole reply of the model; ends the open reservation. ``cost_nano`` is None where the price is unknown."""

    model: str
    parts: tuple[Part, ...]
    stop: StopReason
    usage: Usage
    cost_nano: int | None


class AttemptFailed(msgspec.Struct, frozen=True, gc=False, tag="attempt", array_like=True):
    """An attempt of a model call failed; ends the open reservation.

    ``uncertain_nano`` is what it may have cost beyond ``cost_nano``.
    """

    kind: str
    message: str
    usage: Usage
    cost_nano: int | None
    uncertain_nano: int = 0


class ToolIntended(msgspec.Struct, frozen=True, gc=False, tag="intended", array_like=True):
    """A call with an outside effect is about to be dispatched; durable before it is.

    ``child`` is set for a spawn that waits for its child: after a crash the call is joined to it again.
    """

    call_id: str
    child: int = 0


class ToolEnded(msgspec.Struct, frozen=True, gc=False, tag="ended", array_like=True):
    """The one result of a call."""

    call_id: str
    content: str
    is_error: bool = False
    mistake: str = ""
    """What the model did wrong, where it did: the same one several times in a row ends the turn.

    Its first line says whether it is the same; what follows are particulars.
    """


class Submitted(msgspec.Struct, frozen=True, gc=False, tag="submitted", array_like=True):
    """The agent handed in its result, the text of a JSON value; the turn ends once its calls are answered."""

    result: str


class Unfit(msgspec.Struct, frozen=True, gc=False, tag="unfit", array_like=True):
    """The turn would have ended with a text, and a result of another form was asked for; the model is told this."""

    text: str


class ChildEnded(msgspec.Struct, frozen=True, gc=False, tag="child", array_like=True):
    """A child's turn ended and no descendant of it runs; on the parent's chain, where it is mail too.

    Usage and costs are the child's and its descendants', counted since the child's last report.
    """

    child: int
    name: str
    turn: int
    status: OutcomeStatus
    reason: str
    result: str
    last_text: str
    usage: Usage
    cost_nano: int
    uncertain_nano: int = 0
    unpriced: int = 0
    """Model calls whose price is unknown."""
    is_told: bool = False
    """The parent ended it itself, or has no task of its own, so this is no mail."""


class LimitsSet(msgspec.Struct, frozen=True, gc=False, tag="limits", array_like=True):
    """The agent's limits were changed while it lived."""

    limits: Limits


class Snapshot(msgspec.Struct, frozen=True, gc=False, tag="snapshot", array_like=True):
    """The whole session as it stood before this fact; what lies before need not be read.

    ``state`` is a map of the session's fields in MessagePack, which is made and read in a tenth of the time that CBOR
    takes; in CBOR where a number has more than 64 bits, and in stores of former versions.
    """

    state: bytes


class TurnEnded(msgspec.Struct, frozen=True, gc=False, tag="turn_ended", array_like=True):
    """The turn's one outcome. ``survivors`` names descendants it ended, and processes that would not go."""

    status: OutcomeStatus
    reason: str
    result: str
    last_text: str
    survivors: tuple[str, ...] = ()


class Settled(msgspec.Struct, frozen=True, gc=False, tag="settled", array_like=True):
    """No descendant runs any more, and the parent has been told."""


class Restarted(msgspec.Struct, frozen=True, gc=False, tag="restarted", array_like=True):
    """An agent was taken up again: an unfinished one by a new owner, or a closed one, which then takes mail again.

    A reservation that was open counts as uncertain in full.
    """


class Closed(msgspec.Struct, frozen=True, gc=False, tag="closed", array_like=True):
    """The agent takes no more mail.

    ``owes_return`` says that it has unread mail of agents that were not in memory: a later ``MailReturned`` of it goes
    with their notices.
    """

    reason: str
    owes_return: bool = False


Fact: TypeAlias = (
    Content
    | Spawned
    | MailArrived
    | TurnStarted
    | MailRead
    | MailTaken
    | MailReturned
    | Reserved
    | Replied
    | AttemptFailed
    | ToolIntended
    | ToolEnded
    | Submitted
    | Unfit
    | ChildEnded
    | LimitsSet
    | Snapshot
    | TurnEnded
    | Settled
    | Restarted
    | Closed
)


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One row of the log. ``at_us`` is Unix time in microseconds; ``facts`` is CBOR."""

    seq: int
    prev: int
    agent: int
    at_us: int
    facts: bytes


class Profile(msgspec.Struct, frozen=True, cache_hash=True, array_like=True):
    """What an agent is, apart from its name and its task; stored once and shared by all that are alike."""

    model: str
    """Full model name, ``anthropic/claude-sonnet-4-5``."""
    system: int
    """The number of the content record that holds the system prompt, 0 for none."""
    tools: tuple[str, ...]
    limits: Limits
    directory: str
    """Absolute working directory."""
    permission_mode: str = "bypassPermissions"
    result_schema: str = ""
    """A JSON schema that ``submit_result`` is held to, as text."""
    denied_tools: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] = ()


class Head(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What reopening a store, or listing it, needs of one agent; a cache of its chain, rebuilt by a scan."""

    agent: int
    parent: int
    root: int
    name: str
    status: Status
    unfinished: bool
    """A turn is open or unsettled, unread mail waits or is to go back, or the parent was not told of all costs: to be
    taken up again."""
    last_seq: int
    snapshot_seq: int
    """The newest record on the chain that begins with a snapshot, 0 for none."""
    turn: int = 0
    outcome: OutcomeStatus | None = None
    """Of the last turn that ended."""
    usage: Usage = Usage()
    """Own plus what ended children reported, like the costs."""
    spent_nano: int = 0
    uncertain_nano: int = 0
    reserved_nano: int = 0
    unreported_nano: int = 0
    """The part of spent and uncertain that the parent has not been told of."""
    unpriced: int = 0
    created_us: int = 0
    updated_us: int = 0
    model: str = ""
    uuid: str = ""
    task: str = ""
    """The beginning of the first prompt, at most 80 characters."""
    profile: int = 0
    """The number of the content record that holds the ``Profile``."""
    children: int = 0
    """Spawned by it so far, like the next; both are true for agents up to ``counted_agent``."""
    descendants: int = 0
    """Spawned below it so far; kept for roots alone."""
    counted_agent: int = 0
    """The greatest agent id that was given out when this head was made."""

"""The log as rows of plain tables, for people who ask in SQL.

Theory of operation
-------------------
``project`` turns one record into rows and changes of rows, from its facts alone: it knows no session and no other
record, so it gives the same whether it runs with the commit or over a whole log. The log stays the truth; the tables
are made anew from it at any time.

A row is inserted once, under a key that the log gives it: ``seq``, the number of its record, and ``position`` where a
record has several. A change names the rows it is for by what stands in them. A batch inserts all its rows first and
then makes its changes in order; since a change reaches only rows of its own record or of earlier ones, that is as
good as going through the records one by one. ``changes_in_rounds`` parts changes so that those of one part touch
different rows, and a driver can make a part in one statement.

NUL becomes U+FFFD in text here, since databases refuse it; the log keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

import msgspec

from ..fact_form import decode_facts
from ..messages import Text, Thinking, ToolCall, Usage
from ..records import (
    AttemptFailed,
    ChildEnded,
    Closed,
    Fact,
    MailArrived,
    MailRead,
    MailReturned,
    MailTaken,
    Record,
    Replied,
    Settled,
    Spawned,
    Submitted,
    ToolEnded,
    ToolIntended,
    TurnEnded,
    TurnStarted,
)

__all__ = [
    "ROWS_FORM",
    "AgentChange",
    "AgentRow",
    "CallChange",
    "MailChange",
    "MailRow",
    "MessageRow",
    "Row",
    "ToolCallRow",
    "UsageRow",
    "changes_in_rounds",
    "project",
]

ROWS_FORM = 1
"""Raised when the tables change; a store with others makes its tables anew."""

_C = TypeVar("_C", bound="AgentChange | CallChange | MailChange")


class AgentRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Into ``agents``. Fields are columns, in order, here and below."""

    agent: int
    parent: int | None
    root: int
    depth: int
    name: str
    uuid: str
    profile: int
    created_us: int


class AgentChange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Of the row of ``agent``; None leaves a column as it is."""

    agent: int
    status: str | None = None
    """``"settled"`` stands for idle, unless the agent is closed."""
    turns: int | None = None
    outcome: str | None = None
    reason: str | None = None
    result: str | None = None
    last_text: str | None = None
    ended_us: int | None = None


class MessageRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Into ``messages``."""

    seq: int
    position: int
    agent: int
    at_us: int
    role: str
    """``user`` for a prompt, ``assistant`` for the model."""
    kind: str
    """``text`` or ``thinking``."""
    text: str
    model: str


class ToolCallRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Into ``tool_calls``."""

    seq: int
    position: int
    agent: int
    call_id: str
    name: str
    arguments: str
    asked_us: int


class CallChange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Of the row of the open call ``call_id`` of ``agent``, asked in record ``seq`` or before."""

    agent: int
    call_id: str
    seq: int
    dispatched_us: int | None = None
    child: int | None = None
    ended_us: int | None = None
    result: str | None = None
    is_error: bool | None = None
    mistake: str | None = None


class MailRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Into ``mail``."""

    seq: int
    recipient: int
    sender: int | None
    sender_name: str
    kind: str
    text: str
    at_us: int


class MailChange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Of the unread mails of ``recipient`` from ``first`` to ``last``, prompts and texts left out where ``told``."""

    recipient: int
    first: int
    last: int
    told: bool
    fate: str
    fate_seq: int


class UsageRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Into ``usage``."""

    seq: int
    position: int
    agent: int
    at_us: int
    model: str
    input: int
    output: int
    cache_read: int
    cache_write: int
    cost_nano: int | None
    uncertain_nano: int
    error: str


Row: TypeAlias = AgentRow | MessageRow | ToolCallRow | MailRow | UsageRow | AgentChange | CallChange | MailChange


def project(record: Record) -> list[Row]:
    """Return what ``record`` puts into the tables, in order.

    Raises:
        RecordError: its facts cannot be read by this version.
    """
    rows: list[Row] = []
    if record.agent:
        for fact in decode_facts(record.facts):
            handle = _HANDLERS.get(type(fact))
            if handle is not None:
                handle(record, fact, rows)
    return rows


def changes_in_rounds(changes: Iterable[_C], key: Callable[[_C], Hashable]) -> Iterator[list[_C]]:
    """Part ``changes`` so that no part has a key twice, and the changes of one key stay in order."""
    rounds: list[list[_C]] = []
    seen: dict[Hashable, int] = {}
    for change in changes:
        name = key(change)
        number = seen.get(name, 0)
        seen[name] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(change)
    yield from rounds


def _clean(text: str) -> str:
    return text.replace("\0", "\ufffd") if "\0" in text else text


def _spawned(record: Record, fact: Spawned, rows: list[Row]) -> None:
    rows.append(
        AgentRow(
            *(record.agent, fact.parent or None, fact.root or record.agent, fact.depth),
            *(_clean(fact.name), fact.uuid, fact.profile, record.at_us),
        )
    )
    if record.prev:  # a fork, which waits for mail
        rows.append(AgentChange(record.agent, "settled"))


def _mail_arrived(record: Record, fact: MailArrived, rows: list[Row]) -> None:
    text = _clean(fact.text)
    if fact.kind == "prompt":
        rows.append(MessageRow(record.seq, len(rows), record.agent, record.at_us, "user", "text", text, ""))
    rows.append(
        MailRow(
            *(record.seq, record.agent, fact.sender or None, _clean(fact.sender_name)),
            *(fact.kind, text, record.at_us),
        )
    )


def _child_ended(record: Record, fact: ChildEnded, rows: list[Row]) -> None:
    text = f"{fact.status}: {fact.result or fact.last_text or fact.reason}"
    rows.append(MailRow(record.seq, record.agent, fact.child, _clean(fact.name), "child", _clean(text), record.at_us))


def _turn_started(record: Record, fact: TurnStarted, rows: list[Row]) -> None:
    rows.append(AgentChange(record.agent, "running", fact.turn))
    rows.append(MailChange(record.agent, 0, fact.read_seq, False, "read", record.seq))


def _mail_read(record: Record, fact: MailRead, rows: list[Row]) -> None:
    rows.append(MailChange(record.agent, 0, fact.read_seq, True, "read", record.seq))


def _mail_taken(record: Record, fact: MailTaken, rows: list[Row]) -> None:
    rows += [MailChange(record.agent, seq, seq, False, "taken", record.seq) for seq in fact.seqs]


def _mail_returned(record: Record, fact: MailReturned, rows: list[Row]) -> None:
    rows.append(MailChange(record.agent, 0, fact.read_seq, False, "returned", record.seq))


def _replied(record: Record, fact: Replied, rows: list[Row]) -> None:
    seq, agent, at_us = record.seq, record.agent, record.at_us
    for part in fact.parts:
        match part:
            case Text(text):
                rows.append(MessageRow(seq, len(rows), agent, at_us, "assistant", "text", _clean(text), fact.model))
            case Thinking(text=text) if text:
                rows.append(MessageRow(seq, len(rows), agent, at_us, "assistant", "thinking", _clean(text), fact.model))
            case ToolCall(call_id, name, arguments):
                call = (_clean(call_id), _clean(name), _clean(arguments))
                rows.append(ToolCallRow(seq, len(rows), agent, *call, at_us))
            case _:
                pass
    rows.append(_usage(record, len(rows), fact.model, fact.usage, fact.cost_nano, 0, ""))


def _attempt_failed(record: Record, fact: AttemptFailed, rows: list[Row]) -> None:
    error = _clean(f"{fact.kind}: {fact.message}")
    rows.append(_usage(record, len(rows), "", fact.usage, fact.cost_nano, fact.uncertain_nano, error))


def _usage(
    record: Record, position: int, model: str, usage: Usage, cost_nano: int | None, uncertain_nano: int, error: str
) -> UsageRow:
    return UsageRow(
        *(record.seq, position, record.agent, record.at_us, model),
        *(usage.input, usage.output, usage.cache_read, usage.cache_write),
        *(cost_nano, uncertain_nano, error),
    )


def _tool_intended(record: Record, fact: ToolIntended, rows: list[Row]) -> None:
    rows.append(CallChange(record.agent, _clean(fact.call_id), record.seq, record.at_us, fact.child or None))


def _tool_ended(record: Record, fact: ToolEnded, rows: list[Row]) -> None:
    ended = (record.at_us, _clean(fact.content), fact.is_error, _clean(fact.mistake))
    rows.append(CallChange(record.agent, _clean(fact.call_id), record.seq, None, None, *ended))


def _submitted(record: Record, fact: Submitted, rows: list[Row]) -> None:
    rows.append(AgentChange(record.agent, result=_clean(fact.result)))


def _turn_ended(record: Record, fact: TurnEnded, rows: list[Row]) -> None:
    told = (_clean(fact.reason), _clean(fact.result), _clean(fact.last_text))
    rows.append(AgentChange(record.agent, "settling", None, fact.status, *told, record.at_us))


def _settled(record: Record, _: Settled, rows: list[Row]) -> None:
    rows.append(AgentChange(record.agent, "settled"))


def _closed(record: Record, _: Closed, rows: list[Row]) -> None:
    rows.append(AgentChange(record.agent, "closed"))


_HANDLERS: dict[type[Fact], Callable[[Record, Any, list[Row]], None]] = {
    Spawned: _spawned,
    MailArrived: _mail_arrived,
    ChildEnded: _child_ended,
    TurnStarted: _turn_started,
    MailRead: _mail_read,
    MailTaken: _mail_taken,
    MailReturned: _mail_returned,
    Replied: _replied,
    AttemptFailed: _attempt_failed,
    ToolIntended: _tool_intended,
    ToolEnded: _tool_ended,
    Submitted: _submitted,
    TurnEnded: _turn_ended,
    Settled: _settled,
    Closed: _closed,
}
"""Facts that put nothing into the tables are left out."""

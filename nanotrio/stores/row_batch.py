"""The rows of one batch, finished, for a database that takes them in one statement.

Theory of operation
-------------------
What a statement inserts it cannot change as well: all its parts see the tables as they were before it. So changes that
reach rows of the same batch are made here, before those rows are inserted, and what may reach rows of earlier batches
is gathered, at most one change an agent and one a call. An agent that was spawned in the batch has no earlier rows.
Mail changes stay as they are, in order: the first one that reaches a mail tells its fate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from ..errors import RecordError
from ..records import Record
from .rows import (
    AgentChange,
    AgentRow,
    CallChange,
    MailChange,
    MailRow,
    MessageRow,
    Row,
    ToolCallRow,
    UsageRow,
    project,
)

__all__ = ["AGENT", "CALL", "MAIL", "MESSAGE", "USAGE", "RowBatch"]

Columns: TypeAlias = tuple[str, ...]

AGENT: Columns = (
    *AgentRow.__struct_fields__,
    *("status", "turns", "outcome", "reason", "result", "last_text", "ended_us"),
)
"""The columns of a finished row, here and below."""
MESSAGE: Columns = MessageRow.__struct_fields__
CALL: Columns = (
    *ToolCallRow.__struct_fields__,
    *("dispatched_us", "child", "ended_us", "result", "is_error", "mistake"),
)
MAIL: Columns = (*MailRow.__struct_fields__, "fate", "fate_seq")
USAGE: Columns = UsageRow.__struct_fields__

_STATUS = AGENT.index("status")
_DISPATCHED, _CALL_CHILD, _CALL_ENDED = CALL.index("dispatched_us"), CALL.index("child"), CALL.index("ended_us")
_MAIL_KIND, _FATE = MAIL.index("kind"), MAIL.index("fate")
_CHANGES = (AgentChange, CallChange, MailChange)
_TOLD_APART = ("prompt", "text")


class RowBatch:
    """What ``records`` put into the tables: rows in the order of their columns, and changes of earlier rows.

    Attributes:
        unread: how many records could not be read, and put nothing there.
    """

    __slots__ = (
        "_agents",
        "_open_calls",
        "_unread_mails",
        "agent_changes",
        "call_changes",
        "calls",
        "mail_changes",
        "mails",
        "messages",
        "unread",
        "usages",
    )

    def __init__(self, records: Iterable[Record]) -> None:
        self.messages: list[MessageRow] = []
        self.calls: list[list[Any]] = []
        self.mails: list[list[Any]] = []
        self.usages: list[UsageRow] = []
        self.agent_changes: dict[int, AgentChange] = {}
        self.call_changes: dict[tuple[int, str], CallChange] = {}
        self.mail_changes: list[MailChange] = []
        self.unread = 0
        self._agents: dict[int, list[Any]] = {}
        self._open_calls: dict[tuple[int, str], list[list[Any]]] = {}
        self._unread_mails: dict[int, list[list[Any]]] = {}
        for record in records:
            try:
                rows = project(record)
            except RecordError:
                self.unread += 1
                continue
            changes = [row for row in rows if isinstance(row, _CHANGES)]
            for row in rows:
                if not (changes and isinstance(row, _CHANGES)):
                    self._add(row)
            for change in changes:
                self._add(change)

    @property
    def agents(self) -> Sequence[Sequence[Any]]:
        """Rows of agents, one each."""
        return list(self._agents.values())

    def _add(self, row: Row) -> None:
        match row:
            case MessageRow():
                self.messages.append(row)
            case UsageRow():
                self.usages.append(row)
            case AgentChange():
                self._change_agent(row)
            case MailRow():
                mail = [*_values(row), None, None]
                self.mails.append(mail)
                self._unread_mails.setdefault(row.recipient, []).append(mail)
            case MailChange():
                self._change_mail(row)
            case ToolCallRow():
                call = [*_values(row), None, None, None, None, None, None]
                self.calls.append(call)
                self._open_calls.setdefault((row.agent, row.call_id), []).append(call)
            case CallChange():
                self._change_call(row)
            case AgentRow():
                self._agents[row.agent] = [*_values(row), "pending", 0, None, None, None, None, None]

    def _change_agent(self, change: AgentChange) -> None:
        agent = self._agents.get(change.agent)
        if agent is None:
            earlier = self.agent_changes.get(change.agent)
            self.agent_changes[change.agent] = change if earlier is None else _both(earlier, change)
            return
        status = change.status
        if status is not None and not (status == "settled" and agent[_STATUS] == "closed"):
            agent[_STATUS] = "idle" if status == "settled" else status
        for place, value in enumerate(_values(change)[2:], _STATUS + 1):
            if value is not None:
                agent[place] = value

    def _change_call(self, change: CallChange) -> None:
        key = change.agent, change.call_id
        for call in self._open_calls.get(key, ()):
            if change.dispatched_us is not None:
                call[_DISPATCHED] = change.dispatched_us
            if change.child is not None:
                call[_CALL_CHILD] = change.child
            call[_CALL_ENDED:] = change.ended_us, change.result, change.is_error, change.mistake
        if change.ended_us is not None:
            self._open_calls.pop(key, None)
        if change.agent not in self._agents:
            earlier = self.call_changes.get(key)
            if earlier is None:
                self.call_changes[key] = change
            elif earlier.ended_us is None:  # else no earlier row is open by then
                dispatched = earlier.dispatched_us if change.dispatched_us is None else change.dispatched_us
                child = earlier.child if change.child is None else change.child
                self.call_changes[key] = msgspec.structs.replace(change, dispatched_us=dispatched, child=child)

    def _change_mail(self, change: MailChange) -> None:
        unread = self._unread_mails.get(change.recipient)
        if unread:
            still = []
            for mail in unread:
                if change.first <= mail[0] <= change.last and not (change.told and mail[_MAIL_KIND] in _TOLD_APART):
                    mail[_FATE:] = change.fate, change.fate_seq
                else:
                    still.append(mail)
            self._unread_mails[change.recipient] = still
        if change.recipient not in self._agents:
            self.mail_changes.append(change)


def _both(earlier: AgentChange, later: AgentChange) -> AgentChange:
    """The one change that does what both do, one after the other."""
    values = [old if new is None else new for old, new in zip(_values(earlier), _values(later), strict=True)]
    if later.status == "settled" and earlier.status is not None:
        values[1] = earlier.status if earlier.status in {"closed", "settled"} else "idle"
    return AgentChange(*values)


def _values(row: msgspec.Struct) -> tuple[Any, ...]:
    return msgspec.structs.astuple(row)

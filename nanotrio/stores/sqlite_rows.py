"""The plain tables of a row store in SQLite, and how rows get in.

Rows go in as one array of JSON texts a table, which SQLite takes apart itself: a row by row insert from a thread
would fight the loop for the interpreter's lock. Foreign keys are declared, for people and tools that draw tables; they
are not enforced, since the log is the truth and a fact in it that nobody understands must not stop a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import apsw
import msgspec

from ..errors import RecordError
from ..records import Record
from .rows import (
    ROWS_FORM,
    AgentChange,
    AgentRow,
    CallChange,
    MailChange,
    MailRow,
    MessageRow,
    Row,
    ToolCallRow,
    UsageRow,
    changes_in_rounds,
    project,
)
from .sqlite_file import connect, explain, record_of

__all__ = ["catch_up", "drop_tables", "make_tables", "rows_seq", "write_rows"]

_SLICE = 4096

_SCHEMA = """
CREATE TABLE agents (
  agent INTEGER PRIMARY KEY,
  parent INTEGER REFERENCES agents (agent),
  root INTEGER NOT NULL REFERENCES agents (agent),
  depth INTEGER NOT NULL,
  name TEXT NOT NULL,
  uuid TEXT NOT NULL,
  profile INTEGER NOT NULL,
  created_us INTEGER NOT NULL,
  status TEXT NOT NULL DEFAULT 'pending',
  turns INTEGER NOT NULL DEFAULT 0,
  outcome TEXT,
  reason TEXT,
  result TEXT,
  last_text TEXT,
  ended_us INTEGER
) STRICT;
CREATE INDEX agents_by_parent ON agents (parent);
CREATE TABLE messages (
  seq INTEGER NOT NULL,
  position INTEGER NOT NULL,
  agent INTEGER NOT NULL REFERENCES agents (agent),
  at_us INTEGER NOT NULL,
  role TEXT NOT NULL,
  kind TEXT NOT NULL,
  text TEXT NOT NULL,
  model TEXT NOT NULL,
  PRIMARY KEY (seq, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX messages_by_agent ON messages (agent);
CREATE TABLE tool_calls (
  seq INTEGER NOT NULL,
  position INTEGER NOT NULL,
  agent INTEGER NOT NULL REFERENCES agents (agent),
  call_id TEXT NOT NULL,
  name TEXT NOT NULL,
  arguments TEXT NOT NULL,
  asked_us INTEGER NOT NULL,
  dispatched_us INTEGER,
  child INTEGER REFERENCES agents (agent),
  ended_us INTEGER,
  result TEXT,
  is_error INTEGER,
  mistake TEXT,
  PRIMARY KEY (seq, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX tool_calls_by_agent ON tool_calls (agent);
CREATE INDEX tool_calls_open ON tool_calls (agent, call_id) WHERE ended_us IS NULL;
CREATE TABLE mail (
  seq INTEGER PRIMARY KEY,
  recipient INTEGER NOT NULL REFERENCES agents (agent),
  sender INTEGER REFERENCES agents (agent),
  sender_name TEXT NOT NULL,
  kind TEXT NOT NULL,
  text TEXT NOT NULL,
  at_us INTEGER NOT NULL,
  fate TEXT,
  fate_seq INTEGER
) STRICT;
CREATE INDEX mail_by_recipient ON mail (recipient);
CREATE INDEX mail_unread ON mail (recipient, seq) WHERE fate IS NULL;
CREATE TABLE usage (
  seq INTEGER NOT NULL,
  position INTEGER NOT NULL,
  agent INTEGER NOT NULL REFERENCES agents (agent),
  at_us INTEGER NOT NULL,
  model TEXT NOT NULL,
  input INTEGER NOT NULL,
  output INTEGER NOT NULL,
  cache_read INTEGER NOT NULL,
  cache_write INTEGER NOT NULL,
  cost_nano INTEGER,
  uncertain_nano INTEGER NOT NULL,
  error TEXT NOT NULL,
  PRIMARY KEY (seq, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_by_agent ON usage (agent);
CREATE TABLE rows_mark (
  one INTEGER PRIMARY KEY CHECK (one = 1), form INTEGER NOT NULL, seq INTEGER NOT NULL, unread INTEGER NOT NULL
) STRICT;
"""
"""``rows_mark``: the tables hold all records up to ``seq``, but for ``unread`` ones that could not be read."""

_TABLES = ("agents", "messages", "tool_calls", "mail", "usage", "rows_mark")


def _insert(table: str, row: type[msgspec.Struct]) -> str:
    names = row.__struct_fields__
    values = ", ".join(f"value ->> {place}" for place in range(len(names)))
    # Names of our own tables and columns.
    return f"INSERT OR REPLACE INTO {table} ({', '.join(names)}) SELECT {values} FROM carray(?1)"  # noqa: S608


_INSERTS = {
    AgentRow: _insert("agents", AgentRow),
    MessageRow: _insert("messages", MessageRow),
    ToolCallRow: _insert("tool_calls", ToolCallRow),
    MailRow: _insert("mail", MailRow),
    UsageRow: _insert("usage", UsageRow),
}
# INDEXED BY keeps the planner from looking the array through for each row, which would be quadratic.
_CHANGE_AGENTS = """
UPDATE agents SET
  status = CASE WHEN change.value ->> 1 <> 'settled' THEN change.value ->> 1
    WHEN change.value ->> 1 IS NULL OR status = 'closed' THEN status ELSE 'idle' END,
  turns = coalesce(change.value ->> 2, turns),
  outcome = coalesce(change.value ->> 3, outcome),
  reason = coalesce(change.value ->> 4, reason),
  result = coalesce(change.value ->> 5, result),
  last_text = coalesce(change.value ->> 6, last_text),
  ended_us = coalesce(change.value ->> 7, ended_us)
FROM carray(?1) AS change WHERE agents.agent = change.value ->> 0
"""
_CHANGE_CALLS = """
UPDATE tool_calls INDEXED BY tool_calls_open SET
  dispatched_us = coalesce(change.value ->> 3, dispatched_us),
  child = coalesce(change.value ->> 4, child),
  ended_us = change.value ->> 5,
  result = change.value ->> 6,
  is_error = change.value ->> 7,
  mistake = change.value ->> 8
FROM carray(?1) AS change
WHERE tool_calls.agent = change.value ->> 0 AND tool_calls.call_id = change.value ->> 1
  AND tool_calls.seq <= change.value ->> 2 AND tool_calls.ended_us IS NULL
"""
_CHANGE_MAIL = """
UPDATE mail INDEXED BY mail_unread SET fate = change.value ->> 4, fate_seq = change.value ->> 5
FROM carray(?1) AS change
WHERE mail.recipient = change.value ->> 0 AND mail.seq BETWEEN change.value ->> 1 AND change.value ->> 2
  AND mail.fate IS NULL AND NOT (change.value ->> 3 AND mail.kind IN ('prompt', 'text'))
"""

_encode = msgspec.json.Encoder().encode


def make_tables(db: apsw.Connection) -> None:
    """Make the tables, empty; does nothing where they are there in the form of this version. Inside a transaction."""
    if rows_seq(db) < 0:
        _drop(db)
        db.execute(_SCHEMA)
        db.execute("INSERT INTO rows_mark VALUES (1, ?, 0, 0)", (ROWS_FORM,))


def drop_tables(path: Path) -> None:
    """Remove the tables of a store that this process owns, so that they are made anew; blocks.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        db = connect(path, read_only=False)
        try:
            db.set_busy_timeout(10_000)
            db.execute("BEGIN IMMEDIATE")
            _drop(db)
            db.execute("COMMIT")
        finally:
            db.close()
    except apsw.Error as error:
        raise explain(error, path) from error


def _drop(db: apsw.Connection) -> None:
    for table in reversed(_TABLES):
        db.execute(f"DROP TABLE IF EXISTS {table}")


def rows_seq(db: apsw.Connection) -> int:
    """The last record that is in the tables; -1 where there are none, or in another form."""
    if not db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'rows_mark'").get:
        return -1
    row = db.execute("SELECT seq FROM rows_mark WHERE form = ?", (ROWS_FORM,)).fetchone()
    return row[0] if row else -1


def catch_up(db: apsw.Connection, fence: Callable[[], None]) -> None:
    """Put every record that is in the log and not in the tables there, in transactions of some thousands.

    Each begins with ``fence``, which raises where the store belongs to another process by now.
    """
    last = -1
    while True:
        db.execute("BEGIN IMMEDIATE")
        try:
            fence()
            make_tables(db)
            done = rows_seq(db)
            found = db.execute("SELECT seq, body FROM log WHERE seq > ? ORDER BY seq LIMIT ?", (done, _SLICE))
            records = [record_of(seq, body) for seq, body in found]
            if records:
                write_rows(db, records)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        if len(records) < _SLICE or done == last:
            return
        last = done


def write_rows(db: apsw.Connection, records: Sequence[Record]) -> None:
    """Put ``records`` into the tables; inside the transaction that puts them into the log."""
    by_kind: dict[type, list[Row]] = {}
    unread = 0
    for record in records:
        try:
            rows = project(record)
        except RecordError:
            unread += 1
            continue
        for row in rows:
            by_kind.setdefault(type(row), []).append(row)
    for kind, statement in _INSERTS.items():
        if kind in by_kind:
            _execute(db, statement, by_kind[kind])
    for agents in changes_in_rounds(by_kind.get(AgentChange, ()), _agent_of):  # type: ignore[type-var, arg-type]
        _execute(db, _CHANGE_AGENTS, agents)
    for calls in changes_in_rounds(by_kind.get(CallChange, ()), _call_of):  # type: ignore[type-var, arg-type]
        _execute(db, _CHANGE_CALLS, calls)
    for mails in changes_in_rounds(by_kind.get(MailChange, ()), _recipient_of):  # type: ignore[type-var, arg-type]
        _execute(db, _CHANGE_MAIL, mails)
    db.execute("UPDATE rows_mark SET seq = ?, unread = unread + ?", (records[-1].seq, unread))


def _agent_of(change: AgentChange) -> int:
    return change.agent


def _call_of(change: CallChange) -> tuple[int, str]:
    return change.agent, change.call_id


def _recipient_of(change: MailChange) -> int:
    return change.recipient


def _execute(db: apsw.Connection, statement: str, rows: Iterable[Row]) -> None:
    db.execute(statement, (apsw.carray(tuple([_encode(row).decode() for row in rows])),))

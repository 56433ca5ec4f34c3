"""The plain tables of row stores in a Postgres database, and how rows get in.

Theory of operation
-------------------
All swarms of a database share one schema, ``nanotrio``, whose tables have the swarm's number in front of every key. So
one query may ask about all of them. Each swarm's own schema has views of the same names that show its rows alone, as a
row store in a file has tables, and a ``rows_mark`` that says how far its rows go.

Rows travel with their records, in the driver's one statement. There the mark stands between the fence and the rows: it
moves on from where the records begin, and only what moves it puts rows in. So a statement that is done again after a
lost answer changes nothing.

What is changed are rows of earlier batches, found by key. The arrays that name them are hidden from the planner in
sub-selects; it then expects ten, and looks each up in an index, where else it would rather read whole tables.

Foreign keys between the tables are declared from Postgres 18 on, where they can be declared without being enforced:
the log is the truth, and a fact in it that nobody understands must not stop a commit. That an agent's swarm is there
is enforced.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import psycopg
import trio

from ..errors import FencedError, StoreError
from ..records import Record
from .postgres_address import PostgresAddress
from .postgres_arrays import INT8, INT8S, TEXTS, int8, integers, texts
from .postgres_connection import TrioConnection, connect
from .postgres_schema import explain, has_lz4, schema_of
from .row_batch import AGENT, CALL, MAIL, MESSAGE, USAGE, RowBatch
from .rows import ROWS_FORM

__all__ = ["TABLES", "RowStatement", "catch_up", "drop_rows", "make_rows", "row_statement"]

_T = TypeVar("_T")
_values = msgspec.structs.astuple
_Run: TypeAlias = Callable[[Callable[[TrioConnection], Awaitable[_T]]], Awaitable[_T]]
RowStatement: TypeAlias = tuple[str, list[int], list[bytes | None]]
"""Parts of a statement after its fence, with types and values of the parameters in them."""

_SHARED: Final = "nanotrio"
"""Swarms' own schemas have an underscore after it. Tables of another form would get another name, since swarms of an
earlier version may be writing into these."""
_SLICE: Final = 4_096
_DELETE_SECONDS: Final = 3_600.0

TABLES: Final = {"agents": AGENT, "messages": MESSAGE, "tool_calls": CALL, "mail": MAIL, "usage": USAGE}
"""Columns, in order; in the shared tables ``swarm`` comes before them."""

_KEYS: Final = {
    "agents": "agent",
    "messages": "seq, position",
    "tool_calls": "seq, position",
    "mail": "seq",
    "usage": "seq, position",
}
_TEXT: Final = frozenset(
    [
        *("name", "uuid", "status", "outcome", "reason", "result", "last_text", "role", "kind", "text", "model"),
        *("call_id", "arguments", "mistake", "sender_name", "fate", "error"),
    ]
)
_MAY_BE_NULL: Final = {
    "agents": ("parent", "outcome", "reason", "result", "last_text", "ended_us"),
    "messages": (),
    "tool_calls": ("dispatched_us", "child", "ended_us", "result", "is_error", "mistake"),
    "mail": ("sender", "fate", "fate_seq"),
    "usage": ("cost_nano",),
}
_REFERENCES: Final = {
    "agents": ("parent", "root"),
    "messages": ("agent",),
    "tool_calls": ("agent", "child"),
    "mail": ("recipient", "sender"),
    "usage": ("agent",),
}
_INDEXES: Final = f"""
CREATE INDEX agents_by_parent ON {_SHARED}.agents (swarm, parent);
CREATE INDEX messages_by_agent ON {_SHARED}.messages (swarm, agent);
CREATE INDEX tool_calls_by_agent ON {_SHARED}.tool_calls (swarm, agent);
CREATE INDEX tool_calls_open ON {_SHARED}.tool_calls (swarm, agent) WHERE ended_us IS NULL;
CREATE INDEX mail_by_recipient ON {_SHARED}.mail (swarm, recipient);
CREATE INDEX mail_unread ON {_SHARED}.mail (swarm, recipient, seq) WHERE fate IS NULL;
CREATE INDEX usage_by_agent ON {_SHARED}.usage (swarm, agent);
"""
_MARK: Final = """
CREATE TABLE {schema}.rows_mark (
  one int PRIMARY KEY CHECK (one = 1), form int NOT NULL, swarm bigint NOT NULL, seq bigint NOT NULL,
  unread bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO {schema}.rows_mark VALUES (1, {form}, {swarm}, 0, 0);
"""
"""The tables hold all records up to ``seq``, but for ``unread`` ones that could not be read."""

_GATE: Final = """, gate AS (
  UPDATE {schema}.rows_mark SET seq = ${0}, unread = unread + ${1} FROM fence WHERE rows_mark.seq = ${2} RETURNING seq
)"""
_CHANGE_AGENTS: Final = """, changed_agents AS (
  UPDATE {shared}.agents AS old SET
    status = CASE WHEN new.status <> 'settled' THEN new.status
      WHEN new.status IS NULL OR old.status = 'closed' THEN old.status ELSE 'idle' END,
    turns = coalesce(new.turns, old.turns),
    outcome = coalesce(new.outcome, old.outcome),
    reason = coalesce(new.reason, old.reason),
    result = coalesce(new.result, old.result),
    last_text = coalesce(new.last_text, old.last_text),
    ended_us = coalesce(new.ended_us, old.ended_us)
  FROM ({new}) AS new WHERE old.swarm = {swarm} AND old.agent = new.agent
)"""
_CHANGE_CALLS: Final = """, changed_calls AS (
  UPDATE {shared}.tool_calls AS old SET
    dispatched_us = coalesce(new.dispatched_us, old.dispatched_us),
    child = coalesce(new.child, old.child),
    ended_us = new.ended_us, result = new.result, is_error = new.is_error, mistake = new.mistake
  FROM ({new}) AS new
  WHERE old.swarm = {swarm} AND old.agent = new.agent AND old.call_id = new.call_id AND old.ended_us IS NULL
)"""
_CHANGE_MAIL: Final = """, changed_mail AS (
  UPDATE {shared}.mail AS old SET fate = new.fate, fate_seq = new.fate_seq
  FROM (
    SELECT DISTINCT ON (mail.seq) mail.seq, new.fate, new.fate_seq
    FROM ({new}) AS new CROSS JOIN LATERAL (
      SELECT seq FROM {shared}.mail WHERE swarm = {swarm} AND recipient = new.recipient AND fate IS NULL
        AND seq BETWEEN new.first AND new.last AND (new.told = 0 OR kind NOT IN ('prompt', 'text')) OFFSET 0
    ) AS mail
    ORDER BY mail.seq, new.place
  ) AS new WHERE old.swarm = {swarm} AND old.seq = new.seq
)"""
_AGENT_CHANGE: Final = ("agent", "status", "turns", "outcome", "reason", "result", "last_text", "ended_us")
_CALL_CHANGE: Final = (
    *("agent", "call_id", "seq", "dispatched_us", "child", "ended_us", "result", "is_error", "mistake"),
)
_MAIL_CHANGE: Final = ("recipient", "first", "last", "told", "fate", "fate_seq", "place")

_FENCE: Final = """
WITH fence AS (UPDATE {schema}.owner SET renewed = clock_timestamp() WHERE epoch = $1 RETURNING one)"""


def row_statement(records: Sequence[Record], schema: str, swarm: int, first: int) -> RowStatement:
    """Return what puts ``records`` into the tables of ``swarm``; its parameters begin with number ``first``."""
    batch = RowBatch(records)
    parts = [_GATE.format(first, first + 1, first + 2, schema=schema)]
    types = [INT8, INT8, INT8]
    values: list[bytes | None] = [int8(records[-1].seq), int8(batch.unread), int8(records[0].seq - 1)]

    def columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
        marks = []
        for name, column in zip(names, zip(*rows, strict=True), strict=True):
            is_text = name in _TEXT
            types.append(TEXTS if is_text else INT8S)
            values.append(texts(column) if is_text else integers(column))
            marks.append(f"${first + len(values) - 1}")
        return marks

    def insert(table: str, rows: Sequence[Any]) -> None:
        if rows:
            names = TABLES[table]
            cells = ", ".join([f"unnest({mark})" for mark in columns(names, rows)])
            parts.append(
                f", new_{table} AS (INSERT INTO {_SHARED}.{table} (swarm, {', '.join(names)})"  # noqa: S608 - our names
                f" SELECT {swarm}, {cells} FROM gate ON CONFLICT DO NOTHING)"
            )

    def change(statement: str, names: Sequence[str], rows: Sequence[Any]) -> None:
        if rows:
            pairs = zip(names, columns(names, rows), strict=True)
            cells = ", ".join([f"unnest((SELECT {mark})) AS {name}" for name, mark in pairs])
            parts.append(statement.format(shared=_SHARED, swarm=swarm, new=f"SELECT {cells} FROM gate"))  # noqa: S608

    insert("agents", batch.agents)
    insert("messages", [*map(_values, batch.messages)])
    insert("tool_calls", batch.calls)
    insert("mail", batch.mails)
    insert("usage", [*map(_values, batch.usages)])
    change(_CHANGE_AGENTS, _AGENT_CHANGE, [*map(_values, batch.agent_changes.values())])
    change(_CHANGE_CALLS, _CALL_CHANGE, [*map(_values, batch.call_changes.values())])
    change(_CHANGE_MAIL, _MAIL_CHANGE, [(*_values(each), place) for place, each in enumerate(batch.mail_changes)])
    return "".join(parts), types, values


async def make_rows(connection: TrioConnection, address: PostgresAddress) -> int:
    """Make the tables, empty, unless they are there, and return the swarm's number in them; inside a transaction.

    Raises:
        StoreError: the database cannot hold every text.
        psycopg.Error: the server refused.
    """
    schema = schema_of(address.swarm)
    swarm = await _number(connection, schema)
    if swarm:
        return swarm
    await _forget(connection, address)
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (_SHARED,))
    if not await _first(connection, f"SELECT to_regclass('{_SHARED}.swarms') IS NOT NULL"):
        await _make_shared(connection, address)
    added = f"INSERT INTO {_SHARED}.swarms (name) VALUES (%s) RETURNING id"  # noqa: S608 - a name of ours
    swarm = int(await _first(connection, added, address.swarm))
    views = [
        f"CREATE VIEW {schema}.{table} AS SELECT {', '.join(names)} FROM {_SHARED}.{table} WHERE swarm = {swarm};"  # noqa: S608
        for table, names in TABLES.items()
    ]
    mark = _MARK.format(schema=schema, form=ROWS_FORM, swarm=swarm)
    await connection.execute("\n".join([mark, *views]).encode())
    return swarm


async def drop_rows(address: PostgresAddress) -> None:
    """Remove the rows of a swarm that this process owns, so that they are made anew. Checkpoints.

    Raises:
        StoreError: the server cannot be reached, or refused.
    """
    try:
        connection = await connect(address.parameters)
        try:
            await connection.execute("BEGIN")
            await _forget(connection, address)
            await connection.execute("COMMIT")
        finally:
            connection.discard()
    except psycopg.Error as error:
        raise explain(error, address) from error


async def catch_up(run: _Run[Any], address: PostgresAddress, epoch: int, swarm: int) -> None:
    """Put every record that is in the log and not in the tables there, some thousands a statement. Checkpoints.

    ``run`` does what it is given on a connection, again where one was lost; to do a part twice changes nothing.

    Raises:
        FencedError: the store belongs to another process by now.
    """
    schema = schema_of(address.swarm)
    scan = f"""
SELECT seq, prev, agent, at_us, facts FROM {schema}.log WHERE seq > (SELECT seq FROM {schema}.rows_mark)
ORDER BY seq LIMIT {_SLICE}
"""  # noqa: S608 - a schema's name

    async def read(connection: TrioConnection) -> list[Record]:
        rows = await (await connection.execute(scan.encode(), binary=True)).fetchall()
        return [Record(*row) for row in rows]

    async def write(statement: RowStatement, connection: TrioConnection) -> bool:
        parts, types, values = statement
        query = f"{_FENCE.format(schema=schema)}{parts} SELECT count(*) FROM fence"  # noqa: S608
        result = await connection.statement(query.encode(), [int8(epoch), *values], [INT8, *types])
        return bool(result.get_value(0, 0) != int8(0))

    limiter = trio.CapacityLimiter(1)
    while records := await run(read):
        make = partial(row_statement, records, schema, swarm, 2)
        statement = await trio.to_thread.run_sync(make, limiter=limiter)
        if not await run(partial(write, statement)):
            raise FencedError(f"another process took {address.url} over; nothing more can be written from here")


async def _number(connection: TrioConnection, schema: str) -> int:
    """The swarm's number where all tables are there in the form of this version, else 0."""
    names = [*(f"{_SHARED}.{table}" for table in ("swarms", *TABLES))]
    names += [f"{schema}.{table}" for table in ("rows_mark", *TABLES)]
    if not await _first(
        connection, "SELECT every(to_regclass(name) IS NOT NULL) FROM unnest(%s::text[]) AS name", names
    ):
        return 0
    query = f"SELECT swarm FROM {schema}.rows_mark JOIN {_SHARED}.swarms ON id = swarm WHERE form = %s"  # noqa: S608
    return int(await _first(connection, query, ROWS_FORM) or 0)


async def _forget(connection: TrioConnection, address: PostgresAddress) -> None:
    """Remove the views, the mark, and whatever rows a swarm of that name has."""
    schema = schema_of(address.swarm)
    silence = connection.silence_seconds
    # The server says nothing while it deletes, and that may be the rows of a million agents.
    connection.silence_seconds = _DELETE_SECONDS
    try:
        drops = [*(f"DROP VIEW IF EXISTS {schema}.{table};" for table in TABLES)]
        await connection.execute("\n".join([*drops, f"DROP TABLE IF EXISTS {schema}.rows_mark;"]).encode())
        for table in (*reversed(TABLES), "swarms"):
            if await _first(connection, f"SELECT to_regclass('{_SHARED}.{table}') IS NOT NULL"):
                number = "id" if table == "swarms" else "swarm"
                ours = f"SELECT id FROM {_SHARED}.swarms WHERE name = %s"  # noqa: S608 - names of ours
                query = f"DELETE FROM {_SHARED}.{table} WHERE {number} IN ({ours})"  # noqa: S608
                await connection.execute(query.encode(), (address.swarm,))
    finally:
        connection.silence_seconds = silence


async def _make_shared(connection: TrioConnection, address: PostgresAddress) -> None:
    encoding = await _first(connection, "SELECT current_setting('server_encoding')")
    if encoding != "UTF8":
        raise StoreError(
            f"the database of {address.url} has the encoding {encoding}, in which tables cannot hold every text; "
            f"make one with createdb -E UTF8, or leave the tables out: {address.without_rows}"
        )
    numbered = int(await _first(connection, "SELECT current_setting('server_version_num')"))
    parts = [
        f"CREATE SCHEMA IF NOT EXISTS {_SHARED};",
        f"CREATE TABLE {_SHARED}.swarms (",
        "  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text UNIQUE NOT NULL",
        ");",
    ]
    for table, names in TABLES.items():
        nullable = _MAY_BE_NULL[table]
        columns = [
            f"{name} {'text' if name in _TEXT else 'bigint'}{'' if name in nullable else ' NOT NULL'}" for name in names
        ]
        swarm = f"swarm bigint NOT NULL{f' REFERENCES {_SHARED}.swarms' if table == 'agents' else ''}"
        room = " WITH (fillfactor = 85)" if table == "agents" else ""
        cells = ", ".join([swarm, *columns])
        parts.append(f"CREATE TABLE {_SHARED}.{table} ({cells}, PRIMARY KEY (swarm, {_KEYS[table]})){room};")
    if numbered >= 180_000:
        parts += [
            f"ALTER TABLE {_SHARED}.{table} ADD FOREIGN KEY (swarm, {name}) REFERENCES {_SHARED}.agents NOT ENFORCED;"
            for table, names in _REFERENCES.items()
            for name in names
        ]
    if await has_lz4(connection):
        large = (("messages", "text"), ("tool_calls", "arguments"), ("tool_calls", "result"), ("mail", "text"))
        parts += [f"ALTER TABLE {_SHARED}.{table} ALTER {name} SET COMPRESSION lz4;" for table, name in large]
    parts.append(_INDEXES)
    parts.append(f"COMMENT ON SCHEMA {_SHARED} IS 'the tables of nanotrio row stores';")
    await connection.execute("\n".join(parts).encode())


async def _first(connection: TrioConnection, query: str, value: object = None) -> Any:
    values = None if value is None else (value,)
    row = await (await connection.execute(query.encode(), values)).fetchone()
    return row[0] if row else None

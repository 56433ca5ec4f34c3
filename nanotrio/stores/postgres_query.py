"""A question in SQL to a row store in Postgres, in a transaction that can only read.

The question becomes a cursor, which takes SELECT, VALUES and WITH and nothing else, and one statement alone. Names of
tables are looked for in the swarm's schema, whose views show its own rows; ``nanotrio.agents`` and the others, with
their schema before them, hold the rows of all swarms of the database.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import psycopg

from ..errors import UsageError
from .answer import SEVERAL, Answer, Value
from .postgres_address import PostgresAddress
from .postgres_connection import TrioConnection, connect
from .postgres_schema import check_schema, explain, schema_of

__all__ = ["query_postgres"]

_TROUBLE: Final = ("08", "53", "57", "58", "XX")
"""SQLSTATE classes of errors that are not the question's."""
_SLACK_SECONDS: Final = 10.0


async def query_postgres(address: PostgresAddress, sql: str, limit: int, seconds: float) -> Answer:
    """See ``query``; the server ends what runs for longer than ``seconds``."""
    schema = schema_of(address.swarm)
    try:
        connection = await connect(address.parameters)
        connection.silence_seconds = seconds + _SLACK_SECONDS
        try:
            if not await check_schema(connection, address):
                raise UsageError(f"there is no swarm {address.swarm!r} at {address.url}")
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            await connection.execute(f"SET LOCAL search_path = {schema}, pg_catalog".encode())
            behind = await _behind(connection, address)
            await connection.execute(f"SET LOCAL statement_timeout = {round(seconds * 1000)}".encode())
            return await _asked(connection, sql, limit, behind)
        finally:
            connection.discard()
    except psycopg.errors.QueryCanceled as error:
        raise UsageError(
            f"the query ran for more than {seconds:g} s and was ended; ask for less, or give it longer"
        ) from error
    except psycopg.Error as error:
        if error.sqlstate is None or error.sqlstate.startswith(_TROUBLE):
            raise explain(error, address) from error
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            raise UsageError("the query cannot be run: it does more than read") from error
        told = error.diag.message_primary or ""
        if "multiple commands" in told:  # of a server that speaks English; others say it in their own words
            raise UsageError(SEVERAL) from error
        raise UsageError(f"the query cannot be run: {told}") from error


async def _behind(connection: TrioConnection, address: PostgresAddress) -> int:
    """How many records of the log the tables lack."""
    try:
        cursor = await connection.execute("SELECT (SELECT coalesce(max(seq), 0) FROM log) - seq FROM rows_mark")
        row = await cursor.fetchone()
    except psycopg.errors.UndefinedTable:
        row = None
    if row is None:
        rows = address.without_rows.replace("postgres:", "postgres+rows:", 1)
        raise UsageError(
            f"{address.without_rows} has no tables; opened once as {rows}, it gets them and keeps them"
        ) from None
    return int(row[0])


async def _asked(connection: TrioConnection, sql: str, limit: int, behind: int) -> Answer:
    # As one with parameters, so that the server takes a single statement; it says where that one ends.
    declared = f"DECLARE answer NO SCROLL CURSOR FOR {sql}"
    await connection.statement(declared.encode("utf-8", "replace"))
    cursor = await connection.execute(f"FETCH {limit + 1} FROM answer".encode())
    result = cursor.pgresult
    if result is None or result.nfields == 0:
        return Answer((), [], is_cut=False, behind=behind)
    columns = tuple([(result.fname(place) or b"").decode("utf-8", "replace") for place in range(result.nfields)])
    readers = [_reader(result.ftype(place)) for place in range(result.nfields)]
    rows = [
        tuple([_read(readers[place], result.get_value(row, place)) for place in range(result.nfields)])
        for row in range(min(result.ntuples, limit))
    ]
    return Answer(columns, rows, is_cut=result.ntuples > limit, behind=behind)


def _read(reader: Callable[[bytes], Value], value: bytes | None) -> Value:
    return None if value is None else reader(value)


def _reader(kind: int) -> Callable[[bytes], Value]:
    """What reads a value of that type (its number in pg_type) from text; what is no number or blob stays text."""
    if kind in (20, 21, 23, 26):
        return int
    if kind in (700, 701):
        return float
    return {16: _bool, 17: _blob, 1700: _numeric}.get(kind, _text)


def _text(value: bytes) -> Value:
    return value.decode("utf-8", "replace")


def _bool(value: bytes) -> Value:
    return int(value == b"t")


def _blob(value: bytes) -> Value:
    return bytes.fromhex(value[2:].decode())


def _numeric(value: bytes) -> Value:
    return float(value) if b"." in value or not value.removeprefix(b"-").isdigit() else int(value)

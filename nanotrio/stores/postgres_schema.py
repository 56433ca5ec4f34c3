"""The schema that holds a store in a Postgres database: how it is recognised and made, and what errors mean.

Each swarm has a schema of its own, ``nanotrio_NAME``. So every table has one short primary key, a swarm's size can be
told, and dropping the schema drops the swarm, without a trace in another's indexes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import psycopg

from ..errors import NewerStoreError, NotAStoreError, StoreDamagedError, StoreError
from ..records import FORMAT_VERSION
from .postgres_address import PostgresAddress
from .postgres_connection import TrioConnection

__all__ = ["STEPS", "check_schema", "explain", "has_lz4", "is_lost", "make_schema", "schema_of", "upgrade"]

_SCHEMA = """
CREATE SCHEMA {schema};
CREATE TABLE {schema}.owner (
  one int PRIMARY KEY CHECK (one = 1),
  version int NOT NULL,
  epoch bigint NOT NULL, batch bigint NOT NULL, released bool NOT NULL,
  boot_id text NOT NULL, pid bigint NOT NULL, started bigint NOT NULL, host text NOT NULL,
  renewed timestamptz NOT NULL, lease_seconds float8 NOT NULL,
  heads_seq bigint NOT NULL
) WITH (fillfactor = 10);
CREATE TABLE {schema}.log (
  seq bigint PRIMARY KEY, prev bigint NOT NULL, agent bigint NOT NULL, at_us bigint NOT NULL, facts bytea NOT NULL
);
CREATE TABLE {schema}.heads (
  agent bigint PRIMARY KEY, unfinished bool NOT NULL, body bytea NOT NULL
) WITH (fillfactor = 80);
CREATE INDEX heads_unfinished ON {schema}.heads (agent) WHERE unfinished;
INSERT INTO {schema}.owner VALUES (1, {version}, 0, 0, true, '', 0, 0, '', now(), 0, 0);
COMMENT ON SCHEMA {schema} IS 'a nanotrio swarm';
"""
"""``log`` holds a record a row, its facts in CBOR; ``heads.body`` is the ``Head`` as a JSON array in the order of its
fields, in UTF-8. The owner row is written by every commit; the room left in its page keeps that from growing the table.
"""

STEPS: Final[dict[int, Callable[[TrioConnection, str], Awaitable[None]]]] = {}
"""What takes a swarm's schema, by its quoted name, from a form to the next one, by the form it starts from. Whoever
raises ``FORMAT_VERSION`` adds a step here and in ``sqlite_file``, and keeps a store of the old form in
``tests/stores/kept``."""

_LOST = ("08", "57P", "57014")
"""SQLSTATE classes of a connection that the server ended or never took, and a cancel that came late, for another task.
"""


def schema_of(swarm: str) -> str:
    """The quoted name of a swarm's schema; names are of a kind that needs no escape."""
    return f'"nanotrio_{swarm}"'


async def check_schema(connection: TrioConnection, address: PostgresAddress) -> bool:
    """Say whether the swarm's store is there (True) or could be made there (False).

    Raises:
        NotAStoreError, NewerStoreError: what is there is not for this version.
        psycopg.Error: the server refused.
    """
    name = f"nanotrio_{address.swarm}"
    found = await (
        await connection.execute(
            "SELECT n.oid IS NOT NULL, c.oid IS NOT NULL FROM (SELECT 1) AS one"
            " LEFT JOIN pg_namespace n ON n.nspname = %s"
            " LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'owner'",
            (name,),
        )
    ).fetchone()
    there, ours = found or (False, False)
    if not there:
        return False
    if not ours:
        raise NotAStoreError(
            f"the schema {name} of {address.url} was not made by nanotrio; "
            "name the swarm otherwise, or rename the schema"
        )
    version = await _version(connection, address)
    if version > FORMAT_VERSION:
        raise NewerStoreError(
            f"{address.url} was written by a newer nanotrio (form {version}, this one knows {FORMAT_VERSION}); "
            "upgrade nanotrio to open it"
        )
    return True


async def _version(connection: TrioConnection, address: PostgresAddress) -> int:
    try:
        cursor = await connection.execute(f"SELECT version FROM {schema_of(address.swarm)}.owner")  # noqa: S608 - a name
        row = await cursor.fetchone()
    except psycopg.errors.UndefinedColumn:
        raise NotAStoreError(
            f"the schema nanotrio_{address.swarm} of {address.url} holds tables of another program; "
            "name the swarm otherwise, or rename the schema"
        ) from None
    if row is None:
        raise StoreDamagedError(f"{address.url} has lost its owner row; put a backup back")
    return int(row[0])


async def make_schema(connection: TrioConnection, address: PostgresAddress) -> None:
    """Make the store; the connection is in a transaction, which holds off others that would make it too."""
    schema = schema_of(address.swarm)
    await connection.execute(_SCHEMA.format(schema=schema, version=FORMAT_VERSION).encode())
    if await has_lz4(connection):
        # Large facts take the server a fifth of the time that its older method takes.
        await connection.execute(f"ALTER TABLE {schema}.log ALTER facts SET COMPRESSION lz4".encode())


async def has_lz4(connection: TrioConnection) -> bool:
    """Whether the server can compress by LZ4."""
    query = "SELECT 1 FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY(enumvals)"
    return await (await connection.execute(query)).fetchone() is not None


async def upgrade(
    connection: TrioConnection,
    address: PostgresAddress,
    steps: Mapping[int, Callable[[TrioConnection, str], Awaitable[None]]] = STEPS,
    to: int = FORMAT_VERSION,
) -> None:
    """Take a store of an older form forward, step by step; inside the transaction in which it gets its owner.

    Whoever looks into it meanwhile sees the old form or the new one, whole.
    """
    schema, form = schema_of(address.swarm), await _version(connection, address)
    for step in range(form, to):
        await steps[step](connection, schema)
    if form < to:
        await connection.execute(f"UPDATE {schema}.owner SET version = {to}".encode())  # noqa: S608 - a schema's name


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection is gone, so that another one may well do what this one could not."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state.startswith(_LOST)


def explain(error: psycopg.Error, address: PostgresAddress) -> StoreError:
    """Say in one line what an error of Postgres or of the way to it means for the store at ``address``."""
    reason = _one_line(error)
    where = address.url
    match error.sqlstate:
        case "28P01" | "28000":
            text = f"Postgres refuses the user or password of {where} ({reason}); correct the address"
        case "3D000":
            text = f"there is no database {address.database!r} at {where}; make it with createdb, or name another"
        case "42501":
            text = (
                f"the user of {where} may not do that ({reason}); "
                f"grant it CREATE on the database, or the schema nanotrio_{address.swarm}"
                + (" and all in the schema nanotrio" if address.rows else "")
            )
        case "42P01" | "3F000" | "42703":
            text = f"tables of {where} are missing or changed ({reason}); put a backup back"
        case "53100":
            text = f"the disk of the server that holds {where} is full; free some space there"
        case "53300":
            text = f"the server of {where} has no connection left; raise its max_connections, or end other programs"
        case "25006":
            text = f"the server of {where} takes no writes (a standby, or read-only); name the primary"
        case "55P03" | "40P01" | "40001":
            text = f"another program holds locks on {where} ({reason}); end its transaction"
        case "57014":
            text = f"the server ended a statement on {where} ({reason}); raise its statement_timeout"
        case "08P01" if "pooling mode" not in reason:
            text = _unreached(reason, address)
        case "26000" | "42P05" | "08P01":
            text = (
                f"a pooler in front of {where} mixes sessions ({reason}); set its pool_mode to transaction or session"
            )
        case "XX001" | "XX002":
            return StoreDamagedError(f"{where} is damaged ({reason}); put a backup back")
        case "23505":
            return StoreDamagedError(
                f"{where} holds records that this process did not write ({reason}); nothing more is written"
            )
        case None:
            text = _unreached(reason, address)
        case state if state.startswith("57P"):
            text = f"the server of {where} is stopping or starting ({reason}); it is tried again"
        case state:
            text = f"Postgres failed on {where}: {reason} (SQLSTATE {state})"
    return StoreError(text)


def _unreached(reason: str, address: PostgresAddress) -> str:
    """What an error without a code means: no server spoke."""
    where = address.url
    low = reason.lower()
    if "unsupported startup parameter" in low:
        return f"a pooler in front of {where} refuses us ({reason}); add the parameter to its ignore_startup_parameters"
    if "password" in low or "authentication" in low or "pg_hba" in low or "role" in low:
        return f"Postgres refuses the user or password of {where} ({reason}); correct the address"
    if "database" in low and "does not exist" in low:
        return f"there is no database {address.database!r} at {where}; make it with createdb, or name another"
    if "no such file" in low:
        return f"no Postgres listens at the Unix socket of {where} ({reason}); start it, or correct host and port"
    if "refused" in low:
        return f"no Postgres listens at {where} (connection refused); start it, or correct host and port"
    return f"the server of {where} cannot be reached ({reason}); start it, or see the network"


def _one_line(error: psycopg.Error) -> str:
    """The server's own words, or libpq's last line, which never hold a password."""
    text = (error.diag.message_primary if error.sqlstate else None) or str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("Is the server", "DETAIL", "HINT", "LINE", "^"))]
    return (kept or lines or [type(error).__name__])[0].removeprefix("connection failed: ").removeprefix("FATAL:  ")

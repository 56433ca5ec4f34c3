"""The Postgres driver: a schema a swarm, spoken to on Trio.

Theory of operation
-------------------
A batch is one statement. It changes the owner row, which is fence and idempotence at once, and from that row it feeds
two inserts, of the records and of the heads, whose columns come as one array each. A single statement needs one round
trip, is all or nothing by itself, leaves no transaction open whatever happens to us, and works behind a pooler that
shares connections by transaction. Above all the server holds the owner row only while it works, never while it waits
for us: COPY would be a third cheaper for the server, but a process that is stopped, or cut off, within a COPY would
hold that row, and so keep everybody from taking the store over.

With rows, the same statement takes the rows along (``postgres_rows``).

A commit whose answer was lost is tried again with the same number. Where it had been made, the owner row has that
number already, the statement changes nothing, and a look at the row tells so. Where the former statement still runs,
ours waits for the row.

Ownership on the same boot is judged as for a file, by pid and start time. A process that cannot be seen from here
(another machine, another boot, another container) is judged by its lease: the owner row says when it was last written,
by the server's clock, and for how long that holds. Commits renew it; while nothing is appended the journal commits an
empty batch every ``renew_seconds``.

Reads go to a few connections of their own and are done again when a connection is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

import msgspec
import psycopg
import trio

from ..errors import FencedError, StoreDamagedError, StoreError, StoreOwnedError
from ..records import Head, Record
from .chains import Chains
from .owner import TAKE_OVER, OwnerState, state_of
from .postgres_address import PostgresAddress, parse_postgres_url
from .postgres_arrays import BOOLS, BYTEAS, INT8, INT8S, blobs, booleans, int8, integers
from .postgres_connection import TrioConnection, connect
from .postgres_pool import PostgresPool
from .postgres_rows import catch_up, make_rows, row_statement
from .postgres_schema import check_schema, explain, make_schema, schema_of, upgrade
from .refusals import check_acquirable, check_open, check_order, damaged_record, unreadable_head
from .store import Batch, Owner, StoreStatistics, Tenure

__all__ = ["PostgresStore"]

LEASE_SECONDS: Final = 30.0
_READ_SLICE: Final = 16_384
_INLINE_RECORDS: Final = 4_096
_INLINE_WITH_ROWS: Final = 256
_MAX_DEPTH: Final = 1_024
_CLOSE_SECONDS: Final = 5.0

_FENCE = """
WITH fence AS (
  UPDATE {schema}.owner SET batch = $1, heads_seq = coalesce($3, heads_seq), renewed = clock_timestamp()
  WHERE epoch = $2 AND batch < $1 RETURNING one
)"""
_RECORDS = """, records AS (
  INSERT INTO {schema}.log (seq, prev, agent, at_us, facts)
  SELECT generate_series($4, $5), unnest($6), unnest($7), unnest($8), unnest($9) FROM fence
)"""
_HEADS = """, heads AS (
  INSERT INTO {schema}.heads (agent, unfinished, body)
  SELECT unnest(${0}), unnest(${1}), unnest(${2}) FROM fence
  ON CONFLICT (agent) DO UPDATE SET unfinished = excluded.unfinished, body = excluded.body
)"""
"""Sets that are asked for side by side in a select list advance together (PostgreSQL, "Set Returning Functions")."""
_COUNT = " SELECT count(*) FROM fence"

_OF_ROOT = " AND substr(body, length(agent::text) + 3, 1) NOT BETWEEN '1'::bytea AND '9'::bytea"
"""Of a ``Head``, whose stored order is fixed, field 0 is the agent and field 1 its parent. One of another form is not
left out, so that it is told of."""

_WALK = """
WITH RECURSIVE walk (slot, depth, stop, seq, prev, agent, at_us, facts) AS (
  SELECT ends.slot, 1, ends.stop, record.*
  FROM unnest(%b::bigint[], %b::bigint[]) WITH ORDINALITY AS ends (seq, stop, slot)
  CROSS JOIN LATERAL (SELECT * FROM {schema}.log WHERE log.seq = ends.seq OFFSET 0) AS record
  UNION ALL
  SELECT walk.slot, walk.depth + 1, walk.stop, record.*
  FROM walk CROSS JOIN LATERAL (SELECT * FROM {schema}.log WHERE log.seq = walk.prev OFFSET 0) AS record
  WHERE walk.prev >= walk.stop AND walk.prev < walk.seq AND walk.depth < %b
)
SELECT depth, slot, seq, prev, agent, at_us, facts FROM walk
"""
"""OFFSET 0 keeps the planner from joining with the whole log where it guesses the length of a walk wrongly."""
_TAKE = """
UPDATE {schema}.owner SET epoch = epoch + 1, batch = 0, released = false,
  boot_id = %s, pid = %s, started = %s, host = %s, renewed = clock_timestamp(), lease_seconds = %s
WHERE epoch = %s RETURNING epoch, heads_seq
"""
_OWNER = """
SELECT epoch, released, boot_id, pid, started, host,
  extract(epoch FROM renewed - clock_timestamp())::float8 + lease_seconds FROM {schema}.owner
"""
_ENDS = """
SELECT (SELECT coalesce(max(seq), 0) FROM {schema}.log), (SELECT coalesce(max(agent), 0) FROM {schema}.heads)
"""
_STATISTICS = """
SELECT coalesce((SELECT max(seq) FROM {schema}.log) - (SELECT min(seq) FROM {schema}.log) + 1, 0),
  (SELECT count(*) FROM {schema}.heads),
  pg_total_relation_size('{schema}.log') + pg_total_relation_size('{schema}.heads')
    + pg_total_relation_size('{schema}.owner'),
  heads_seq, epoch > 0 AND NOT released, boot_id, pid, started, host
FROM {schema}.owner
"""

_head_decoder = msgspec.json.Decoder(Head)
_head_encoder = msgspec.json.Encoder()


class PostgresStore:
    """A ``Store`` in a schema of a Postgres database (``stores/store.py`` has the promises); make one with ``open``.

    Reads may run beside a commit and beside each other.
    """

    def __init__(self, address: PostgresAddress, *, exists: bool, read_only: bool, lease_seconds: float) -> None:
        self.address = address
        self.read_only = read_only
        self._exists = exists
        self._lease_seconds = lease_seconds
        self._pool = PostgresPool(address)
        self._schema = schema_of(address.swarm)
        self._limiter = trio.CapacityLimiter(1)
        self._statements: dict[tuple[bool, bool], tuple[str, list[int]]] = {}
        self._writer: TrioConnection | None = None
        self._closed = False
        self._epoch = 0
        self._last_seq = 0
        self._commits = 0
        self._swarm = 0
        """Its number in the shared tables, 0 where it does not write them."""

    @classmethod
    async def open(
        cls, url: str | PostgresAddress, *, read_only: bool = False, lease_seconds: float = LEASE_SECONDS
    ) -> PostgresStore:
        """Reach the server and return the store of the swarm; nothing is written before ``acquire``. Checkpoints.

        Where there is no such swarm yet, ``acquire`` makes it. ``read_only`` is for looking into a store, also while
        its owner runs. An owner that other machines cannot see keeps the store for ``lease_seconds`` after it fell
        silent. How durable a commit is against a loss of power is the server's setting ``synchronous_commit``.

        Raises:
            UsageError: the address cannot be read.
            NotAStoreError, NewerStoreError: what is there is not for this version.
            StoreError: the server cannot be reached or refuses, or ``read_only`` and nothing is there.
        """
        address = parse_postgres_url(url) if isinstance(url, str) else url
        store = cls(address, exists=False, read_only=read_only, lease_seconds=lease_seconds)
        try:
            await store._look(patient=False, must_exist=read_only)
        except BaseException:
            store._pool.close()
            raise
        return store

    async def acquire(self, owner: Owner, *, takeover: bool = False) -> Tenure:
        """Become the one writer; see ``Store.acquire``.

        An owner that cannot be seen from here counts as dead when its lease has run out.
        """
        where = self.address.url
        check_open(where, closed=self._closed)
        check_acquirable(where, read_only=self.read_only, acquired=bool(self._epoch))
        tenure = await self._pool.run(partial(self._acquire, owner, takeover), patient=False)
        self._epoch, self._last_seq = tenure.epoch, tenure.last_seq
        if self._swarm:
            await catch_up(partial(self._pool.run, patient=True), self.address, self._epoch, self._swarm)
        return tenure

    async def commit(self, batch: Batch) -> None:
        """Write a batch; see ``Store.commit``. One round trip; cancelled, it is given 5 s to end by itself."""
        check_open(self.address.url, closed=self._closed)
        if not self._epoch:
            raise StoreError(f"{self.address.url} was not acquired; nothing can be written")
        if batch.records and batch.records[-1].seq > self._last_seq:
            check_order(self.address.url, batch.records, self._last_seq)
        if len(batch.records) <= (_INLINE_WITH_ROWS if self._swarm else _INLINE_RECORDS):
            query, types, parameters = self._statement(batch)
        else:  # what gathered for a round of heads, or makes many rows, may take 60 ms to write out
            make = partial(self._statement, batch)
            query, types, parameters = await trio.to_thread.run_sync(make, limiter=self._limiter)
        try:
            writer = await self._connected()
            result = await writer.statement(query, parameters, types)
            changed = result.get_value(0, 0) != int8(0)
            if not changed:
                await self._check_fence(writer, batch)
        except psycopg.Error as error:
            self._drop_writer()
            raise explain(error, self.address) from error
        except BaseException:
            if self._writer is not None:
                self._writer.discard_unless_idle()
            raise
        if batch.records:
            self._last_seq = max(self._last_seq, batch.records[-1].seq)
        self._commits += 1

    async def heads(
        self,
        *,
        agents: Sequence[int] | None = None,
        unfinished: bool = False,
        roots: bool = False,
        after: int = 0,
        limit: int = 4096,
    ) -> list[Head]:
        """Return heads in order of agent; see ``Store.heads``."""
        query = f"SELECT body FROM {self._schema}.heads WHERE agent > %b"  # noqa: S608 - a schema's name
        parameters: list[Any] = [after]
        if unfinished:
            query += " AND unfinished"
        if roots:
            query += _OF_ROOT
        if agents is not None:
            query += " AND agent = ANY(%b::bigint[])"
            parameters.append(list(agents))
        rows = await self._rows(f"{query} ORDER BY agent LIMIT %b", [*parameters, limit])
        try:
            return [_head_decoder.decode(body) for (body,) in rows]
        except msgspec.DecodeError as error:
            raise unreadable_head(self.address.url, error) from error

    async def load(self, ends: Sequence[tuple[int, int]]) -> list[list[Record]]:
        """Return whole chains; see ``Store.load``. The server walks them, up to some 16,000 records a round trip."""
        chains = Chains(ends, self.address.url)
        if not chains.wanted:
            await trio.lowlevel.checkpoint()
            check_open(self.address.url, closed=self._closed)
        query = _WALK.format(schema=self._schema)
        while chains.wanted:
            depth = max(1, min(_MAX_DEPTH, _READ_SLICE // len(chains.wanted)))
            rows = await self._rows(query, [chains.wanted, chains.stops, depth])
            # By depth, then by slot: the order in which the chains want them.
            rows.sort(key=_by_level)
            at = 0
            for level in range(1, depth + 1):
                if not chains.wanted:
                    break
                end = at
                while end < len(rows) and rows[end][0] == level:
                    end += 1
                chains.receive([Record(*row[2:]) for row in rows[at:end]])
                at = end
        return chains.oldest_first()

    async def scan(self, after_seq: int, *, limit: int = 4096) -> list[Record]:
        """Return the records that follow ``after_seq``; see ``Store.scan``."""
        query = f"SELECT seq, prev, agent, at_us, facts FROM {self._schema}.log WHERE seq > %b ORDER BY seq LIMIT %b"  # noqa: S608
        records = [Record(*row) for row in await self._rows(query, [after_seq, limit])]
        for expected, record in enumerate(records, after_seq + 1):
            if record.seq != expected:
                raise damaged_record(self.address.url, f"record {expected} of {self.address.url} is missing")
        return records

    async def statistics(self) -> StoreStatistics:
        """Return sizes and counts; counting heads takes the server some 10 ms for each 100,000."""
        rows = await self._rows(_STATISTICS.format(schema=self._schema), [])
        if not rows:
            raise StoreDamagedError(f"{self.address.url} has lost its owner row; put a backup back")
        records, heads, size, heads_seq, is_owned, boot_id, pid, started, host = rows[0]
        return StoreStatistics(
            url=self.address.url,
            records=records,
            heads=heads,
            size_bytes=size,
            pending_bytes=0,
            commits=self._commits,
            heads_seq=heads_seq,
            owner=Owner(boot_id, pid, started, host) if is_owned else None,
        )

    async def aclose(self) -> None:
        """Give the store back and close the connections; tried for 5 s even when cancelled. Safe to call twice."""
        if not self._closed:
            self._closed = True
            with trio.move_on_after(_CLOSE_SECONDS, shield=True):
                await self._release()
            self._drop_writer()
            self._pool.close()
        await trio.lowlevel.checkpoint()

    async def _release(self) -> None:
        """Where the server cannot be told, the row still names this process, and whoever comes next finds it dead."""
        if not self._epoch:
            return
        query = f"UPDATE {self._schema}.owner SET released = true WHERE epoch = $1"  # noqa: S608 - a schema's name
        with suppress(psycopg.Error, OSError):
            try:
                await (await self._connected()).statement(query.encode(), [int8(self._epoch)], [INT8])
            except psycopg.Error:
                self._drop_writer()
                await (await self._connected()).statement(query.encode(), [int8(self._epoch)], [INT8])

    # Owning.

    async def _acquire(self, owner: Owner, takeover: bool, connection: TrioConnection) -> Tenure:
        await connection.execute("BEGIN")
        await connection.execute("SET LOCAL lock_timeout = '10s'")
        # Held to the transaction's end, so it suits a pooler too: one process at a time makes or takes a store.
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (self._schema,))
        if not await check_schema(connection, self.address):
            await make_schema(connection, self.address)
        row = await (await connection.execute(_OWNER.format(schema=self._schema).encode(), binary=True)).fetchone()
        if row is None:
            raise StoreDamagedError(f"{self.address.url} has lost its owner row; put a backup back")
        epoch, released, boot_id, pid, started, host, left_seconds = row
        former = Owner(boot_id, pid, started, host) if epoch else None
        if former and not released and not takeover:
            self._judge(former, owner, left_seconds)
        values = (owner.boot_id, owner.pid, owner.started, owner.host, self._lease_seconds, epoch)
        taken = await (await connection.execute(_TAKE.format(schema=self._schema).encode(), values)).fetchone()
        if taken is None:
            raise StoreError(f"another process takes {self.address.url} at this moment; try again")
        await upgrade(connection, self.address)
        self._swarm = await make_rows(connection, self.address) if self.address.rows else 0
        # A statement of its own, so that it sees what the former owner wrote until the row was ours.
        ends = await (await connection.execute(_ENDS.format(schema=self._schema).encode())).fetchone()
        await connection.execute("COMMIT")
        self._exists = True
        last_seq, last_agent = cast("tuple[int, int]", ends)
        lives = former is not None and not released and _state_of(former, owner, left_seconds) != "dead"
        marks = (last_seq, taken[1], last_agent)
        return Tenure(taken[0], *marks, former, lives, renew_seconds=self._lease_seconds / 3)

    def _judge(self, former: Owner, owner: Owner, left_seconds: float) -> None:
        """Refuse, unless the former owner is dead."""
        where = self.address.url
        state = _state_of(former, owner, left_seconds)
        if state == "dead":
            return
        if state == "elsewhere":
            text = (
                f"{where} is owned by process {former.pid} on {former.host}, whose lease holds for another "
                f"{left_seconds:.0f} s unless renewed; end it there, or {TAKE_OVER}"
            )
        elif former == owner:
            text = f"{where} is open in this process already; close it there first"
        else:
            advice = "continue or end it" if state == "stopped" else "end it"
            text = f"{where} is owned by process {former.pid} ({state}); {advice}, or {TAKE_OVER}"
        raise StoreOwnedError(text, pid=former.pid, state=state)

    # Writing.

    def _statement(self, batch: Batch) -> tuple[bytes, list[int], list[bytes | None]]:
        records, heads = batch.records, batch.heads
        key = (bool(records), bool(heads))
        if key not in self._statements:
            count = 9 if records else 3
            query = _FENCE + (_RECORDS if records else "")
            query += _HEADS.format(*range(count + 1, count + 4), schema="{schema}") if heads else ""
            types = [INT8] * 3 + ([INT8, INT8, INT8S, INT8S, INT8S, BYTEAS] if records else [])
            types += [INT8S, BOOLS, BYTEAS] if heads else []
            self._statements[key] = query.format(schema=self._schema), types
        query, types = self._statements[key]
        heads_seq = None if batch.heads_seq is None else int8(batch.heads_seq)
        parameters: list[bytes | None] = [int8(batch.number), int8(self._epoch), heads_seq]
        if records:
            parameters += [
                int8(records[0].seq),
                int8(records[-1].seq),
                integers([record.prev for record in records]),
                integers([record.agent for record in records]),
                integers([record.at_us for record in records]),
                blobs([record.facts for record in records]),
            ]
        if heads:
            parameters += [
                integers([head.agent for head in heads]),
                booleans([head.unfinished for head in heads]),
                blobs([_head_encoder.encode(head) for head in heads]),
            ]
        if records and self._swarm:
            parts, row_types, rows = row_statement(records, self._schema, self._swarm, len(parameters) + 1)
            query, types, parameters = query + parts, types + row_types, parameters + rows
        return (query + _COUNT).encode(), types, parameters

    async def _connected(self) -> TrioConnection:
        if self._writer is None or self._writer.closed:
            self._writer = await connect(self.address.parameters)
            self._writer.finishing = True
        return self._writer

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.discard()

    async def _check_fence(self, writer: TrioConnection, batch: Batch) -> None:
        """A batch that changed nothing was made before, unless somebody else owns the store now."""
        row = await (
            await writer.execute(f"SELECT epoch, batch, pid, host FROM {self._schema}.owner".encode())  # noqa: S608
        ).fetchone()
        if row is None:
            raise StoreDamagedError(f"{self.address.url} has lost its owner row; put a backup back")
        epoch, number, pid, host = row
        if epoch != self._epoch:
            raise FencedError(
                f"process {pid} on {host} took {self.address.url} over; nothing more can be written from here"
            )
        if number < batch.number:
            raise StoreError(f"{self.address.url} took batch {batch.number} neither now nor before; it is tried again")

    # Reading.

    async def _rows(self, query: str, parameters: list[Any]) -> list[tuple[Any, ...]]:
        check_open(self.address.url, closed=self._closed)
        if not self._exists:
            await self._look(patient=True, must_exist=True)

        async def read(connection: TrioConnection) -> list[tuple[Any, ...]]:
            cursor = await connection.execute(query.encode(), parameters or None, binary=True)
            return await cursor.fetchall()

        return await self._pool.run(read, patient=True)

    async def _look(self, *, patient: bool, must_exist: bool) -> None:
        self._exists = await self._pool.run(partial(check_schema, address=self.address), patient=patient)
        if must_exist and not self._exists:
            raise StoreError(f"there is no swarm {self.address.swarm!r} at {self.address.url}")


def _by_level(row: tuple[Any, ...]) -> tuple[int, int]:
    return row[0], row[1]


def _state_of(former: Owner, owner: Owner, left_seconds: float) -> OwnerState:
    """Say whether ``former`` lives, as ``owner`` sees it; one that cannot be seen lives as long as its lease."""
    if former.host == owner.host and former.boot_id == owner.boot_id:
        return state_of(former)
    return "elsewhere" if left_seconds > 0 else "dead"

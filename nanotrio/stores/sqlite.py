"""The SQLite driver: one file, append-only, through a write-ahead log.

Theory of operation
-------------------
One connection writes; reads go to a few connections of their own, so they may run beside a commit and see whole
batches. Nothing here waits inside SQLite: a lock that another process holds is tried again from Trio, with a growing
pause, and the loop goes on meanwhile.

A batch is three statements in one transaction. The first, an ``UPDATE`` of the owner row, is fence and idempotence at
once: it changes no row when another epoch owns the store, or when this batch was committed before. Records and heads
then go in as one array each, which costs a fifth of a row by row insert and does not fight the loop for the
interpreter's lock. A small batch is committed on the loop, where it takes some tens of microseconds; handing it to a
thread and back would take several times that. A large one goes to a thread that nobody else can occupy, and is
finished there even when the caller was cancelled.

SQLite's log grows until it is moved into the main file, and it can only start anew when all of it was moved and no
reader stands in it. So after a commit that brings it past some MB it is moved, in the thread, before the next commit.
A reader that stays in an old transaction keeps it from starting anew; then ``statistics`` says so, and it is tried
again each time the log has grown by as much.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import apsw
import msgspec
import trio

from .. import crash
from ..errors import FencedError, StoreDamagedError, StoreError
from ..records import Head, Record
from .chains import Chains
from .owner import is_held, refuse_if_alive
from .place import file_identity, file_size
from .refusals import check_acquirable, check_open, check_order, unreadable_head
from .sqlite_file import FRONT, check_file, connect, explain, make_store, record_of, upgrade
from .sqlite_rows import catch_up, write_rows
from .store import Batch, Owner, StoreStatistics, Tenure

__all__ = ["SqliteStore"]

_T = TypeVar("_T")
_INLINE_ROWS = 256
_INLINE_BYTES = 128 * 1024
_READ_SLICE = 16_384
_BUSY_SECONDS = 10.0
"""How long another program's transaction is waited for before it is named as trouble."""
_CHECKPOINT_BYTES = 16 << 20
_IDLE_READERS = 4
_PAGE = 4096

_FENCE = "UPDATE owner SET batch = ?1 WHERE epoch = ?2 AND batch < ?1"
_APPEND = "INSERT INTO log (seq, body) SELECT ?1 + rowid, value FROM carray(?2)"
_MERGE = """
INSERT INTO heads (agent, unfinished, body)
SELECT value ->> 0, value ->> 5, value FROM carray(?1) WHERE true
ON CONFLICT (agent) DO UPDATE SET unfinished = excluded.unfinished, body = excluded.body
"""
"""Of a ``Head``, whose stored order is fixed, field 0 is the agent and field 5 tells whether it is unfinished."""
_FETCH = "SELECT seq, body FROM carray(?1) AS wanted CROSS JOIN log ON seq = wanted.value"
_OF_ROOT = " AND substr(body, length(agent) + 3, 1) NOT BETWEEN '1' AND '9'"
"""Field 1, after the agent's number, is the parent; this is a tenth of what taking the text apart costs. A head of
another form is not left out, so that it is told of."""
_MARKS = """
SELECT heads_seq, (SELECT coalesce(max(seq), 0) FROM log), (SELECT coalesce(max(agent), 0) FROM heads) FROM mark
"""
_COUNT = """
SELECT coalesce((SELECT max(seq) FROM log) - (SELECT min(seq) FROM log) + 1, 0), (SELECT count(*) FROM heads)
"""
"""min and max asked for together would scan the table; apart each is one look-up."""
_SCAN = "SELECT seq, body FROM log WHERE seq > ?1 ORDER BY seq LIMIT ?2"

_head_decoder = msgspec.json.Decoder(Head)
_head_encoder = msgspec.json.Encoder()


class SqliteStore:
    """A ``Store`` in one SQLite file (``stores/store.py`` has the promises); make one with ``open``.

    Reads may run beside a commit and beside each other.
    """

    def __init__(self, path: Path, *, exists: bool, read_only: bool, fsync: bool, rows: bool, vfs: str) -> None:
        self.path = path
        self.read_only = read_only
        self._exists = exists
        self._fsync = fsync
        self._rows = rows
        self._vfs = vfs
        self._writer: apsw.Connection | None = None
        self._readers: list[apsw.Connection] = []
        # Limiters of our own: threads that tools occupy are counted elsewhere, and can never starve the journal.
        self._write_limiter = trio.CapacityLimiter(1)
        self._read_limiter = trio.CapacityLimiter(_IDLE_READERS)
        self._closed = False
        self._identity: tuple[int, int] | None = None
        self._epoch = 0
        self._last_seq = 0
        self._commits = 0
        self._wal_bytes = 0
        self._checkpoint_at = _CHECKPOINT_BYTES
        self._warning = ""

    @classmethod
    async def open(
        cls, path: Path | str, *, read_only: bool = False, fsync: bool = False, rows: bool = False, vfs: str = ""
    ) -> SqliteStore:
        """Look at ``path`` and return its store; nothing is written before ``acquire``.

        Where there is no file yet, ``acquire`` makes one. ``read_only`` is for looking into a store, also while its
        owner runs. With ``fsync`` a commit survives a loss of power too. With ``rows`` a commit puts its records into
        plain tables as well (``stores/rows.py``); what was written without is put there by ``acquire``. ``vfs`` names
        an SQLite VFS, for tests.

        Raises:
            NotAStoreError, NewerStoreError: what is there is not for this version.
            StoreError: the path cannot be used, or ``read_only`` and nothing is there.
        """
        path = Path(path)
        path = path if path.is_absolute() else Path.cwd() / path
        exists = await trio.to_thread.run_sync(check_file, path, vfs, limiter=trio.CapacityLimiter(1))
        if read_only and not exists:
            raise StoreError(f"there is no store at {path}")
        return cls(path, exists=exists, read_only=read_only, fsync=fsync, rows=rows, vfs=vfs)

    async def acquire(self, owner: Owner, *, takeover: bool = False) -> Tenure:
        """Become the one writer; see ``Store.acquire``."""
        check_open(self.path, closed=self._closed)
        check_acquirable(self.path, read_only=self.read_only, acquired=self._writer is not None)
        return await self._patiently(partial(self._acquire, owner, takeover), inline=False)

    async def commit(self, batch: Batch) -> None:
        """Write a batch; see ``Store.commit``. Up to 256 small records are written without a checkpoint."""
        check_open(self.path, closed=self._closed)
        if self._writer is None:
            raise StoreError(f"{self.path} was not acquired; nothing can be written")
        inline = not self._fsync and len(batch.records) <= _INLINE_ROWS and len(batch.heads) <= _INLINE_ROWS
        if inline:
            inline = sum([len(record.facts) for record in batch.records]) <= _INLINE_BYTES
        await self._patiently(partial(self._commit, self._writer, batch), inline=inline)
        if self._wal_bytes >= self._checkpoint_at:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._move_wal, self._writer, limiter=self._write_limiter)

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
        if agents is not None and not agents:
            # An empty array has no address that carray would take.
            await trio.lowlevel.checkpoint()
            check_open(self.path, closed=self._closed)
            return []
        query = "SELECT body FROM heads WHERE agent > ?2"
        query += " AND agent IN (SELECT value FROM carray(?3))" if agents is not None else ""
        query += " AND unfinished = 1" if unfinished else ""
        query += f"{_OF_ROOT if roots else ''} ORDER BY agent LIMIT ?1"
        bindings = (limit, after, *([] if agents is None else [apsw.carray(array.array("q", agents))]))

        def read(db: apsw.Connection) -> list[Head]:
            try:
                return [_head_decoder.decode(body) for (body,) in db.execute(query, bindings)]
            except msgspec.DecodeError as error:
                raise unreadable_head(f"sqlite:{self.path}", error) from error

        few = limit <= _INLINE_ROWS and not roots  # those are looked for among all
        return await self._read(read, inline=few or (agents is not None and len(agents) <= _INLINE_ROWS))

    async def load(self, ends: Sequence[tuple[int, int]]) -> list[list[Record]]:
        """Return whole chains; see ``Store.load``. Short ones are read on the loop, the rest in a thread."""
        chains = Chains(ends, f"sqlite:{self.path}")
        if len(ends) <= _INLINE_ROWS:
            await self._read(partial(_walk, chains, _INLINE_ROWS), inline=True)
        while chains.wanted:
            await self._read(partial(_walk, chains, _READ_SLICE), inline=False)
        return chains.oldest_first()

    async def scan(self, after_seq: int, *, limit: int = 4096) -> list[Record]:
        """Return the records that follow ``after_seq``; see ``Store.scan``."""

        def read(db: apsw.Connection) -> list[Record]:
            records: list[Record] = []
            for expected, (seq, body) in enumerate(db.execute(_SCAN, (after_seq, limit)), after_seq + 1):
                if seq != expected:  # also where a lost page gives rows of its own making
                    raise apsw.CorruptError(f"record {expected} is missing")
                records.append(record_of(seq, body))
            return records

        return await self._read(read, inline=limit <= _INLINE_ROWS)

    async def statistics(self) -> StoreStatistics:
        """Return sizes and counts; counting heads takes a thread some milliseconds for each 100,000."""
        row, marks, owner = await self._read(
            lambda db: (
                db.execute(_COUNT).fetchall()[0],
                db.execute(_MARKS).fetchone(),
                db.execute("SELECT boot_id, pid, started, host FROM owner WHERE epoch > 0 AND NOT released").fetchone(),
            ),
            inline=False,
        )
        records, heads = cast("tuple[int, int]", row)
        return StoreStatistics(
            url=f"{'sqlite+rows' if self._rows else 'sqlite'}:{self.path}",
            records=records,
            heads=heads,
            size_bytes=file_size(self.path),
            pending_bytes=file_size(Path(f"{self.path}-wal")),
            commits=self._commits,
            heads_seq=cast("tuple[int, int, int]", marks)[0] if marks else 0,
            owner=Owner(*owner) if owner else None,
            warning=self._warning,
        )

    async def aclose(self) -> None:
        """Give the store back and close the file; finished even when cancelled. Safe to call twice."""
        if not self._closed:
            self._closed = True
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._close, limiter=self._write_limiter)
        await trio.lowlevel.checkpoint()

    # What follows up to the end of the class blocks, and runs on the loop or in a thread.

    def _acquire(self, owner: Owner, takeover: bool) -> Tenure:
        if not self._exists:
            make_store(self.path, self._vfs)
            self._exists = check_file(self.path, self._vfs)
        db = connect(self.path, read_only=False, fsync=self._fsync, vfs=self._vfs)
        try:
            db.execute("BEGIN IMMEDIATE")
            tenure = self._take(db, owner, takeover)
            upgrade(db)
            db.execute("COMMIT")
            if self._rows:
                catch_up(db, partial(self._check_fence, db, tenure.epoch))
        except BaseException:
            db.close()
            raise
        db.set_wal_hook(self._on_wal)
        self._identity = file_identity(self.path)
        self._writer, self._epoch, self._last_seq = db, tenure.epoch, tenure.last_seq
        return tenure

    def _take(self, db: apsw.Connection, owner: Owner, takeover: bool) -> Tenure:
        row = db.execute("SELECT epoch, released, boot_id, pid, started, host FROM owner").fetchone()
        marks = db.execute(_MARKS).fetchone()
        if row is None or marks is None:
            raise StoreDamagedError(
                f"{self.path} has lost its owner row; put a copy back, or save its log with "
                f"`nanotrio store repair sqlite:{self.path} --into NEW_URL`"
            )
        epoch, released, boot_id, pid, started, host = row
        former = Owner(boot_id=boot_id, pid=pid, started=started, host=host) if epoch else None
        if former and not released and not takeover:
            refuse_if_alive(self.path, former, owner)
        db.execute(
            "UPDATE owner SET epoch = ?, batch = 0, released = 0, boot_id = ?, pid = ?, started = ?, host = ?",
            (epoch + 1, owner.boot_id, owner.pid, owner.started, owner.host),
        )
        heads_seq, last_seq, last_agent = marks
        lives = is_held(former, released=bool(released))
        return Tenure(epoch + 1, last_seq, heads_seq, last_agent, former, lives)

    def _commit(self, db: apsw.Connection, batch: Batch) -> None:
        if file_identity(self.path) != self._identity:
            raise StoreError(f"{self.path} was removed or replaced while agents run in it; put it back to go on")
        records = batch.records
        front = FRONT.pack
        bodies = tuple([front(record.prev, record.agent, record.at_us) + record.facts for record in records])
        db.execute("BEGIN IMMEDIATE")
        try:
            db.execute(_FENCE, (batch.number, self._epoch))
            if not db.changes():
                self._check_fence(db, self._epoch)
                bodies = ()
            else:
                if bodies:
                    check_order(self.path, records, self._last_seq)
                    db.execute(_APPEND, (records[0].seq - 1, apsw.carray(bodies)))
                    if self._rows:
                        write_rows(db, records)
                if batch.heads:
                    texts = tuple([_head_encoder.encode(head).decode() for head in batch.heads])
                    db.execute(_MERGE, (apsw.carray(texts),))
                if batch.heads_seq is not None:
                    db.execute("UPDATE mark SET heads_seq = ?", (batch.heads_seq,))
            if crash.here is not None:
                crash.here("in-commit", batch.records[-1].seq if batch.records else 0)
            db.execute("COMMIT")
        except BaseException:
            _roll_back(db)
            raise
        if records:
            self._last_seq = max(self._last_seq, records[-1].seq)
        self._commits += 1

    def _check_fence(self, db: apsw.Connection, own: int) -> None:
        epoch, pid = db.execute("SELECT epoch, pid FROM owner").fetchall()[0]
        if epoch != own:
            raise FencedError(f"process {pid} took {self.path} over; nothing more can be written from here")

    def _on_wal(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_bytes = pages * _PAGE
        return apsw.SQLITE_OK

    def _move_wal(self, db: apsw.Connection) -> None:
        try:
            pages, moved = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error as error:
            self._warning = f"the write-ahead log of {self.path} cannot be moved into it: {error}"
            moved, pages = 0, self._wal_bytes // _PAGE
        else:
            self._warning = (
                ""
                if moved == pages
                else f"a reader keeps the write-ahead log of {self.path} growing ({pages * _PAGE >> 20} MB); end it"
            )
        self._checkpoint_at = _CHECKPOINT_BYTES if moved == pages else pages * _PAGE + _CHECKPOINT_BYTES

    def _close(self) -> None:
        readers, self._readers = self._readers, []
        for reader in readers:
            reader.close()
        db, self._writer = self._writer, None
        if db is None:
            return
        # Where the disk takes nothing more the row still names this process, and whoever comes next finds it dead; what
        # was committed stays in the write-ahead log. SQLite closes in any case.
        with suppress(apsw.Error):
            db.execute("UPDATE owner SET released = 1 WHERE epoch = ?", (self._epoch,))
        with suppress(apsw.Error):
            db.close()

    async def _read(self, work: Callable[[apsw.Connection], _T], *, inline: bool) -> _T:
        check_open(self.path, closed=self._closed)
        if not self._exists:
            raise StoreError(f"there is no store at {self.path}")

        held = [self._readers.pop()] if self._readers else []

        def with_reader() -> _T:
            db = held.pop() if held else connect(self.path, read_only=True, vfs=self._vfs)
            try:
                result = work(db)
            except BaseException:
                db.close()
                raise
            held.append(db)
            return result

        try:
            if inline:
                await trio.lowlevel.checkpoint()
            return await self._patiently(with_reader, inline=inline, limiter=self._read_limiter)
        finally:
            while held and (self._closed or len(self._readers) >= _IDLE_READERS):
                held.pop().close()
            self._readers.extend(held)

    async def _patiently(
        self, work: Callable[[], _T], *, inline: bool, limiter: trio.CapacityLimiter | None = None
    ) -> _T:
        """Do ``work``, here or in a thread, again while another process is in the way; translate its errors."""
        pause = 0.001
        waited = 0.0
        while True:
            try:
                if inline:
                    return work()
                return await trio.to_thread.run_sync(work, limiter=limiter or self._write_limiter)
            except apsw.BusyError as error:
                if waited >= _BUSY_SECONDS:
                    raise explain(error, self.path) from error
            except apsw.Error as error:
                raise explain(error, self.path) from error
            await trio.sleep(pause)
            waited += pause
            pause = min(pause * 2, 0.1)


def _roll_back(db: apsw.Connection) -> None:
    # A full disk ends the transaction by itself.
    if db.in_transaction:
        with suppress(apsw.Error):
            db.execute("ROLLBACK")


def _walk(chains: Chains, limit: int, db: apsw.Connection) -> None:
    """Fetch whole levels of ``chains`` until about ``limit`` records are read."""
    while limit > 0 and chains.wanted:
        rows = db.execute(_FETCH, (apsw.carray(array.array("q", chains.wanted)),))
        limit -= len(chains.wanted)
        chains.receive([record_of(seq, body) for seq, body in rows])

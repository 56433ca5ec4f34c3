"""The JSONL driver: text that any tool can read, appended to and never changed.

Theory of operation
-------------------
The log is in segments (``jsonl_log``), the heads in a file beside them (``jsonl_heads``), and ``jsonl_lines`` has the
form of both. A commit is one write to the newest segment. Before it and after it the owner looks whether the next
segment is there: then the store belongs to another process. The look before keeps a fenced owner from writing on; the
look after is what makes the acknowledgement good, because whoever takes the store over first makes the next segment
and then measures this one.

Heads are written after the records they stand on. Where that fails the batch is tried again, and its records are not
written twice.

A small batch is written on the loop, where it takes some tens of microseconds; a large one, or one that waits for the
disk, in a thread of the store's own. What a thread reads or writes is entered in the indexes on the loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import trio

from .. import crash
from ..counted import counted
from ..errors import FencedError, NanotrioError, StoreError
from ..records import FORMAT_VERSION, Head, Record
from .chains import Chains
from .jsonl_heads import HeadsFile, Written, read_heads_at
from .jsonl_lines import RELEASED, Claim, Counts, batch_block, line_of
from .jsonl_log import Log, Segment, check_log, claim_segment, segment_path
from .owner import is_held, refuse_if_alive
from .raw_file import RawFile, explain_os
from .refusals import check_acquirable, check_open, check_order
from .store import Batch, Owner, StoreStatistics, Tenure

__all__ = ["JsonlStore"]

_T = TypeVar("_T")
_INLINE_RECORDS = 256
_INLINE_BYTES = 128 * 1024
_READ_SLICE = 16_384
_READERS = 4


class _Entry(msgspec.Struct, frozen=True):
    """A batch that is in the log and not yet in its index."""

    first: int
    count: int
    start: int
    end: int


class JsonlStore:
    """A ``Store`` in files of JSON lines (``stores/store.py`` has the promises); make one with ``open``.

    Reads may run beside a commit and beside each other.
    """

    def __init__(self, path: Path, *, exists: bool, read_only: bool, fsync: bool, salvage: bool) -> None:
        self.path = path
        self.read_only = read_only
        self._exists = exists
        self._fsync = fsync
        self._salvage = salvage
        self._log = Log(path)
        self._heads = HeadsFile(self._heads_path)
        self._segment: RawFile | None = None
        self._next_segment = ""
        # Limiters of our own: threads that tools occupy are counted elsewhere, and can never starve the journal.
        self._write_limiter = trio.CapacityLimiter(1)
        self._read_limiter = trio.CapacityLimiter(_READERS)
        self._look_limiter = trio.CapacityLimiter(1)
        self._readers = 0
        self._closed = False
        self._epoch = 0
        self._batch = 0
        self._commits = 0
        self._entry: tuple[int, _Entry] | None = None
        """The number of a batch whose records are written and whose heads are not, or may not be."""
        self._warning = ""

    @classmethod
    async def open(
        cls, path: Path | str, *, read_only: bool = False, fsync: bool = False, salvage: bool = False
    ) -> JsonlStore:
        """Look at ``path`` and return its store; nothing is written before ``acquire``.

        Where there is no file yet, ``acquire`` makes one. ``read_only`` is for looking into a store, also while its
        owner runs. With ``fsync`` a commit survives a loss of power too. With ``salvage`` (for reading only) damage
        ends the log, and ``statistics`` tells of it, instead of raising.

        Raises:
            NotAStoreError, NewerStoreError: what is there is not for this version.
            StoreError: the path cannot be used, or ``read_only`` and nothing is there.
        """
        path = Path(path)
        path = path if path.is_absolute() else Path.cwd() / path
        with _explained(path):
            exists = await trio.to_thread.run_sync(check_log, path, limiter=trio.CapacityLimiter(1))
        if read_only and not exists:
            raise StoreError(f"there is no store at {path}")
        return cls(path, exists=exists, read_only=read_only or salvage, fsync=fsync, salvage=salvage)

    @property
    def _heads_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.heads")

    async def acquire(self, owner: Owner, *, takeover: bool = False) -> Tenure:
        """Become the one writer; see ``Store.acquire``."""
        check_open(self.path, closed=self._closed)
        check_acquirable(self.path, read_only=self.read_only, acquired=self._segment is not None)
        return await self._in_thread(partial(self._acquire, owner, takeover), self._write_limiter)

    async def commit(self, batch: Batch) -> None:
        """Write a batch; see ``Store.commit``. Up to 256 small records are written without a checkpoint."""
        check_open(self.path, closed=self._closed)
        if self._segment is None:
            raise StoreError(f"{self.path} was not acquired; nothing can be written")
        inline = not self._fsync and len(batch.records) <= _INLINE_RECORDS and len(batch.heads) <= _INLINE_RECORDS
        if inline:
            inline = sum([len(record.facts) for record in batch.records]) <= _INLINE_BYTES
        if inline:
            with _explained(self.path):
                written = self._write(self._segment, batch)
        else:
            written = await self._in_thread(partial(self._write, self._segment, batch), self._write_limiter)
        if self._entry is not None:
            entry = self._entry[1]
            self._entry = None
            self._log.enter(entry.first, entry.count, entry.start, entry.end)
        if written is not None:
            self._heads.enter(written)
        self._batch = max(self._batch, batch.number)
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
        if self._segment is not None:
            file, offsets = self._heads.select(agents, after, limit, unfinished=unfinished, roots=roots)
            inline = len(offsets) <= _INLINE_RECORDS
            return await self._read(lambda: read_heads_at(file, offsets) if file else [], inline=inline)

        def look() -> list[Head]:
            file, offsets = self._heads.select(agents, after, limit, unfinished=unfinished, roots=roots)
            return read_heads_at(file, offsets) if file else []

        return await self._read(look)

    async def load(self, ends: Sequence[tuple[int, int]]) -> list[list[Record]]:
        """Return whole chains; see ``Store.load``. Short ones are read on the loop, the rest in a thread."""
        chains = Chains(ends, f"jsonl:{self.path}")
        if len(ends) <= 64:
            await self._read(lambda: self._log.walk(chains, _INLINE_RECORDS, _INLINE_BYTES), inline=True)
        while chains.wanted:
            await self._read(lambda: self._log.walk(chains, _READ_SLICE, 1 << 62))
        return chains.oldest_first()

    async def scan(self, after_seq: int, *, limit: int = 4096) -> list[Record]:
        """Return the records that follow ``after_seq``; see ``Store.scan``."""
        return await self._read(lambda: self._log.scan(after_seq, limit))

    async def statistics(self) -> StoreStatistics:
        """Return sizes and counts."""

        def count() -> StoreStatistics:
            log = self._log
            newest = log.segments[-1] if log.segments else None
            return StoreStatistics(
                url=f"jsonl:{self.path}",
                records=log.last_seq,
                heads=self._heads.count,
                size_bytes=log.size + self._heads.size,
                pending_bytes=0,
                commits=self._commits,
                heads_seq=self._heads.heads_seq,
                owner=newest.claim.owner if newest and not log.released else None,
                warning=self._warning or self._what_is_wrong(),
            )

        return await self._read(count)

    async def aclose(self) -> None:
        """Give the store back and close its files; finished even when cancelled. Safe to call twice."""
        if not self._closed:
            self._closed = True
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._close, limiter=self._write_limiter)
        await trio.lowlevel.checkpoint()

    # What follows up to the end of the class blocks, and runs on the loop or in a thread.

    def _acquire(self, owner: Owner, takeover: bool) -> Tenure:
        while True:
            log = Log.read(self.path)
            newest = log.segments[-1] if log.segments else None
            former = newest.claim.owner if newest else None
            if former and not log.released and not takeover:
                refuse_if_alive(self.path, former, owner)
            lives = is_held(former, released=log.released)
            epoch = len(log.segments) + 1
            claim = Claim("log", FORMAT_VERSION, epoch, owner)
            file = claim_segment(self.path, epoch, claim)
            if file is not None:
                break
        self._exists = True
        # The former owner sees the claim from here on, so what counts of its segment stands still.
        at = file.size
        log.measure_again()
        self._warning = self._what_is_wrong(log)
        if epoch > 1:
            counts = {each.number: each.end if each.counts is not None else 0 for each in log.segments}
            line = line_of(Counts(counts))
            file.write(line, at, fsync=self._fsync)
            at += len(line)
        log.begin_segment(Segment(epoch, segment_path(self.path, epoch), claim, at, {}, at))
        heads = HeadsFile.read(self._heads_path)
        if heads.log_seq > log.last_seq:
            heads = heads.lost()
        heads.begin(epoch, log.last_seq, fsync=self._fsync)
        if self._fsync:
            _sync_folder(self.path.parent)
        self._log, self._heads, self._epoch, self._segment = log, heads, epoch, file
        self._next_segment = str(segment_path(self.path, epoch + 1))
        return Tenure(epoch, log.last_seq, heads.heads_seq, heads.last_agent, former, lives)

    def _what_is_wrong(self, log: Log | None = None) -> str:
        log = log or self._log
        if log.damage:
            return log.damage
        if not log.torn_bytes:
            lost = "is damaged and does not count; what it held is made anew from the log"
            return f"{self._heads_path} {lost}" if self._heads.is_lost else ""
        return (
            f"the end of {log.torn_path} ({counted(log.torn_bytes, 'byte')}) was cut short by a crash and does not "
            "count; nothing in it was acknowledged"
        )

    def _write(self, segment: RawFile, batch: Batch) -> Written | None:
        """Write what of ``batch`` is not written yet; return what is to be entered of its heads."""
        size = segment.size_in_place()
        if size < 0:
            raise StoreError(f"{segment.path} was removed or replaced while agents run in it; put it back to go on")
        self._check_fence()
        if batch.number <= self._batch:
            return None
        records = batch.records
        last_seq = records[-1].seq if records else self._log.last_seq
        if records and (self._entry is None or self._entry[0] != batch.number):
            check_order(self.path, records, self._log.last_seq)
            block = batch_block(batch.number, records)
            start = self._log.segments[-1].end
            if size > start:  # of a batch that was given up
                segment.cut(start)
            if crash.here is not None:
                segment.write(block[: len(block) // 2], start)
                crash.here("in-commit", last_seq)
            segment.write(block, start, fsync=self._fsync)
            self._check_fence()
            self._entry = (batch.number, _Entry(records[0].seq, len(records), start, start + len(block)))
        if not batch.heads and batch.heads_seq is None:
            return None
        return self._heads.write(batch.heads, last_seq, batch.heads_seq, fsync=self._fsync)

    def _check_fence(self) -> None:
        try:
            os.stat(self._next_segment)  # noqa: PTH116 - on the path of every commit
        except FileNotFoundError:
            return
        pid = 0
        with suppress(NanotrioError, OSError):
            pid = Log.read(self.path).segments[self._epoch].claim.owner.pid
        who = f"process {pid}" if pid else "another process"
        raise FencedError(f"{who} took {self.path} over; nothing more can be written from here")

    def _look(self) -> None:
        """See what the owner has written since, from outside."""
        heads = self._heads if self._heads.extend() else HeadsFile.read(self._heads_path)
        # Heads first: whatever records they know, the log holds by now.
        log = self._log if not self._salvage and self._log.extend() else Log.read(self.path, salvage=self._salvage)
        self._heads = heads.lost() if heads.log_seq > log.last_seq else heads
        self._log = log
        log.forget_lines()

    def _close(self) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        # Where the disk takes nothing more the claim still names this process, and whoever comes next finds it dead. A
        # line that a fenced owner writes here does not count.
        with suppress(OSError):
            if segment.is_in_place():
                segment.write(RELEASED, self._log.segments[-1].end, fsync=self._fsync)

    async def _read(self, work: Callable[[], _T], *, inline: bool = False) -> _T:
        check_open(self.path, closed=self._closed)
        if self._segment is None:
            if not self._exists:
                raise StoreError(f"there is no store at {self.path}")

            def look() -> _T:
                self._look()
                return work()

            return await self._in_thread(look, self._look_limiter)
        if inline:
            await trio.lowlevel.checkpoint()
            with _explained(self.path):
                return work()
        self._readers += 1
        try:
            return await self._in_thread(work, self._read_limiter)
        finally:
            self._readers -= 1
            if not self._readers:
                self._log.forget_lines()

    async def _in_thread(self, work: Callable[[], _T], limiter: trio.CapacityLimiter) -> _T:
        with _explained(self.path):
            return await trio.to_thread.run_sync(work, limiter=limiter)


class _explained:  # noqa: N801 - used as a statement
    """Turn an ``OSError`` inside into the ``StoreError`` that says what it means."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            raise explain_os(error, self._path) from error


def _sync_folder(folder: Path) -> None:
    file = RawFile(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(file.fd)

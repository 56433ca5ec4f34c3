"""The log of a JSONL store as it lies on disk: its segments, where each batch is, and records read by number.

Theory of operation
-------------------
``PATH``, ``PATH.2``, ``PATH.3`` ... are the segments, one for each epoch. Whoever makes the next one owns the store
from then on, since a file is made once only; the former owner sees it and is fenced. The claim comes first and the
former segment is measured after it: what a fenced owner acknowledged before it could see the claim is counted, and
what it wrote later is not, for ever, because the new segment says how many bytes count.

Opening reads the line about each batch and jumps over its records, so it costs by batches, not by bytes. Kept in
memory is an entry a batch. Where the lines of a batch lie is found when a record of it is first asked for; then its CRC
is checked too, and damage shows there.

A crash leaves the beginning of a batch at the end of the last segment. It is passed over, and never written on to:
the next owner has a segment of its own. Anything else that is no batch is damage, and is named by its byte.
"""

from __future__ import annotations

import array
import fcntl
import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..counted import counted
from ..errors import NewerStoreError, NotAStoreError, StoreDamagedError, StoreError
from ..records import FORMAT_VERSION, Record
from .chains import Chains
from .jsonl_lines import BATCH, MAX_FRONT_BYTES, RELEASED, Claim, Counts, crc_holds, is_beginning, line_of, read_records
from .place import is_absent, make_file
from .raw_file import RawFile

__all__ = ["Log", "Segment", "check_log", "claim_segment", "segment_path"]

_SLICE = 64 * 1024
_MAX_CLAIM_BYTES = 16 * 1024
_MAX_KNOWN_LINES = 4_000_000
_MAX_FILES = 64


class Segment(msgspec.Struct):
    """One file of the log."""

    number: int
    path: Path
    claim: Claim
    start: int
    """Where its batches begin."""
    counts: dict[int, int] | None
    """None where its owner died before it had measured the former segments, so that it never wrote either."""
    end: int = 0
    """Where the last batch that counts ends."""


class Log:
    """What ``path`` holds; made by ``Log.read``. All methods that read block.

    One thread changes it (``extend``, ``enter``) while others may read records: an entry becomes visible last.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.segments: list[Segment] = []
        self.last_seq = 0
        self.released = False
        self.torn_bytes = 0
        """At the end of the last segment that has batches, of one that a crash cut short."""
        self.torn_path = path
        self.damage = ""
        """Where damage ends what can be read; set only with ``salvage``."""
        # Of each batch: where its line begins, where its records end, its segment, its first record.
        self._starts = array.array("q")
        self._ends = array.array("q")
        self._numbers = array.array("i")
        self._firsts = array.array("q")
        self._lines: dict[int, array.array[int]] = {}
        self._known_lines = 0
        self._files: dict[int, RawFile] = {}

    @classmethod
    def read(cls, path: Path, *, salvage: bool = False) -> Log:
        """Read what is there, perhaps nothing.

        With ``salvage`` damage ends the log, and ``damage`` tells of it, instead of raising.

        Raises:
            StoreDamagedError: something in the middle is no batch, or a segment is missing.
            NotAStoreError, NewerStoreError, OSError: as their names say.
        """
        log = cls(path)
        log.segments = list(_segments(path))
        counts: dict[int, int] = {}
        for segment in reversed(log.segments):
            for number, size in (segment.counts or {}).items():
                counts.setdefault(number, size)
        try:
            for segment in log.segments:
                if segment.counts is not None:
                    log._read_segment(segment, counts.get(segment.number))
            log._check_last()
        except StoreDamagedError as error:
            if not salvage:
                raise
            log.damage = str(error)
        return log

    @property
    def size(self) -> int:
        """Bytes that count."""
        return sum(segment.end for segment in self.segments)

    def extend(self) -> bool:
        """Take in what the owner has written since; False where another has taken over and all is to be read anew.

        Raises:
            StoreDamagedError, OSError: as ``read``.
        """
        if not self.segments or segment_path(self.path, len(self.segments) + 1).exists():
            return False
        segment = self.segments[-1]
        if segment.counts is None or not self._file(segment.number).is_in_place():
            return False
        self._read_segment(segment, None)
        return True

    def measure_again(self) -> None:
        """Take in what the owner of the last segment wrote before it could see that it is fenced.

        Raises:
            StoreDamagedError, OSError: as ``read``.
        """
        if self.segments and self.segments[-1].counts is not None:
            self._read_segment(self.segments[-1], None)
            self._check_last()

    def begin_segment(self, segment: Segment) -> None:
        """Go on in a new segment."""
        self.segments.append(segment)
        self.released, self.torn_bytes = False, 0

    def enter(self, first: int, count: int, start: int, end: int) -> None:
        """Note a batch that was written to the last segment."""
        self._starts.append(start)
        self._ends.append(end)
        self._numbers.append(self.segments[-1].number)
        self._firsts.append(first)
        self.segments[-1].end = end
        self.last_seq = first + count - 1

    # Reading records.

    def scan(self, after_seq: int, limit: int) -> list[Record]:
        """Return the records that follow ``after_seq``."""
        last = min(after_seq + limit, self.last_seq)
        seq = after_seq + 1
        records: list[Record] = []
        while seq <= last:
            batch = self._batch_of(seq)
            stop = min(last, self._last_of(batch))
            records += self._records(batch, seq, stop)
            seq = stop + 1
        return records

    def walk(self, chains: Chains, max_records: int, max_bytes: int) -> None:
        """Fetch whole levels of ``chains`` until about so many records and bytes of new batches are read."""
        while max_records > 0 and chains.wanted:
            if any(not 0 < seq <= self.last_seq for seq in chains.wanted):
                chains.receive([])
            batches = [self._batch_of(seq) for seq in chains.wanted]
            unread = [batch for batch in set(batches) if batch not in self._lines]
            max_bytes -= sum(self._ends[batch] - self._starts[batch] for batch in unread)
            if max_bytes < 0:
                return
            max_records -= len(batches)
            pairs = zip(chains.wanted, batches, strict=True)
            chains.receive([self._records(batch, seq, seq)[0] for seq, batch in pairs])

    def forget_lines(self) -> None:
        """Keep what is known of the lines of batches within its bound; not while others read."""
        while self._known_lines > _MAX_KNOWN_LINES:
            batch = next(iter(self._lines))
            self._known_lines -= len(self._lines.pop(batch))

    def _batch_of(self, seq: int) -> int:
        return bisect_right(self._firsts, seq) - 1

    def _last_of(self, batch: int) -> int:
        return self._firsts[batch + 1] - 1 if batch + 1 < len(self._firsts) else self.last_seq

    def _records(self, batch: int, first: int, last: int) -> list[Record]:
        """Return records ``first`` to ``last`` of a batch."""
        start = self._starts[batch]
        ends = self._lines.get(batch)
        if ends is None:
            ends = self._lines[batch] = self._check_batch(batch)
            self._known_lines += len(ends)
        place = first - self._firsts[batch]
        low, high = ends[place], ends[place + last - first + 1]
        lines = self._file(self._numbers[batch]).read(start + low, high - low)
        try:
            records = read_records(lines)
        except msgspec.DecodeError as error:
            raise self._damaged(self._numbers[batch], start + low, str(error)) from error
        if [record.seq for record in records] != list(range(first, last + 1)):
            raise self._damaged(self._numbers[batch], start + low, f"records {first} to {last} should be there")
        return records

    def _check_batch(self, batch: int) -> array.array[int]:
        """Return where the lines of a batch end, counted from its beginning; that of its own line is the first."""
        number, start = self._numbers[batch], self._starts[batch]
        data = self._file(number).read(start, self._ends[batch] - start)
        front = BATCH.match(data)
        if front is None or not crc_holds(front, memoryview(data)[front.end() :]):
            raise self._damaged(number, start, "a batch is not what was written")
        ends = array.array("Q", [match.end() for match in re.finditer(b"\n", data)])
        if len(ends) != int(front[4]) + 1:
            raise self._damaged(
                number, start, f"a batch of {counted(int(front[4]), 'record')} has {counted(len(ends) - 1, 'line')}"
            )
        return ends

    def _damaged(self, number: int, at: int, why: str) -> StoreDamagedError:
        return damaged(segment_path(self.path, number), at, why, self.path)

    def _file(self, number: int) -> RawFile:
        file = self._files.get(number)
        if file is None:
            while len(self._files) >= _MAX_FILES:
                self._files.pop(next(iter(self._files)), None)
            file = self._files[number] = RawFile(segment_path(self.path, number))
        return file

    # Reading segments.

    def _read_segment(self, segment: Segment, limit: int | None) -> None:
        """Enter the batches after ``segment.end``, up to ``limit`` where another segment says what counts."""
        file = self._file(segment.number)
        size = file.size
        segment.end = self._enter_batches(segment, file, size if limit is None else limit)
        self.released, self.torn_bytes = False, 0
        if limit is not None:
            if segment.end < limit:
                raise self._damaged(segment.number, segment.end, f"batches should go on to byte {limit}")
            return
        # No further than was measured: the owner may have written more since, and a part of that is no torn end.
        rest = file.read(segment.end, min(MAX_FRONT_BYTES, size - segment.end))
        if rest == RELEASED:
            self.released = True
        elif rest:
            if not self._is_torn(file, segment.end, size, rest):
                raise self._damaged(segment.number, segment.end, "this is no batch")
            self.torn_bytes, self.torn_path = size - segment.end, segment.path

    def _enter_batches(self, segment: Segment, file: RawFile, end: int) -> int:
        at = base = max(segment.end, segment.start)
        data = b""
        while at < end:
            if at + MAX_FRONT_BYTES > base + len(data):
                base, data = at, file.read(at, min(_SLICE, end - at))
            front = BATCH.match(data, at - base)
            if front is None:
                break
            first, count, size = int(front[3]), int(front[4]), int(front[5])
            stop = base + front.end() + size
            if first != self.last_seq + 1 or stop > end or not count:
                break
            self._starts.append(at)
            self._ends.append(stop)
            self._numbers.append(segment.number)
            self.last_seq = first + count - 1
            self._firsts.append(first)
            at = stop
        return at

    def _is_torn(self, file: RawFile, at: int, size: int, rest: bytes) -> bool:
        """Whether what follows the last whole batch is the beginning of one more, or was never written."""
        front = BATCH.match(rest)
        if front is None:
            return (len(rest) == size - at and is_beginning(rest)) or _is_blank(file, at, size)
        start = at + front.end()
        if int(front[3]) != self.last_seq + 1 or start + int(front[5]) <= size:
            return False
        # Where the line itself was damaged, other batches follow.
        body = file.read(start, size - start)
        if body.strip(b"\0") and not b'{"seq":'.startswith(body[:7]):
            return False
        return b'\n{"batch":' not in body

    def _check_last(self) -> None:
        """Check the last batch, which a loss of power may have left half written."""
        if not self._firsts or self.segments[-1].counts is None or self._numbers[-1] != self.segments[-1].number:
            return
        batch = len(self._firsts) - 1
        try:
            self._lines[batch] = self._check_batch(batch)
        except StoreDamagedError:
            segment, start, end = self.segments[-1], self._starts[-1], self._ends[-1]
            if self._file(segment.number).read(end - 1, 1) != b"\0" or self.released:
                raise
            self.torn_bytes, self.torn_path = self.torn_bytes + end - start, segment.path
            segment.end = start
            for entries in (self._starts, self._ends, self._numbers):
                entries.pop()
            self.last_seq = self._firsts.pop() - 1
        else:
            self._known_lines += len(self._lines[batch])


def segment_path(path: Path, number: int) -> Path:
    """Where segment ``number`` lies."""
    return path if number == 1 else path.with_name(f"{path.name}.{number}")


def damaged(file: Path, at: int, why: str, store: Path) -> StoreDamagedError:
    """Return the error that names the byte and the way out."""
    return StoreDamagedError(
        f"{file} is damaged at byte {at} ({why}); put a copy back, or save what can be read with "
        f"`nanotrio store repair jsonl:{store}`"
    )


def check_log(path: Path) -> bool:
    """Say whether a store is at ``path`` (True) or could be made there (False).

    Raises:
        NotAStoreError, NewerStoreError: what is there is not for this version.
        StoreError: it cannot be looked at.
    """
    if is_absent(path):
        return False
    if not os.access(path, os.R_OK):
        raise StoreError(f"{path} cannot be read: permission denied")
    return _claim_of(path, RawFile(path).read(0, _MAX_CLAIM_BYTES)) is not None


def claim_segment(path: Path, number: int, claim: Claim) -> RawFile | None:
    """Make segment ``number`` with its claim, or return None where another process did so first.

    Raises:
        StoreError, OSError: it cannot be made.
    """
    place = segment_path(path, number)
    make_file(place)
    if not os.access(place, os.W_OK):
        raise StoreError(f"{place} cannot be written: permission denied")
    file = RawFile(place, os.O_RDWR)
    fcntl.flock(file.fd, fcntl.LOCK_EX)
    try:
        if _claim_of(place, file.read(0, _MAX_CLAIM_BYTES)) is not None or not file.is_in_place():
            return None
        file.cut(0)
        file.write(line_of(claim), 0, fsync=True)
    finally:
        fcntl.flock(file.fd, fcntl.LOCK_UN)
    return file


def _claim_of(path: Path, beginning: bytes) -> Claim | None:
    """Return the claim that a segment begins with; None where there is none yet, or a crash cut it short."""
    line, newline, _ = beginning.partition(b"\n")
    if not newline and (not line or (line.startswith(b'{"nanotrio":"log"') and len(line) < _MAX_CLAIM_BYTES)):
        return None
    try:
        seen = msgspec.json.decode(line)
        form = seen["form"] if seen["nanotrio"] == "log" else None
        if isinstance(form, int) and form > FORMAT_VERSION:
            raise NewerStoreError(
                f"{path} was written by a newer nanotrio (form {form}, this one knows {FORMAT_VERSION}); "
                "upgrade nanotrio to open it"
            )
        if form is not None:
            return msgspec.convert(seen, Claim)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        pass
    raise NotAStoreError(f"{path} is not a nanotrio store in JSON lines; name another file, or move it away")


def _segments(path: Path) -> Iterator[Segment]:
    """Return the segments there are, in order."""
    number = 1
    while True:
        place = segment_path(path, number)
        try:
            beginning = RawFile(place).read(0, _MAX_CLAIM_BYTES)
        except FileNotFoundError:
            break
        claim = _claim_of(place, beginning)
        if claim is None:
            break
        claimed = beginning.index(b"\n") + 1
        counts: dict[int, int] | None = {} if number == 1 else None
        start = claimed
        if number > 1:
            end = beginning.find(b"\n", claimed) + 1
            try:
                counts = msgspec.json.decode(beginning[claimed:end], type=Counts).counts if end else None
            except msgspec.DecodeError as error:
                raise damaged(place, claimed, str(error), path) from error
            start = end
        yield Segment(number, place, claim, start, counts, start)
        number += 1
    _refuse_gap(path, number)


def _refuse_gap(path: Path, missing: int) -> None:
    """Refuse a store of which segment ``missing`` is gone and a later one is there.

    Raises:
        StoreDamagedError: that is so.
    """
    prefix = f"{path.name}."
    try:
        names = os.listdir(path.parent)  # noqa: PTH208 - a folder may hold a million other files
    except FileNotFoundError:
        return
    for name in names:
        number = name.removeprefix(prefix)
        if name.startswith(prefix) and number.isascii() and number.isdecimal() and int(number) > missing:
            place = path.with_name(name)
            if place.stat().st_size and RawFile(place).read(0, 17) == b'{"nanotrio":"log"':
                raise StoreDamagedError(
                    f"{segment_path(path, missing)} is missing, and {place} goes on from it; "
                    "put it back, or move all of the store away"
                )


def _is_blank(file: RawFile, at: int, size: int) -> bool:
    """Whether nothing but zeros lies there, as where power was lost before the bytes were written."""
    while at < size:
        data = file.read(at, 1 << 20)
        if not data or data.strip(b"\0"):
            return False
        at += len(data)
    return True

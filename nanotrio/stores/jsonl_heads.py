"""The heads of a JSONL store: ``PATH.heads``, a cache that may be lost.

Theory of operation
-------------------
Blocks of heads are appended; of an agent the last head counts. Kept in memory are eight bytes an agent, where its head
lies, and which agents are unfinished. When most of the file is old heads it is written anew beside itself and put in
its own place.

An owner begins its tenure with an empty block of its epoch. A block of a lower epoch that follows was written by an
owner that had lost the store and did not know yet; it is passed over. What a crash left of a block at the end is cut
off. Any other damage, or a block that knows more records than the log holds, and the whole file counts for nothing:
then no head is true, and whoever opens the store replays the log (``heads_seq`` is 0).
"""

from __future__ import annotations

import array
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from ..errors import StoreDamagedError
from ..records import Head
from .jsonl_lines import HEADS, MAX_FRONT_BYTES, crc_holds, head_line, heads_block, read_head, read_head_fronts
from .raw_file import RawFile

__all__ = ["HeadsFile", "Written", "read_heads_at"]

_MIN_REWRITE_BYTES = 8 << 20
_REWRITE_FACTOR = 3
_REWRITE_SLICE = 4096
_GUESS_BYTES = 768
_MAX_AGENT = 1 << 31


class Written(msgspec.Struct, frozen=True):
    """A block that is in the file and not yet in the index."""

    heads: Sequence[Head]
    offsets: list[int]
    true_to: int


class HeadsFile:
    """What ``path`` holds. Reading and writing block; ``enter`` and ``select`` are for one thread and do not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.heads_seq = 0
        self.is_lost = False
        """Whether the file was there and counts for nothing."""
        self.log_seq = 0
        """The last record that the log held when the newest block was written."""
        # The file, and where in it each agent's head lies: one value, so that a rewrite puts both in place at once.
        self._view: tuple[RawFile | None, array.array[int]] = (None, array.array("q", [0]))
        self._unfinished: set[int] = set()
        self._roots: set[int] = set()
        self._ordered: list[int] | None = []
        self._epoch = 0
        self._end = 0
        # Of all heads seen or written, for their mean size.
        self._lines = 0
        self._line_bytes = 0

    @classmethod
    def read(cls, path: Path) -> HeadsFile:
        """Read what is there, perhaps nothing."""
        heads = cls(path)
        try:
            heads._view = RawFile(path), heads._view[1]
        except FileNotFoundError:
            return heads
        return heads if heads.extend() else heads.lost()

    def lost(self) -> HeadsFile:
        """Return the same file without what is in it."""
        heads = HeadsFile(self.path)
        heads.is_lost = True
        return heads

    @property
    def last_agent(self) -> int:
        """The greatest agent that has a head, 0 for none."""
        return len(self._view[1]) - 1

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._end

    def extend(self) -> bool:
        """Take in what the owner has written since; False where all is to be read anew."""
        file = self._view[0]
        if file is None or not file.is_in_place():
            return False
        size = file.size
        while self._end < size:
            front = HEADS.match(file.read(self._end, MAX_FRONT_BYTES))
            if front is None:
                return b"\n" not in file.read(self._end, MAX_FRONT_BYTES)
            start = self._end + front.end()
            body = file.read(start, int(front[6]))
            if start + int(front[6]) > size:
                return HEADS.search(body) is None
            if not crc_holds(front, body) or not self._take_block(front, start, body):
                return False
            self._end = start + len(body)
        return True

    def begin(self, epoch: int, last_seq: int, *, fsync: bool) -> None:
        """Become the writer in ``epoch``: cut off what a crash left, and keep what a former owner may still write out.

        Raises:
            OSError: the file cannot be written.
        """
        if self._view[0] is None:
            self.path.unlink(missing_ok=True)
        file = RawFile(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        if file.size > self._end:
            file.cut(self._end)
        self._view = file, self._view[1]
        self._epoch, self.log_seq = epoch, last_seq
        block = heads_block([], epoch, last_seq, self.heads_seq)
        self._end = file.append(block, fsync=fsync) + len(block)

    def write(self, heads: Sequence[Head], log_seq: int, true_to: int | None, *, fsync: bool) -> Written:
        """Append a block; it counts once it is entered.

        Raises:
            OSError: nothing was written.
        """
        if self._end > _MIN_REWRITE_BYTES and self._end > self._live_bytes() * _REWRITE_FACTOR:
            self._rewrite(fsync=fsync)
        file = self._view[0]
        assert file is not None, "begin makes one"
        true = self.heads_seq if true_to is None else true_to
        lines = [head_line(head) for head in heads]
        block = heads_block(lines, self._epoch, log_seq, true)
        self._end = file.append(block, fsync=fsync) + len(block)
        self.log_seq = log_seq
        self._count_lines(lines)
        return Written(heads, _offsets_before(self._end, lines), true)

    def enter(self, written: Written) -> None:
        """Let the heads of a block count."""
        self._enter([(head.agent, head.unfinished, head.parent) for head in written.heads], written.offsets)
        self.heads_seq = written.true_to

    def select(
        self, agents: Sequence[int] | None, after: int, limit: int, *, unfinished: bool, roots: bool = False
    ) -> tuple[RawFile | None, list[int]]:
        """Return where the heads of the agents above ``after`` lie, in order of agent, at most ``limit``."""
        file, offsets = self._view
        if roots:
            agents = sorted(self._roots if agents is None else self._roots.intersection(agents))
        return file, self._select(offsets, agents, after, limit, unfinished=unfinished)

    def _select(
        self, offsets: array.array[int], agents: Sequence[int] | None, after: int, limit: int, *, unfinished: bool
    ) -> list[int]:
        if agents is not None:
            known = len(offsets)
            wanted = sorted({agent for agent in agents if after < agent < known and offsets[agent]})
            return [offsets[agent] for agent in wanted if not unfinished or agent in self._unfinished][:limit]
        if unfinished:
            if self._ordered is None:
                self._ordered = sorted(self._unfinished)
            first = bisect_right(self._ordered, after)
            return [offsets[agent] for agent in self._ordered[first : first + limit]]
        found: list[int] = []
        agent = max(after, 0) + 1
        while agent < len(offsets) and len(found) < limit:
            some = offsets[agent : agent + limit]
            found += [offset for offset in some if offset]
            agent += limit
        return found[:limit]

    def _enter(self, heads: Iterable[tuple[int, bool, int]], offsets: Iterable[int]) -> None:
        """Note heads, each an agent, whether it is unfinished, and its parent, and where they lie."""
        known, open_ones = self._view[1], self._unfinished
        count = 0
        for (agent, unfinished, parent), offset in zip(heads, offsets, strict=True):
            if agent >= len(known):
                if agent > _MAX_AGENT:
                    raise StoreDamagedError(f"{self.path} names agent {agent}, which cannot be; remove the file")
                known.frombytes(bytes(8 * (agent + 1 - len(known))))
            if not known[agent]:
                count += 1
            known[agent] = offset
            if not parent:
                self._roots.add(agent)
            if unfinished:
                open_ones.add(agent)
            elif agent in open_ones:
                open_ones.discard(agent)
        self.count += count
        self._ordered = None

    def _take_block(self, front: re.Match[bytes], at: int, body: bytes) -> bool:
        """Enter a block that was read; False where it holds no heads."""
        epoch = int(front[3])
        if epoch < self._epoch:
            return True
        self._epoch = epoch
        try:
            heads = read_head_fronts(body)
        except msgspec.DecodeError:
            return False
        if len(heads) != int(front[2]) or len(heads) != body.count(b"\n"):
            return False
        fronts = [(head.agent, head.unfinished, head.parent) for head in heads]
        if fronts and not 0 < min(fronts)[0] <= max(fronts)[0] <= _MAX_AGENT:
            return False
        # A line begins where the one before it ends.
        self._enter(fronts, [at, *[at + end.end() for end in re.finditer(b"\n", body)]][:-1])
        self._lines += len(heads)
        self._line_bytes += len(body)
        self.log_seq, self.heads_seq = max(self.log_seq, int(front[4])), int(front[5])
        return True

    def _count_lines(self, lines: Sequence[bytes]) -> None:
        self._lines += len(lines)
        self._line_bytes += sum(map(len, lines)) + len(lines)

    def _live_bytes(self) -> int:
        """About how long the last heads of all agents are together."""
        return self._line_bytes * self.count // self._lines if self._lines else 0

    def _rewrite(self, *, fsync: bool) -> None:
        """Put a file with the last heads alone in the place of this one."""
        old, old_offsets = self._view
        assert old is not None, "begin makes one"
        place = self.path.with_name(f"{self.path.name}.new")
        place.unlink(missing_ok=True)
        file = RawFile(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        offsets = array.array("q", bytes(8 * len(old_offsets)))
        end = 0
        agents = [agent for agent, offset in enumerate(old_offsets) if offset]
        for start in range(0, len(agents), _REWRITE_SLICE):
            some = agents[start : start + _REWRITE_SLICE]
            lines = [_line_at(old, old_offsets[agent]) for agent in some]
            block = heads_block(lines, self._epoch, self.log_seq, self.heads_seq)
            end = file.append(block) + len(block)
            for agent, at in zip(some, _offsets_before(end, lines), strict=True):
                offsets[agent] = at
        if fsync:
            os.fsync(file.fd)
        place.rename(self.path)
        file.path = self.path
        # Whoever reads took file and places together, and goes on in the old ones.
        self._view, self._end = (file, offsets), end


def read_heads_at(file: RawFile, offsets: Sequence[int]) -> list[Head]:
    """Return the heads that lie there; blocks.

    Raises:
        StoreDamagedError: one cannot be read.
        OSError: as its name says.
    """
    return [_head_at(file, offset) for offset in offsets]


def _head_at(file: RawFile, at: int) -> Head:
    line = _line_at(file, at)
    try:
        return read_head(line)
    except msgspec.DecodeError as error:
        raise StoreDamagedError(
            f"a head in {file.path} at byte {at} cannot be read: {error}; remove that file, it is made anew"
        ) from error


def _line_at(file: RawFile, at: int) -> bytes:
    size = _GUESS_BYTES
    while True:
        data = file.read(at, size)
        line, newline, _ = data.partition(b"\n")
        if newline or len(data) < size:
            return line
        size *= 4


def _offsets_before(end: int, lines: Sequence[bytes]) -> list[int]:
    """Where lines begin that end at ``end``."""
    at = end - sum(map(len, lines)) - len(lines)
    offsets = []
    for line in lines:
        offsets.append(at)
        at += len(line) + 1
    return offsets

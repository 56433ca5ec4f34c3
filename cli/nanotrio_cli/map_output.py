"""Results of ``nanotrio map`` on their way out: a line of JSON each, in the order of the items.

A file that a former run of the job wrote is not written again where it holds the same: each line is compared with what
stands at its place, and from the first that differs on the file is cut and written anew. So a torn last line goes, and
at every moment the file is a beginning of what it will be. Nothing in the file names the job that wrote it, but each
line has its agent's name, in which is a digest of the item and of what was asked of it: by that results of another job
are known, and it is told that they are replaced.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from nanotrio import MapResult
from nanotrio.agent_name import stem_of
from nanotrio.limits import usd

from .exits import CommandError, CommandLineError
from .map_rows import Row
from .output import Output
from .result import usage_record

__all__ = ["ResultsFile", "ResultsStream", "Sink", "open_sink", "result_line"]

_FIRSTS = (b'{"index":0,"item":', b'{"index":0,"columns":')
_BUFFERED = 65_536
_MAX_LINE_BYTES = 16_000_000


class Sink(Protocol):
    """Where lines go."""

    async def write(self, line: bytes) -> None:
        """Take a line. Checkpoints where the place may block."""
        ...

    async def aclose(self, *, is_whole: bool) -> None:
        """Write what waits; ``is_whole`` says that no line will follow, in this run or another."""
        ...


class ResultsStream:
    """Standard output, or a path that is no regular file: a pipe, a device. ``descriptor`` is one to be closed."""

    def __init__(self, output: Output, descriptor: int | None = None) -> None:
        self.output = output
        self._descriptor = descriptor

    async def write(self, line: bytes) -> None:
        """Take a line, and write it.

        Raises:
            OutputClosedError: the reader has gone.
        """
        self.output.add(line)
        await self.output.drain()

    async def aclose(self, *, is_whole: bool) -> None:  # noqa: ARG002 - what is written stays
        """Nothing waits here."""
        if self._descriptor is not None:
            os.close(self._descriptor)


class ResultsFile:
    """A file, by its path; ``tell`` is called with a line for people where another job's results are replaced.

    Raises:
        CommandLineError: it cannot be written, or holds something that is no result of a map.
    """

    def __init__(self, path: str, tell: Callable[[str], None]) -> None:
        self._path = path
        self._tell = tell
        descriptor = _opened(path, os.O_RDWR | os.O_CREAT)
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        self._pending = bytearray()
        self._place = 0
        self._left = os.fstat(descriptor).st_size
        """Bytes of a former run that were not looked at yet."""
        if not _is_of_map(os.pread(descriptor, _MAX_LINE_BYTES, 0)):
            self._file.close()
            raise CommandLineError(
                f"--output {path} is there already and holds no results of a map; remove it, or name another file"
            )

    def lock(self) -> None:
        """Keep other jobs from the file until it is closed.

        Raises:
            CommandError: another process writes it.
        """
        with suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"--output {self._path} is being written by another process; name another file"
                raise CommandError(message) from None

    async def write(self, line: bytes) -> None:
        """Take a line, unless it stands there."""
        try:
            if self._left and not self._pending:
                if os.pread(self._file.fileno(), len(line), self._place) == line:
                    self._place += len(line)
                    self._left -= len(line)
                    return
                self._tell_of_another(line)
                self._cut()
            self._pending += line
            if len(self._pending) >= _BUFFERED:
                self._flush()
        except OSError as error:
            raise self._say(error) from None

    def flush(self) -> None:
        """Write what waits.

        Raises:
            CommandError: the file cannot be written.
        """
        try:
            self._flush()
        except OSError as error:
            raise self._say(error) from None

    def _flush(self) -> None:
        while self._pending:
            written = os.pwrite(self._file.fileno(), self._pending, self._place)
            self._place += written
            del self._pending[:written]

    def _tell_of_another(self, line: bytes) -> None:
        """Tell, where what stands in the place of ``line`` is a result of another item, or of another question."""
        former = _result_in(os.pread(self._file.fileno(), _MAX_LINE_BYTES, self._place).partition(b"\n"))
        own = _result_in(line.partition(b"\n"))
        if former is None or own is None or _is_alike(former, own):
            return
        self._tell(
            f"--output {self._path} held results of another job, or of other items, from line {own['index'] + 1:,} on: "
            "they are replaced, and stay in the store of the job that wrote them"
        )

    def _cut(self) -> None:
        os.ftruncate(self._file.fileno(), self._place)
        self._left = 0

    def _say(self, error: OSError) -> CommandError:
        return CommandError(f"{self._path} cannot be written: {error.strerror or error}")

    async def aclose(self, *, is_whole: bool) -> None:
        """Write what waits, and close the file; where nothing follows, what a former run had behind it is cut off."""
        try:
            self.flush()
            if is_whole and self._left:
                self._cut()
        finally:
            self._file.close()


def _result_in(parted: tuple[bytes, bytes, bytes]) -> dict[str, Any] | None:
    """Return the result in a line that was parted from what follows its end; None where it is torn or none."""
    line, end, _ = parted
    try:
        found = msgspec.json.decode(line, type=dict[str, Any]) if end else None
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if found is not None and "index" in found else None


def _is_of_map(beginning: bytes) -> bool:
    """Whether a file that begins so, with a line that may be torn, has results of a map, or nothing."""
    line, end, _ = beginning.partition(b"\n")
    if not end:
        return any(first.startswith(line[: len(first)]) for first in _FIRSTS)
    result = _result_in((line, end, b""))
    return result is not None and result["index"] == 0 and result.keys() >= {"status", "attempts", "agent"}


def _is_alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two results at one place are of the same item, and of the same question where both had an agent."""
    if isinstance(one.get("agent"), str) and isinstance(other.get("agent"), str):
        return stem_of(one["agent"]) == stem_of(other["agent"])
    return all(one.get(name) == other.get(name) for name in ("item", "columns"))


def open_sink(path: str | None, tell: Callable[[str], None]) -> Sink:
    """Return where results go: a path, or standard output. ``tell`` is as for ``ResultsFile``.

    Raises:
        CommandLineError: it cannot be written, or holds something that is no result of a map.
    """
    if path is None:
        return ResultsStream(Output())
    with suppress(OSError):
        mode = os.stat(path).st_mode  # noqa: PTH116 - a path that need not be text
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            descriptor = _opened(path, os.O_WRONLY)
            return ResultsStream(Output(descriptor, f"--output {path}"), descriptor)
    return ResultsFile(path, tell)


def _opened(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise CommandLineError(f"--output {path} cannot be written: {error.strerror or error}") from None


def result_line(result: MapResult) -> dict[str, Any]:
    """Return a result as an object for machines."""
    row: Row = result.item
    line: dict[str, Any] = {"index": result.index}
    line["columns" if isinstance(row.item, dict) else "item"] = row.item
    line |= {
        "status": result.status,
        "result": result.result,
        "error": result.reason or None,
        "cost_usd": None if result.unpriced else usd(result.cost_nano),
        "usage": usage_record(result.usage),
        "attempts": result.attempts,
        "agent": result.name or None,
    }
    if result.uncertain_nano:
        line["uncertain_cost_usd"] = usd(result.uncertain_nano)
    if result.status != "completed" and result.text:
        line["last_text"] = result.text
    return line

"""Standard output as bytes, without a buffer of Python's and without ever blocking the loop.

Text is UTF-8 whatever the locale says. A reader that has gone is told by ``OutputClosedError``.
"""

from __future__ import annotations

import errno
import json
import os
import select
import stat
import sys
from contextlib import suppress
from typing import Any

import msgspec

from .exits import CommandError, OutputClosedError

__all__ = ["Output", "TerminalFile", "encode_line", "write_error", "write_now"]

_CHUNK = 4_096
"""POSIX's least PIPE_BUF on Linux: a pipe that polls as writable takes this much without blocking."""


def encode_line(value: Any) -> bytes:
    r"""Return ``value`` as JSON in UTF-8 on one line, its newline included.

    Lone surrogates are escaped, since UTF-8 has no form for them. So are U+0085, U+2028 and U+2029, at which some
    readers of lines cut.
    """
    try:
        line = msgspec.json.encode(value)
    except UnicodeEncodeError:
        line = json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()
    if b"\xe2\x80" in line or b"\xc2\x85" in line:
        line = line.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
        line = line.replace(b"\xc2\x85", b"\\u0085")
    return line + b"\n"


def _say(error: OSError, name: str = "standard output") -> Exception:
    if error.errno in (errno.EPIPE, errno.EBADF, errno.ECONNRESET, errno.EIO):
        return OutputClosedError()
    return CommandError(f"{name} cannot be written: {error.strerror or error}")


def write_now(data: bytes, descriptor: int = 1) -> None:
    """Write all of ``data``, blocking; for answers before the loop runs.

    Raises:
        OutputClosedError: the reader has gone.
        CommandError: the output cannot be written for another reason.
    """
    view = memoryview(data)
    try:
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                _wait_writable(descriptor)
    except OSError as error:
        raise _say(error) from None


def _wait_writable(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()


def write_error(line: str) -> None:
    """Say one line on standard error; where that cannot be written, nothing more can be done."""
    with suppress(OutputClosedError, CommandError):
        write_now(" ".join(line.splitlines()).encode("utf-8", "replace") + b"\n", 2)


class TerminalFile:
    """A standard stream as rich wants it. A reader that has gone is told by ``OutputClosedError``."""

    encoding = "utf-8"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        """Write a text at once."""
        write_now(text.encode("utf-8", "replace"), self._descriptor)
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""

    def isatty(self) -> bool:
        """Whether a terminal is at its other end."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor


class Output:
    """Bytes that are on their way to a descriptor: ``add`` at any time, ``drain`` to have them written.

    ``name`` is what people call it.
    """

    def __init__(self, descriptor: int = 1, name: str = "standard output") -> None:
        self._descriptor = descriptor
        self._name = name
        self._pending = bytearray()
        mode = os.fstat(descriptor).st_mode
        self._is_pipe = stat.S_ISFIFO(mode)
        self._waits = self._is_pipe or stat.S_ISSOCK(mode) or os.isatty(descriptor)

    def add(self, data: bytes) -> None:
        """Put ``data`` behind what waits; nothing is written yet."""
        self._pending += data

    @property
    def pending_bytes(self) -> int:
        """How much waits to be written."""
        return len(self._pending)

    async def drain(self) -> None:
        """Write all that waits. Checkpoints where the output may block; after a cancel the rest still waits.

        Raises:
            OutputClosedError: the reader has gone.
            CommandError: the output cannot be written for another reason.
        """
        import trio

        while self._pending:
            if self._waits:
                await trio.lowlevel.wait_writable(self._descriptor)
            try:
                written = os.write(self._descriptor, self._pending[:_CHUNK] if self._waits else self._pending)
            except BlockingIOError:
                await trio.lowlevel.checkpoint()
                continue
            except OSError as error:
                self._pending.clear()
                raise _say(error, self._name) from None
            del self._pending[:written]

    async def wait_closed(self) -> None:
        """Return once the reader of a pipe has gone; for other outputs, and where the system cannot tell, never.

        Without this a reader's end is only seen at the next write, which may be long after.
        """
        import trio

        if not (self._is_pipe and sys.platform == "linux"):
            await trio.sleep_forever()
        poll = select.poll()
        poll.register(self._descriptor, 0)
        while not poll.poll(0):
            await trio.lowlevel.wait_readable(self._descriptor)

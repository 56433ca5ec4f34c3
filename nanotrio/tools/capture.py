"""What a process writes: its head and tail in memory, all of it in a file once it is long.

Memory is bounded by three times ``max_bytes`` and one write of ``_WRITE_BYTES``, the file by
``max_output_file_bytes``; what comes after that is read and dropped, so that the process goes on.

Keys are replaced as the bytes come in, before anything is cut or written.
"""

from __future__ import annotations

import codecs
import os
import re
from pathlib import Path

import trio

from ..counted import counted
from ..errors import ToolError
from ..messages import clean_text
from .binary import binary_output
from .output import head_and_tail, open_output_file
from .threads import thread_limiter
from .tool import ToolContext

__all__ = ["Capture"]

_WRITE_BYTES = 2**18
"""Bytes gathered before a thread writes them; a thread's hop costs as much as copying this."""
_READ_BYTES = 2**16

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*(?:[@-~]|\Z)"  # colours, the cursor
    r"|\x1b[\]PX^_][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)"  # titles, links, device strings
    r"|\x1b[ -/]*[0-~]?"  # the rest; an unfinished one too
)


class Capture:
    """Bounded memory of an unbounded output; ``max_bytes`` go to the model."""

    def __init__(self, context: ToolContext, max_bytes: int) -> None:
        self.size_bytes = 0
        self.path: Path | None = None
        """The file with the full text, made once the output is longer than ``max_bytes``."""
        self._context = context
        self._bound = max_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._unwritten = bytearray()
        self._room_bytes = context.limits.max_output_file_bytes
        self._file = -1
        self._trouble = ""
        self._redacted = context.redactor.stream()
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")  # which loses no byte

    async def read_from(self, descriptor: int) -> None:
        """Read a non-blocking pipe to its end. Cancelled, it keeps what was read so far."""
        while True:
            try:
                data = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(descriptor)
                continue
            if not data:
                return
            self._take(data)
            if len(self._unwritten) >= _WRITE_BYTES:
                await self._write()
            else:
                await trio.lowlevel.checkpoint()

    def read_ready(self, descriptor: int) -> None:
        """Read what already lies in the pipe, without waiting; at most what a pipe holds."""
        for _ in range(16):
            try:
                data = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                return
            self._take(data)

    async def finish(self) -> str:
        """Write out what is left and return the text for the model, within ``max_bytes``."""
        if self._redacted is not None:
            text = self._redacted.feed(self._decoder.decode(b"", final=True)) + self._redacted.end()
            self._keep(text.encode(errors="surrogateescape"))
        head = self._text(bytes(self._head), is_head=True)
        if self.path is None and len(head.encode()) > self._bound:
            self._open()
        if self.path is None and not self._trouble:
            if not binary_output(self._head):
                return head
            self._open()
        await self._write()
        self.close()
        if kind := binary_output(self._head):
            return f"[{kind}, not shown: {self._summary()}]"
        tail = bytes(self._tail) if self.size_bytes > len(self._head) else bytes(self._head)
        return head_and_tail(head, self._text(tail, is_head=False), f"[... {self._summary()} ...]", self._bound)

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _take(self, data: bytes) -> None:
        if self._redacted is not None:
            data = self._redacted.feed(self._decoder.decode(data)).encode(errors="surrogateescape")
        self._keep(data)

    def _keep(self, data: bytes) -> None:
        self.size_bytes += len(data)
        if self.path is None and not self._trouble:
            if self.size_bytes <= self._bound:
                self._head += data
                return
            self._open()
            self._head += data[: self._bound - len(self._head)]
            self._tail += self._head
        if self._room_bytes > 0:
            kept = data[: self._room_bytes]
            self._room_bytes -= len(kept)
            self._unwritten += kept
        if len(data) >= self._bound:
            self._tail[:] = data[-self._bound :]
        else:
            self._tail += data
            if len(self._tail) > 2 * self._bound:
                del self._tail[: -self._bound]

    def _open(self) -> None:
        try:
            self._file, self.path = open_output_file(self._context)
        except ToolError as error:
            self._trouble = str(error)
            self._room_bytes = 0
            return
        self._unwritten += self._head
        self._room_bytes -= len(self._head)

    async def _write(self) -> None:
        data, self._unwritten = self._unwritten, bytearray()
        if self._file < 0 or not data:
            return
        trouble = await trio.to_thread.run_sync(_write_all, self._file, data, limiter=thread_limiter("file"))
        if trouble:
            self._trouble = f"writing {self.path} failed: {trouble}"
            self._room_bytes = 0

    def _summary(self) -> str:
        size = counted(self.size_bytes, "byte")
        if self._trouble:
            return f"{size}; {self._trouble}"
        most = self._context.limits.max_output_file_bytes
        what = "all are" if self.size_bytes <= most else f"the first {most:,} are"
        return f"{size}; {what} in {clean_text(str(self.path))}"

    def _text(self, data: bytes, *, is_head: bool) -> str:
        if is_head:  # a character cut off at the end is dropped, not shown as damage
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            text = decoder.decode(data, final=self.size_bytes <= len(data))
        else:
            start = next((i for i in range(min(3, len(data))) if data[i] & 0xC0 != 0x80), 0)
            text = data[start:].decode(errors="replace")
        return _ESCAPES.sub("", text) if "\x1b" in text else text


def _write_all(descriptor: int, data: bytearray) -> str:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        return error.strerror or str(error)
    return ""

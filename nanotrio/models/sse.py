"""A push parser of event streams (``text/event-stream``).

Theory of operation
-------------------
The input is cut anywhere, so the parser works in two layers. The lower one makes lines: a line ends at LF, CR or
CR LF, and since CR LF may be cut in the middle, a chunk that ends in CR leaves a flag by which an LF at the start of
the next chunk belongs to that same end of line. The unfinished rest of a chunk is kept as a list of pieces and joined
once, so the cost stays linear however small the pieces are. The upper layer knows four kinds of line: a comment
(begins with a colon, means nothing), a field, a blank line (which ends an event) and, as the very first line, one with
a byte-order mark in front.

An event without a ``data`` field is dropped, and so is one that the end of the stream cuts off before its blank line.
Rules: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from __future__ import annotations

from ..errors import ModelError

__all__ = ["MAX_EVENT_BYTES", "EventParser"]

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Bytes of one event, or of one unfinished line; a server that sends more is cut off."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COLON = 0x3A
_CR = 0x0D
_LF = 0x0A


class EventParser:
    """Turns the bytes of an event stream into pairs of event name and data, both as bytes."""

    __slots__ = ("_after_cr", "_data", "_first_line", "_name", "_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._first_line = True
        self._name = b""
        self._data: list[bytes] = []

    def receive_data(self, chunk: bytes) -> list[tuple[bytes, bytes]]:
        """Take any cut of the stream; return the events it completed, in order.

        The name is ``b""`` where the stream gave none. Several ``data`` lines are joined by LF.

        Raises:
            ModelError: one event is larger than ``MAX_EVENT_BYTES``.
        """
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == _LF:
                chunk = chunk[1:]
        if not chunk:
            return []
        lines = chunk.splitlines()
        last = chunk[-1]
        rest = None
        if last == _CR:
            self._after_cr = True
        elif last != _LF:
            rest = lines.pop()
        events: list[tuple[bytes, bytes]] = []
        for line in lines:
            if self._pieces:
                self._pieces.append(line)
                line = b"".join(self._pieces)  # noqa: PLW2901 - the whole line takes the place of its last piece
                self._pieces.clear()
            self._take_line(line, events)
        if rest is not None:
            self._pieces.append(rest)
            self._grow(len(rest))
        return events

    def _take_line(self, line: bytes, events: list[tuple[bytes, bytes]]) -> None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            if self._data:
                events.append((self._name, b"\n".join(self._data)))
                self._data = []
            self._name = b""
            self._size = 0
            return
        if line[0] == _COLON:
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
            self._grow(len(value))
        elif field == b"event":
            self._name = value.removeprefix(b" ")

    def _grow(self, size_bytes: int) -> None:
        self._size += size_bytes
        if self._size > 2 * MAX_EVENT_BYTES or size_bytes > MAX_EVENT_BYTES:
            raise ModelError(
                f"the server sent one event of more than {MAX_EVENT_BYTES} bytes; the stream was given up",
                kind="rejected",
            )

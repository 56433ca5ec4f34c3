"""The ``read`` and ``write`` tools.

A small file is read on the loop: that takes less time than handing it to a thread. A long one is read in a thread,
line by line, so that memory is bounded by what the model gets.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import trio

from ..counted import counted
from ..errors import ToolError
from ..messages import clean_text
from .binary import binary_kind
from .encoding import UTF8, Encoding, encoding_of, require_text
from .function import tool
from .output import head_of
from .paths import open_regular, resolve_path, shown
from .replace import replace_file
from .threads import thread_limiter
from .tool import ToolContext

__all__ = ["MAX_WHOLE_BYTES", "read", "read_whole", "write"]

MAX_WHOLE_BYTES = 16 * 2**20
"""The longest file that is edited, written over with care for its encoding, or read as UTF-16: all are read whole."""

_INLINE_BYTES = 2**18
_SAMPLE_BYTES = 2**13
_MAX_LINE_CHARACTERS = 2_000
_NOTE_BYTES = 300


@tool(effect=False)
async def read(context: ToolContext, path: str, offset: int = 1, limit: int = 2_000) -> str:
    """Read a text file. Each line comes after its number and a tab, which are not part of the file.

    Args:
        context: of the call.
        path: relative to the working directory, absolute, or below ~.
        offset: the line to begin with, counted from 1.
        limit: how many lines to read at most.
    """
    place = resolve_path(context, path)
    page = functools.partial(_read_page, place, max(offset, 1), max(limit, 1), context.limits.max_result_bytes)
    descriptor, status = open_regular(place)
    if status.st_size <= _INLINE_BYTES:
        return page(descriptor)
    os.close(descriptor)  # the thread opens it again, so that a call cancelled before it starts leaves nothing open
    return await trio.to_thread.run_sync(
        lambda: page(open_regular(place)[0]), abandon_on_cancel=True, limiter=thread_limiter("file")
    )


@tool(effect=True)
async def write(context: ToolContext, path: str, content: str) -> str:
    """Write a text file, making its directories. What was in it is replaced; to change a part, use edit.

    Args:
        context: of the call.
        path: relative to the working directory, absolute, or below ~.
        content: all of the file's text.
    """
    return _write_text(resolve_path(context, path), clean_text(content))


def read_whole(place: Path) -> bytes:
    """Return a regular file's bytes.

    Raises:
        ToolError: it cannot be read, or is longer than ``MAX_WHOLE_BYTES``.
    """
    descriptor, status = open_regular(place)
    with os.fdopen(descriptor, "rb") as file:
        if status.st_size <= MAX_WHOLE_BYTES:
            data = file.read(MAX_WHOLE_BYTES + 1)
            if len(data) <= MAX_WHOLE_BYTES:
                return data
    raise ToolError(f"{shown(place)} is longer than {MAX_WHOLE_BYTES:,} bytes; use bash (sed, split) for it")


def _write_text(place: Path, content: str) -> str:
    is_there = os.path.exists(place)  # noqa: PTH110 - Path's raises where a name is too long
    encoding = _kept_encoding(place, content) if is_there else UTF8
    data = encoding.encode(content.removeprefix("\ufeff") if encoding.mark else content)
    is_new = replace_file(place, data)
    return f"{'created' if is_new else 'replaced'} {shown(place)}: {counted(len(data), 'byte')}"


def _kept_encoding(place: Path, content: str) -> Encoding:
    """Return the encoding to write an existing file in, or refuse to change what others read it as."""
    encoding = require_text(place, read_whole(place), "written over; remove it first, if it is no longer needed,")
    if not encoding.is_known and not content.isascii():
        raise ToolError(
            f"{shown(place)} is in an encoding that is neither UTF-8 nor marked, and the new text is not plain ASCII, "
            "so writing it would change the encoding; remove the file first, or convert it (iconv)"
        )
    return UTF8 if not encoding.is_known else encoding


class _Line(msgspec.Struct, gc=False):
    """The beginning of a line, and how long it is."""

    head: bytes
    size_bytes: int


def _read_page(place: Path, offset: int, limit: int, max_bytes: int, descriptor: int) -> str:
    with os.fdopen(descriptor, "rb") as file:
        sample = file.read(_SAMPLE_BYTES)
        file.seek(0)
        if not sample:
            return f"({shown(place)} is empty)"
        lines: Iterator[_Line]
        if sample[:2] in (b"\xff\xfe", b"\xfe\xff"):
            data = file.read(MAX_WHOLE_BYTES)
            encoding = encoding_of(data)
            if encoding is None or not encoding.is_known:
                raise _not_text(place, sample)
            lines = _lines(io.BytesIO(encoding.decode(data).encode()))
        elif 0 in sample or binary_kind(sample):
            raise _not_text(place, sample)
        else:
            file.seek(3 if sample.startswith(b"\xef\xbb\xbf") else 0)
            lines = _lines(file)
        return _page(lines, place, offset, limit, max_bytes)


def _not_text(place: Path, sample: bytes) -> ToolError:
    kind = binary_kind(sample) or "a binary"
    return ToolError(
        f"{shown(place)} is {kind} of {counted(place.stat().st_size, 'byte')}, not text; look at it with bash (xxd)"
    )


def _lines(file: BinaryIO) -> Iterator[_Line]:
    """Go through the lines, holding no more than the beginning of one."""
    most = 4 * _MAX_LINE_CHARACTERS + 4
    while head := file.readline(most):
        size_bytes = len(head)
        piece = head
        while not piece.endswith(b"\n") and (piece := file.readline(_INLINE_BYTES)):
            size_bytes += len(piece)
        yield _Line(head.removesuffix(b"\n").removesuffix(b"\r"), size_bytes)


def _page(lines: Iterator[_Line], place: Path, offset: int, limit: int, max_bytes: int) -> str:
    shown_lines: list[str] = []
    room_bytes = max(max_bytes - _NOTE_BYTES, max_bytes // 2)
    is_damaged = False
    number = 0
    for number, line in enumerate(lines, 1):
        if number < offset:
            continue
        if number >= offset + limit:
            break
        text = line.head.decode(errors="replace")
        if len(text) > _MAX_LINE_CHARACTERS:
            text = f"{head_of(text[:_MAX_LINE_CHARACTERS], 4 * len(text))} [... a line of {line.size_bytes:,} bytes]"
        row = f"{number:6}\t{text}"
        room_bytes -= len(row.encode()) + 1
        if room_bytes < 0 and shown_lines:
            break
        shown_lines.append(row if room_bytes >= 0 else head_of(row, max_bytes // 2))
        is_damaged = is_damaged or "\ufffd" in text
    else:
        if number < offset:
            raise ToolError(f"{shown(place)} has {counted(number, 'line')}, so none from {offset:,} on")
        number = 0
    if is_damaged:
        shown_lines.append("[bytes that are not UTF-8 are shown as \ufffd; edit keeps them as they are]")
    if number:
        shown_lines.append(f"[it goes on; read from offset={number}]")
    return "\n".join(shown_lines)

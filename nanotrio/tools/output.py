"""A result that is too long for the model: its head and tail, and a file with all of it."""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

import trio

from ..errors import ToolError
from ..messages import clean_text
from .threads import thread_limiter
from .tool import ToolContext, ToolOutput

__all__ = ["fit_output", "head_and_tail", "head_of", "open_output_file", "tail_of"]

_JOINERS = frozenset("\u200c\u200d\ufe0e\ufe0f")
_MAX_FLAGS = 1_000
_MAX_CLUSTER = 32
"""Characters that are looked at for an edge; a longer cluster is cut anyway."""


async def fit_output(context: ToolContext, output: ToolOutput) -> ToolOutput:
    """Return ``output`` cleaned, and no longer than ``max_result_bytes`` in UTF-8.

    Of a longer one the head and the tail are kept, with a line between them that names the file which holds the
    full text (up to ``max_output_file_bytes``), or says why none does. Checkpoints only where there is a file to
    write.
    """
    bound = context.limits.max_result_bytes
    content = context.redactor.text(clean_text(output.content))  # before it is cut, or half a key would be left
    size_bytes = len(content) if content.isascii() else len(content.encode())
    if size_bytes <= bound:
        return output if content is output.content else ToolOutput(content, output.is_error)
    kept = head_of(content, context.limits.max_output_file_bytes)
    try:
        path = await trio.to_thread.run_sync(_write_all, context, kept, limiter=thread_limiter("file"))
    except ToolError as error:  # the tool has run: what it says matters more than where the rest would be
        rest = str(error)
    else:
        most = context.limits.max_output_file_bytes
        what = "all are" if len(kept) == len(content) else f"the first {most:,} are"
        rest = f"{what} in {clean_text(str(path))}"
    note = f"[... {size_bytes:,} bytes; {rest} ...]"
    return ToolOutput(head_and_tail(content, content, note, bound), output.is_error)


def open_output_file(context: ToolContext, suffix: str = ".txt") -> tuple[int, Path]:
    """Make a new file for an output of this call and return its descriptor and path.

    The file is readable by its owner alone.

    Raises:
        ToolError: it could not be made.
    """
    stem = f"{context.agent}-{re.sub(r'[^A-Za-z0-9_-]', '_', context.call_id)[:80]}"
    try:
        context.output_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(1_000):
            path = context.output_directory / f"{stem}{f'-{number}' if number else ''}{suffix}"
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                return os.open(path, flags, 0o600), path
            except FileExistsError:
                continue
    except OSError as error:
        raise ToolError(
            f"the full output could not be kept in {context.output_directory}: {error.strerror}; "
            "free some space there, or ask for less output"
        ) from error
    raise ToolError(f"{context.output_directory} holds too many outputs of this call; remove some")


def head_and_tail(head: str, tail: str, note: str, max_bytes: int) -> str:
    """Return the beginning of ``head``, ``note`` on a line, and the end of ``tail``, within ``max_bytes``."""
    between = f"\n{note}\n"
    room = max_bytes - len(between.encode())
    if room <= 0:
        return head_of(note, max_bytes)
    first, last = head_of(head, room - room // 2), tail_of(tail, room // 2)
    return f"{first.removesuffix(chr(10))}{between}{last.removeprefix(chr(10))}"


def head_of(text: str, max_bytes: int) -> str:
    """Return as much of the beginning as fits, cut where a character as people see it ends."""
    if len(text) * 4 <= max_bytes:
        return text
    data = text[:max_bytes].encode()
    if len(data) <= max_bytes and len(text) <= max_bytes:
        return text
    end = len(data[:max_bytes].decode(errors="ignore"))
    for edge in range(end, max(end - _MAX_CLUSTER, 0) - 1, -1):
        if not _is_inside(text, edge):
            return text[:edge]
    return text[:end]


def tail_of(text: str, max_bytes: int) -> str:
    """Return as much of the end as fits, cut where a character as people see it begins."""
    if len(text) * 4 <= max_bytes:
        return text
    if max_bytes <= 0:
        return ""
    data = text[-max_bytes:].encode()
    if len(data) <= max_bytes and len(text) <= max_bytes:
        return text
    start = len(text) - len(data[-max_bytes:].decode(errors="ignore"))
    for edge in range(start, min(start + _MAX_CLUSTER, len(text)) + 1):
        if not _is_inside(text, edge):
            return text[edge:]
    return text[start:]


def _is_inside(text: str, edge: int) -> bool:
    """Whether a cut at ``edge`` would take a visible character apart (roughly UAX 29's grapheme clusters)."""
    if edge <= 0 or edge >= len(text):
        return False
    before, after = text[edge - 1], text[edge]
    if before.isascii() and after.isascii():
        return before == "\r" and after == "\n"
    if before == "\u200d" or after in _JOINERS or "\U0001f3fb" <= after <= "\U0001f3ff":
        return True
    if "\U0001f1e6" <= before <= "\U0001f1ff" and "\U0001f1e6" <= after <= "\U0001f1ff":
        start = edge
        while start > 0 and edge - start < _MAX_FLAGS and "\U0001f1e6" <= text[start - 1] <= "\U0001f1ff":
            start -= 1
        return (edge - start) % 2 == 1
    return unicodedata.category(after) in ("Mn", "Me", "Mc")


def _write_all(context: ToolContext, text: str) -> Path:
    descriptor, path = open_output_file(context)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
    except OSError as error:
        raise ToolError(f"the full output could not be written to {path}: {error.strerror}") from error
    return path

"""The prompt of ``-p``: the argument, and standard input where it is not a terminal."""

from __future__ import annotations

import os
import select
import stat

from .exits import CommandLineError
from .output import write_error

__all__ = ["read_prompt"]

MAX_INPUT_BYTES = 10_000_000
FIRST_BYTE_SECONDS = 3.0
"""How long a pipe may stay silent beside a prompt on the command line: many parents leave one open for ever."""


def read_prompt(argument: str | None) -> str:
    """Join the argument and standard input, with an empty line between; blocking.

    With an argument, an input that is empty, closed, unreadable or silent is passed over; without one it is awaited.

    Raises:
        CommandLineError: both are empty, or the input is too long.
    """
    data = _read(0, patient=not (argument or "").strip())
    text = data.decode("utf-8", "replace")
    parts = [part for part in (argument or "", text) if part.strip()]
    if not parts:
        raise CommandLineError('the prompt is empty: give it as nanotrio -p "PROMPT", or on standard input')
    return "\n\n".join(part.strip("\n") for part in parts)


def _read(descriptor: int, *, patient: bool) -> bytes:
    try:
        mode = os.fstat(descriptor).st_mode
        if os.isatty(descriptor) or stat.S_ISDIR(mode):
            return b""
        if not patient and not stat.S_ISREG(mode) and not select.select([descriptor], [], [], FIRST_BYTE_SECONDS)[0]:
            write_error(f"nanotrio: standard input said nothing for {FIRST_BYTE_SECONDS:g} s and is left out")
            return b""
        return _read_all(descriptor)
    except OSError:
        return b""


def _read_all(descriptor: int) -> bytes:
    data = bytearray()
    while True:
        try:
            chunk = os.read(descriptor, 65_536)
        except BlockingIOError:
            select.select([descriptor], [], [])
            continue
        if not chunk:
            return bytes(data)
        data += chunk
        if len(data) > MAX_INPUT_BYTES:
            raise CommandLineError(
                f"standard input holds more than {MAX_INPUT_BYTES:,} bytes; put it in a file and name the file"
            )

"""Running a real process until it is killed, and what was heard of it before."""

from __future__ import annotations

import os
import select
import signal
import struct
import time
from collections.abc import Sequence

import msgspec

from ..crash import CRASH_POINTS
from ..errors import UsageError
from .child import Child, Forks, start_command, start_program
from .crashing import CRASH_AT
from .trial import Program, Trial

__all__ = ["Crash", "Kill", "run_until_killed"]

_NUMBER_BYTES = 8


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """When a process is to die: at the ``count``-th pass of ``point``, or ``seconds`` after so many acknowledgements.

    Where nothing is set the process is left to its end.
    """

    point: str = ""
    count: int = 1
    acknowledgements: int = 0
    """Batches that were acknowledged. Counting these and not seconds, a seed means about the same on any machine."""
    seconds: float = 0.0


class Crash(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one process."""

    killed: bool
    """It died by SIGKILL; else it came to its end first."""
    exit_code: int
    """Negative for a signal."""
    acknowledged: int
    """The greatest number that was acknowledged as durable, 0 for none."""
    acknowledgements: int
    """How many numbers were: the batches that it committed."""
    output: str
    """What it wrote to stdout and stderr."""


def run_until_killed(
    program: Program | Sequence[str],
    trial: Trial,
    kill: Kill | None = None,
    *,
    forks: Forks | None = None,
    deadline_seconds: float = 60.0,
) -> Crash:
    """Run ``program`` in a process of its own, kill it as ``kill`` says, and return what was heard of it.

    The process is gone when this returns, so its store may be opened again. ``program`` is a function of a ``Trial`` or
    its name, run in a new Python, or in a fork of ``forks``, which is quicker; or a command line, whose program
    calls ``arm_from_environment`` itself. Blocks.

    Raises:
        UsageError: no crash point is called so.
        TimeoutError: it neither died nor ended within ``deadline_seconds``; it is killed, and the text says what it
            wrote.
    """
    kill = kill or Kill()
    if kill.point and kill.point not in CRASH_POINTS:
        raise UsageError(f"no crash point is called {kill.point!r}; there are {', '.join(CRASH_POINTS)}")
    environment = {CRASH_AT: f"{kill.point}:{kill.count}" if kill.point else ""}
    child: Child
    if not (isinstance(program, str) or callable(program)):
        child = start_command(program, environment)
    elif forks is not None:
        child = forks.start(program, trial, environment)
    else:
        child = start_program(program, trial, environment)
    try:
        heard, in_time = _listen(child, kill, time.monotonic() + deadline_seconds)
    finally:
        child.kill()  # whatever went wrong here, nothing stays behind
        os.close(child.acknowledged)
        exit_code = child.wait()
    output = child.errors()
    if not in_time:
        raise TimeoutError(
            f"the program neither died nor ended within {deadline_seconds:g} s; it wrote: {output[-2000:]}"
        )
    whole = len(heard) // _NUMBER_BYTES
    numbers = struct.unpack(f"<{whole}q", heard[: whole * _NUMBER_BYTES])
    return Crash(
        killed=exit_code == -signal.SIGKILL,
        exit_code=exit_code,
        acknowledged=max(numbers, default=0),
        acknowledgements=whole,
        output=output,
    )


def _listen(child: Child, kill: Kill, deadline: float) -> tuple[bytes, bool]:
    """Hear what the child acknowledges, killing it at its time; return that, and whether it ended by the deadline.

    The pipe ends with the process, so what was written before the kill is heard in full.
    """
    heard = bytearray()
    is_random = bool(kill.acknowledgements or kill.seconds)
    kill_at = time.monotonic() + kill.seconds if is_random and not kill.acknowledgements else None
    while True:
        now = time.monotonic()
        if kill_at is not None and now >= kill_at:
            child.kill()
            kill_at = None
            is_random = False
        if now >= deadline:
            return bytes(heard), False
        until = deadline if kill_at is None else min(kill_at, deadline)
        readable, _, _ = select.select([child.acknowledged], [], [], max(0.0, until - now))
        if readable:
            data = os.read(child.acknowledged, 1 << 16)
            if not data:
                return bytes(heard), True
            heard += data
            if is_random and kill_at is None and len(heard) >= _NUMBER_BYTES * kill.acknowledgements:
                kill_at = time.monotonic() + kill.seconds

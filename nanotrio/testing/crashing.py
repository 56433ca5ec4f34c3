"""Making this process die at a named point.

Theory of operation
-------------------
The rooms of nanotrio call ``crash.here`` at each point where something is set there. Arming sets it to ``_pass``, which
counts the passes of each armed point down and, at zero, sends SIGKILL to its own process: no ``finally``, no flush, no
goodbye, exactly as the kernel or an operator would end it. The same function reports every acknowledgement of the
journal to a pipe where one was given, *before* whoever waits is woken, so that the one who reads the pipe knows of each
promise that was made.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Mapping

from .. import crash
from ..crash import CRASH_POINTS
from ..errors import UsageError

__all__ = ["ACKNOWLEDGED_FD", "CRASH_AT", "arm_from_environment", "crash_at", "disarm", "report_acknowledged"]

CRASH_AT = "NANOTRIO_CRASH_AT"
"""The variable that names a point for ``arm_from_environment``: ``POINT`` or ``POINT:COUNT``."""

ACKNOWLEDGED_FD = "NANOTRIO_ACKNOWLEDGED_FD"
"""The variable that names the descriptor which acknowledged numbers are written to."""

_armed: dict[str, int] = {}
_acknowledged: list[int] = []


def crash_at(point: str, count: int = 1) -> None:
    """Let this process be killed (SIGKILL, by itself) when it passes ``point`` for the ``count``-th time from now.

    Several points may be armed; ``disarm`` takes all back. Does not checkpoint.

    Raises:
        UsageError: no point is called so (``nanotrio.testing.CRASH_POINTS`` names them), or the count is below 1.
    """
    if point not in CRASH_POINTS:
        raise UsageError(f"no crash point is called {point!r}; there are {', '.join(CRASH_POINTS)}")
    if count < 1:
        raise UsageError(f"the count of {point} is {count}; the first pass is 1")
    _armed[point] = count
    crash.here = _pass


def disarm() -> None:
    """Take back every ``crash_at`` and ``report_acknowledged``."""
    _armed.clear()
    _acknowledged.clear()
    crash.here = None


def report_acknowledged(descriptor: int) -> None:
    """Write the number of each batch's last record to ``descriptor``, eight bytes each, once it counts as durable.

    It is written before those who wait for it are told, so nobody was promised more than what was written.
    """
    _acknowledged[:] = [descriptor]
    crash.here = _pass


def arm_from_environment(environment: Mapping[str, str] = os.environ) -> None:
    """Arm what ``NANOTRIO_CRASH_AT`` and ``NANOTRIO_ACKNOWLEDGED_FD`` ask for; nothing where they are not set.

    A program that ``run_until_killed`` starts by its name has this done for it; one that is started by a command line
    calls it first thing.

    Raises:
        UsageError: as ``crash_at``.
    """
    point, _, count = environment.get(CRASH_AT, "").partition(":")
    if point:
        crash_at(point, int(count) if count.isdecimal() else 1)
    if descriptor := environment.get(ACKNOWLEDGED_FD, ""):
        report_acknowledged(int(descriptor))


def _pass(point: str, number: int) -> None:
    if point == "before-acknowledgement" and _acknowledged:
        os.write(_acknowledged[0], struct.pack("<q", number))
    left = _armed.get(point)
    if left is not None:
        _armed[point] = left - 1
        if left <= 1:
            os.kill(os.getpid(), signal.SIGKILL)

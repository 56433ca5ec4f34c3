"""A process started for a tool: its own session, no terminal, end of file on its input."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Mapping

import trio

__all__ = ["Child", "open_pipe", "start_child"]

_STARTS: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("nanotrio_starts")
_DEFAULTS = tuple(
    {
        signal.SIGPIPE,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGXFSZ,
        signal.SIGCHLD,
        signal.SIGTSTP,
    }
)
"""Signals a child begins with at their defaults: Python ignores some, and a caller may have set others aside."""


class Child:
    """A process we started and have to wait for; it leads a session and a process group of its own number.

    ``returncode`` is None while it runs; then its exit code, or minus the number of the signal that ended it. It is
    ``UNKNOWN`` where somebody else collected it.
    """

    UNKNOWN = 1_000

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Collect the process if it has ended, and return ``returncode``. Never waits."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self.returncode = self.UNKNOWN
            else:
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    async def wait(self) -> int:
        """Wait for its end; cancelling leaves it running.

        Takes a descriptor while it waits, and polls where there is none to have.
        """
        if (code := self.poll()) is not None:
            return code
        try:
            descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            return await self._wait_polling()
        try:
            while (code := self.poll()) is None:
                await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)
        return code

    async def _wait_polling(self) -> int:
        delay_seconds = 0.001
        while (code := self.poll()) is None:
            await trio.sleep(delay_seconds)
            delay_seconds = min(delay_seconds * 2, 0.05)
        return code

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to every process of its group that may be sent one."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def has_group(self) -> bool:
        """Whether any process of its group is left (its own uncollected end counts)."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def open_pipe() -> tuple[int, int]:
    """Return a pipe (reader, writer) with numbers above 2, so that handing it over meets no standard descriptor."""
    reader, writer = os.pipe()
    return _above_standard(reader), _above_standard(writer)


def _above_standard(descriptor: int) -> int:
    if descriptor > 2:
        return descriptor
    higher = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(descriptor)
    return higher


async def start_child(
    path: str,
    arguments: list[str],
    environment: Mapping[str, str],
    *,
    output: int,
    source: int | None = None,
    extra: Mapping[int, int] | None = None,
) -> Child:
    """Start a program whose output and errors go to ``output``.

    Its input is ``source``, or nothing. ``extra`` maps further numbers in the child to our descriptors. Starts take
    turns, one a pass of the loop: each holds the loop for about a millisecond.

    Raises:
        OSError: it could not be started.
    """
    files: list[tuple[int, ...] | tuple[int, int, str, int, int]] = []
    if source is None:
        files.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
    else:
        files.append((os.POSIX_SPAWN_DUP2, source, 0))
    files += [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]
    files += [(os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in (extra or {}).items()]
    async with _starts():
        pid = os.posix_spawn(  # noqa: ASYNC221 - returns once the program is loaded
            path, arguments, environment, file_actions=files, setsid=True, setsigmask=(), setsigdef=_DEFAULTS
        )
    return Child(pid)


def _starts() -> trio.CapacityLimiter:
    try:
        return _STARTS.get()
    except LookupError:
        limiter = trio.CapacityLimiter(1)
        _STARTS.set(limiter)
        return limiter

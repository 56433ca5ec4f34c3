"""A process started for a tool: its own session, no terminal, end of file on its input."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import trio

__all__ = ["Child", "open_pipe", "start_child"]

_STARTS: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("nanotrio_starts")

_KEPT_FROM = 64
"""Descriptors handed on have numbers that scripts do not use for themselves."""


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

    def sessions_below(self) -> set[int]:
        """Return the sessions of its descendants but its own, while it lives; none where the system does not tell."""
        below, sessions = [self.pid], set()
        for pid in below:
            with contextlib.suppress(OSError):  # gone meanwhile
                sessions.add(os.getsid(pid))
                for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names are all we need
                    below += map(int, Path(f"/proc/{pid}/task/{task}/children").read_bytes().split())
        return sessions - {self.pid}

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


def open_pipe(stack: contextlib.ExitStack) -> tuple[io.FileIO, io.FileIO]:
    """Return a pipe (reader, writer), closed with ``stack`` unless it was before.

    Its numbers are far above those that a script opens by number.

    Raises:
        OSError: this process may open no more files.
    """
    reader, writer = os.pipe()
    low = [stack.enter_context(io.FileIO(reader, "r")), stack.enter_context(io.FileIO(writer, "w"))]
    high = [fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, _KEPT_FROM) for file in low]
    for file in low:
        file.close()
    return stack.enter_context(io.FileIO(high[0], "r")), stack.enter_context(io.FileIO(high[1], "w"))


async def start_child(
    path: str,
    arguments: list[str],
    environment: Mapping[str, str],
    *,
    output: int,
    source: int = subprocess.DEVNULL,
    directory: str | None = None,
    kept: tuple[int, ...] = (),
) -> Child:
    """Start a program whose output and errors go to ``output``.

    Its input is ``source``, or nothing. Of our descriptors it gets those in ``kept`` and no other. Starts take turns,
    one a pass of the loop: each holds the loop for about a millisecond.

    Raises:
        OSError: it could not be started.
        ValueError: an argument or a variable holds NUL.
    """
    async with _starts():
        process = subprocess.Popen(  # noqa: ASYNC220 - a thread would hold the interpreter's lock just as long
            arguments,
            executable=path,
            stdin=source,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=directory,
            pass_fds=kept,
            start_new_session=True,
        )
    process.returncode = 0  # we wait for the process ourselves; this keeps Popen from doing so
    return Child(process.pid)


def _starts() -> trio.CapacityLimiter:
    try:
        return _STARTS.get()
    except LookupError:
        limiter = trio.CapacityLimiter(1)
        _STARTS.set(limiter)
        return limiter

"""The process that is to be killed, seen from the one that kills it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Protocol, Self

import msgspec

from .armed import Order
from .crashing import ACKNOWLEDGED_FD
from .trial import Program, Trial, name_of

__all__ = ["Child", "CommandChild", "ForkedChild", "Forks", "start_command", "start_program"]


class Child(Protocol):
    """A running process of a trial; ``acknowledged`` is the reading end of its pipe."""

    acknowledged: int

    def kill(self) -> None:
        """Send SIGKILL; nothing happens where it is gone."""
        ...

    def wait(self) -> int:
        """Wait for its end and return its exit code, negative for a signal."""
        ...

    def errors(self) -> str:
        """Return what it wrote to stdout and stderr; once, when it is gone."""
        ...


class CommandChild:
    """A process that was started by a command line."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.acknowledged, writing = os.pipe()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        try:
            self._process = subprocess.Popen(
                list(command),
                env={**os.environ, "PYTHONPATH": _paths(), **environment, ACKNOWLEDGED_FD: str(writing)},
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(writing,),
            )
        finally:
            os.close(writing)

    def kill(self) -> None:
        """See ``Child.kill``."""
        self._process.kill()

    def wait(self) -> int:
        """See ``Child.wait``."""
        return self._process.wait()

    def errors(self) -> str:
        """See ``Child.errors``."""
        return _text_of(self._output)


class ForkedChild:
    """A process that was forked from one which has imported everything."""

    def __init__(self, orders: socket.socket, order: Order) -> None:
        self._orders = orders
        self.acknowledged, writing = os.pipe()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        try:
            socket.send_fds(orders, [msgspec.json.encode(order)], [writing, self._output.fileno()])
        finally:
            os.close(writing)
        self.pid = int.from_bytes(orders.recv(8), "little")

    def kill(self) -> None:
        """See ``Child.kill``."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """See ``Child.wait``."""
        self._orders.sendall(b"w")
        return int.from_bytes(self._orders.recv(8), "little", signed=True)

    def errors(self) -> str:
        """See ``Child.errors``."""
        return _text_of(self._output)


class Forks:
    """A process with nanotrio imported, which the processes of trials are forked from; a context manager.

    One child at a time. A trial then costs some hundredths of a second, where a new Python costs half a second.
    """

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "nanotrio.testing.armed", "--forks", str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": _paths()},
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )

    def start(self, program: Program, trial: Trial, environment: Mapping[str, str]) -> ForkedChild:
        """Fork a process that runs ``program``."""
        return ForkedChild(self._orders, Order(name_of(program), trial, dict(environment)))

    def close(self) -> None:
        """End it."""
        self._orders.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_program(program: Program, trial: Trial, environment: Mapping[str, str]) -> CommandChild:
    """Start a Python of its own that runs ``program``."""
    text = msgspec.json.encode(trial).decode()
    return CommandChild([sys.executable, "-m", "nanotrio.testing.armed", name_of(program), text], environment)


def start_command(command: Sequence[str], environment: Mapping[str, str]) -> CommandChild:
    """Start a program by its command line."""
    return CommandChild(command, environment)


def _paths() -> str:
    return os.pathsep.join([path or os.getcwd() for path in sys.path])  # noqa: PTH109 - as the child would see it


def _text_of(output: IO[bytes]) -> str:
    with output:
        output.seek(0)
        return output.read().decode(errors="replace")

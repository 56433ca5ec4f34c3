"""A terminal that can do nothing but lines (TERM=dumb): the kernel's line editing is all there is."""

from __future__ import annotations

import os
import termios
from collections.abc import Iterable, Mapping

import trio

from .terminal import EndOfInputError, InterruptedInputError, Interrupts, Screen
from .transcript import Piece

__all__ = ["LineTerminal"]


class LineTerminal:
    """Implements ``Terminal`` over two descriptors of a terminal in its usual mode. A backslash continues a line."""

    def __init__(
        self, environment: Mapping[str, str], *, input_descriptor: int = 0, output_descriptor: int = 1
    ) -> None:
        self._input = input_descriptor
        self._screen = Screen(output_descriptor, environment)
        self._interrupts = Interrupts()
        self._ended = False
        self._read = bytearray()

    @property
    def width(self) -> int:
        """Columns, as they are now."""
        return self._screen.width

    def show(self, pieces: Iterable[Piece]) -> None:
        """Put text on its way to the screen."""
        self._screen.show(pieces)

    async def drain(self) -> None:
        """Write what is on its way."""
        await self._screen.drain()

    async def ask(self) -> str:
        """Ask for a prompt."""
        lines = [await self._line("> ")]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(await self._line("  "))
        return "\n".join(lines)

    async def choose(self, question: str, keys: str) -> str:
        """Ask a question; the answer's first letter counts."""
        termios.tcflush(self._input, termios.TCIFLUSH)
        self._read.clear()
        while True:
            answer = (await self._line(question)).strip().lower()
            if answer[:1] and answer[0] in keys:
                return answer[0]

    def interrupt(self) -> bool:
        """Ctrl-C."""
        self._interrupts.press()
        return True

    async def wait_interrupt(self) -> None:
        """Return once Ctrl-C was pressed."""
        await self._interrupts.wait()

    async def _line(self, prompt: str) -> str:
        self._interrupts.forget()
        self.show([Piece("prompt", prompt)])
        await self.drain()
        line: bytes | None = None

        async def read(scope: trio.CancelScope) -> None:
            nonlocal line
            line = await self._read_line()
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, nursery.cancel_scope)
            await self._interrupts.wait()
            nursery.cancel_scope.cancel()
        if line is None:
            self._read.clear()
            self.show([Piece("answer", "\n")])
            raise InterruptedInputError
        if not line and self._ended:
            raise EndOfInputError
        return line.decode("utf-8", "replace").rstrip("\r\n")

    async def _read_line(self) -> bytes:
        while b"\n" not in self._read and not self._ended:
            await trio.lowlevel.wait_readable(self._input)
            try:
                data = os.read(self._input, 65_536)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            self._ended = not data
            self._read += data
        line, _, rest = bytes(self._read).partition(b"\n")
        self._read = bytearray(rest)
        return line

"""What the REPL asks of a terminal, and what both kinds share: styled text out, Ctrl-C as a value."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Protocol

import trio

from .exits import OutputClosedError
from .output import Output
from .transcript import Piece, Style

__all__ = ["EndOfInputError", "InterruptedInputError", "Interrupts", "Screen", "Terminal"]

_COLOURS: dict[Style, str] = {"thinking": "2", "tool": "36", "note": "2", "error": "31", "prompt": "1"}


class EndOfInputError(Exception):
    """Ctrl-D at an empty prompt, or the terminal has gone."""


class InterruptedInputError(Exception):
    """Ctrl-C at the prompt."""


class Terminal(Protocol):
    """A person at a keyboard. One task at a time may ask."""

    @property
    def width(self) -> int:
        """Columns, as they are now."""
        ...

    def show(self, pieces: Iterable[Piece]) -> None:
        """Put text on its way to the screen; nothing is written yet."""
        ...

    async def drain(self) -> None:
        """Write what is on its way. Checkpoints while the terminal takes nothing."""
        ...

    async def ask(self) -> str:
        """Ask for a prompt, of several lines where the person wants; it goes into the history.

        Raises:
            EndOfInputError: the person is done.
            InterruptedInputError: the person dropped what was typed.
        """
        ...

    async def choose(self, question: str, keys: str) -> str:
        """Ask a question that one of ``keys`` answers; what was typed before it was seen does not count.

        Raises:
            EndOfInputError: the terminal has gone.
            InterruptedInputError: Ctrl-C.
        """
        ...

    def interrupt(self) -> bool:
        """Take an INT signal; False where it cannot have come from the keyboard, so that it means the process."""
        ...

    async def wait_interrupt(self) -> None:
        """Return once Ctrl-C was pressed while nothing was asked."""
        ...


class Interrupts:
    """Presses of Ctrl-C that nobody has taken yet; pressing twice is pressing once."""

    def __init__(self) -> None:
        self._pressed = trio.Event()

    def press(self) -> None:
        """Ctrl-C was pressed."""
        self._pressed.set()

    def forget(self) -> None:
        """What was pressed before counts no more; those who wait go on waiting."""
        if self._pressed.is_set():
            self._pressed = trio.Event()

    async def wait(self) -> None:
        """Return once it was pressed, and take the press."""
        await self._pressed.wait()
        self.forget()


class Screen:
    """The writing half: pieces become bytes, in colour where the terminal and the person allow it."""

    def __init__(self, descriptor: int, environment: Mapping[str, str]) -> None:
        self._descriptor = descriptor
        self._output = Output(descriptor)
        self._colours = not environment.get("NO_COLOR") and environment.get("TERM") not in ("dumb", "", None)

    @property
    def width(self) -> int:
        """Columns, as they are now; 80 where the terminal does not say."""
        try:
            return os.get_terminal_size(self._descriptor).columns or 80
        except OSError:
            return 80

    def show(self, pieces: Iterable[Piece]) -> None:
        """Put pieces on their way."""
        for piece in pieces:
            code = _COLOURS.get(piece.style) if self._colours else None
            text = piece.text
            if code:
                body = text.rstrip("\n")
                text = f"\x1b[{code}m{body}\x1b[0m{text[len(body) :]}"
            self._output.add(text.encode("utf-8", "replace"))

    async def drain(self) -> None:
        """Write what is on its way.

        Raises:
            EndOfInputError: the terminal has gone.
        """
        try:
            await self._output.drain()
        except OutputClosedError:
            raise EndOfInputError from None

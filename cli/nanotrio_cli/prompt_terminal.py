"""A terminal with prompt-toolkit's line editing, inside Trio.

While a prompt stands, the terminal is raw and Ctrl-C is a key. While a turn runs, it neither echoes nor waits for line
ends, so that typing does not tear the answer and is there at the next prompt, and Ctrl-C is the INT signal. When it is
left its settings are as they were found.

prompt-toolkit runs on asyncio, so a terminal opens one trio-asyncio loop for its whole life. Of what prompt-toolkit
does by itself, this is turned off: a pause of 10 ms before each redraw, its handler for INT, asking the terminal for
the cursor's place, polling the window's size (the WINCH signal tells), its habit to take a read error for an empty
read (it would spin on a terminal that has gone), and its memory of typed keys by descriptor number.
"""

from __future__ import annotations

import os
import signal
import termios
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

import trio
import trio_asyncio
from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output.vt100 import Vt100_Output

from nanotrio.messages import clean_text

from .terminal import EndOfInputError, InterruptedInputError, Interrupts, Screen
from .transcript import Piece

__all__ = ["PromptTerminal"]

_MAX_READ_BYTES = 16_384


class _Reader:
    """Reads what was typed for prompt-toolkit's parser; an error is the end, not an empty read."""

    def __init__(self, descriptor: int) -> None:
        import codecs

        self._descriptor = descriptor
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.closed = False

    def read(self, count: int = 1024) -> str:
        if self.closed:
            return ""
        try:
            data = os.read(self._descriptor, max(count, _MAX_READ_BYTES))
        except BlockingIOError:
            return ""
        except OSError:
            data = b""
        if not data:
            self.closed = True
        return self._decoder.decode(data)


class _Input(Vt100Input):
    def __init__(self, stdin: TextIO) -> None:
        super().__init__(stdin)
        self.stdin_reader = _Reader(stdin.fileno())  # type: ignore[assignment]

    def typeahead_hash(self) -> str:
        return f"nanotrio-{id(self)}"


class PromptTerminal:
    """Implements ``Terminal``; an async context manager. ``history`` is a file, or None for memory only."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        history: Path | None = None,
        input_descriptor: int = 0,
        output_descriptor: int = 1,
    ) -> None:
        self._environment = environment
        self._history: History = InMemoryHistory() if history is None else FileHistory(history)
        self._descriptor = input_descriptor
        self._output_descriptor = output_descriptor
        self._screen = Screen(output_descriptor, environment)
        self._interrupts = Interrupts()
        self._raw = False
        self._life: AbstractAsyncContextManager[None] | None = None

    async def __aenter__(self) -> Self:
        self._life = self._live()
        await self._life.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._life is not None
        return await self._life.__aexit__(kind, error, trace)  # noqa: ASYNC102 - it shields what needs it

    @asynccontextmanager
    async def _live(self) -> AsyncIterator[None]:
        saved = termios.tcgetattr(self._descriptor)
        with (
            open(self._descriptor, encoding="utf-8", closefd=False) as typed,  # noqa: ASYNC230 - opens nothing, wraps
            open(self._output_descriptor, "w", encoding="utf-8", errors="replace", closefd=False) as shown,  # noqa: ASYNC230
        ):
            self._input = _Input(typed)
            self._output = Vt100_Output.from_pty(shown, term=self._environment.get("TERM"))
            self._output.enable_cpr = False
            self._prompts = self._session(self._history, _prompt_keys())
            self._choices = self._session(InMemoryHistory(), None)
            try:
                async with trio_asyncio.open_loop():
                    self._hush()
                    with trio.open_signal_receiver(signal.SIGCONT) as continued:
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(self._hush_again, continued)
                            yield
                            nursery.cancel_scope.cancel()
            finally:
                with suppress(termios.error):
                    termios.tcsetattr(self._descriptor, termios.TCSANOW, saved)

    def _session(self, history: History, bindings: KeyBindings | None) -> PromptSession[str]:
        session: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,
            prompt_continuation="  ",
            history=history,
            key_bindings=bindings,
            input=self._input,
            output=self._output,
            enable_suspend=True,
            interrupt_exception=InterruptedInputError,
            eof_exception=EndOfInputError,
        )
        session.app.max_render_postpone_time = None
        session.app.terminal_size_polling_interval = None
        return session

    def _hush(self) -> None:
        """Neither echo nor line editing; Ctrl-C and Ctrl-Z stay signals, quitting by key is off."""
        with suppress(termios.error):
            modes: list[Any] = termios.tcgetattr(self._descriptor)
            modes[3] &= ~(termios.ECHO | termios.ICANON)
            modes[3] |= termios.ISIG | termios.NOFLSH
            modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
            modes[6][termios.VQUIT] = os.fpathconf(self._descriptor, "PC_VDISABLE").to_bytes(1, "little")
            termios.tcsetattr(self._descriptor, termios.TCSANOW, modes)

    async def _hush_again(self, continued: AsyncIterator[int]) -> None:
        """After a stop the shell has put its own settings back."""
        async for _ in continued:
            if not self._raw:
                self._hush()

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
        """Ask for a prompt: Enter sends it, Esc Enter or a backslash before Enter begins a new line."""
        return clean_text(await self._prompt(self._prompts))

    async def choose(self, question: str, keys: str) -> str:
        """Ask a question that one key answers."""
        await self.drain()
        termios.tcflush(self._descriptor, termios.TCIFLUSH)
        clear_typeahead(self._input)
        return await self._prompt(self._choices, message=question, key_bindings=_choice_keys(keys), multiline=False)

    async def _prompt(self, session: PromptSession[str], **options: Any) -> str:
        await self.drain()
        self._raw = True
        try:
            answer: str = await trio_asyncio.aio_as_trio(session.prompt_async)(
                handle_sigint=False, set_exception_handler=False, **options
            )
        except EOFError:
            raise EndOfInputError from None
        else:
            return answer
        finally:
            self._raw = False
            self._interrupts.forget()

    def interrupt(self) -> bool:
        """Take an INT signal: from the keyboard while a turn runs, else from elsewhere."""
        if self._raw:
            return False
        self._interrupts.press()
        return True

    async def wait_interrupt(self) -> None:
        """Return once Ctrl-C was pressed while nothing was asked."""
        await self._interrupts.wait()


def _prompt_keys() -> KeyBindings:
    keys = KeyBindings()
    keys.add("enter")(_send_or_continue)
    keys.add("escape", "enter")(_begin_line)
    return keys


def _send_or_continue(event: KeyPressEvent) -> None:
    buffer = event.current_buffer
    if buffer.document.text_before_cursor.endswith("\\"):
        buffer.delete_before_cursor()
        _begin_line(event)
    else:
        buffer.validate_and_handle()


def _begin_line(event: KeyPressEvent) -> None:
    event.current_buffer.newline(copy_margin=False)


def _choice_keys(keys: str) -> KeyBindings:
    bindings = KeyBindings()
    for other in (Keys.Any, "enter", "c-d", Keys.BracketedPaste):
        bindings.add(other)(_ignore)
    for key in keys:
        bindings.add(key, eager=True)(partial(_choose, key))
    return bindings


def _choose(key: str, event: KeyPressEvent) -> None:
    event.current_buffer.insert_text(key)
    event.app.exit(result=key)


def _ignore(event: KeyPressEvent) -> None:
    """Whatever is no answer is no answer."""

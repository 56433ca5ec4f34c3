"""A real terminal for a command under test: a pty with a shell on it, and a model of what a person sees.

The command runs below a shell that leads the session, as a person's shell does, so the terminal's settings can be
looked at before the command, while it runs, and after it has ended.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyte

__all__ = ["KEYS", "Terminal", "open_terminal"]

KEYS = {
    "enter": "\r",
    "ctrl-c": "\x03",
    "ctrl-d": "\x04",
    "ctrl-j": "\n",
    "ctrl-z": "\x1a",
    "escape": "\x1b",
    "tab": "\t",
    "backspace": "\x7f",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "alt-enter": "\x1b\r",
}
"""What a terminal sends for a key."""

_READY = "[the shell waits]"
_ENDED = "[command ended with "
# A trap is reset in the command but stays in the shell: Ctrl-C on a terminal in its usual mode ends the command alone.
_SHELL = f'trap : INT; printf "{_READY}"; read -r _; "$@"; printf "\\n{_ENDED}%s]" $?; read -r _'


class _Screen(pyte.HistoryScreen):
    """A screen that answers what a program asks its terminal (where the cursor is, what it can do)."""

    def __init__(self, columns: int, lines: int, answer: Callable[[str], None]) -> None:
        super().__init__(columns, lines, history=10_000)
        self._answer = answer

    def write_process_input(self, data: str) -> None:
        self._answer(data)


class Terminal:
    """A terminal with a command on it. Made by ``open_terminal``; it reads only while one of its methods waits."""

    def __init__(self, master: int, shell: subprocess.Popen[bytes], *, rows: int, columns: int) -> None:
        self._master = master
        self._shell = shell
        self._screen = _Screen(columns, rows, self.send)
        self._stream = pyte.ByteStream(self._screen)
        self.output = b""
        """Every byte the command has written so far."""

    # -- a person's hands

    def send(self, text: str) -> None:
        """Type ``text`` as it is."""
        os.write(self._master, text.encode())

    def press(self, *names: str) -> None:
        """Press keys, by their names in ``KEYS``."""
        for name in names:
            self.send(KEYS[name])

    def enter(self, text: str) -> None:
        """Type ``text`` and press Enter."""
        self.send(text + KEYS["enter"])

    def resize(self, rows: int, columns: int) -> None:
        """Give the window another size; the kernel tells the foreground programs by SIGWINCH."""
        _set_size(self._master, rows, columns)
        self._screen.resize(rows, columns)

    def hang_up(self) -> None:
        """Close the window."""
        os.close(self._master)
        self._master = -1

    # -- a person's eyes

    def lines(self) -> list[str]:
        """The lines on the screen, without trailing blanks."""
        return [line.rstrip() for line in self._screen.display]

    def text(self) -> str:
        """What has scrolled away and what is on the screen."""
        gone = [
            "".join(line[column].data for column in range(self._screen.columns)) for line in self._screen.history.top
        ]
        return "\n".join(line.rstrip() for line in [*gone, *self._screen.display])

    def settings(self) -> list[Any]:
        """The terminal's settings, as ``termios.tcgetattr`` has them."""
        return termios.tcgetattr(self._master)

    def wait_for(self, *texts: str, seconds: float = 10.0) -> None:
        """Read until each of ``texts`` has appeared.

        Raises:
            AssertionError: they did not in time; it shows the screen.
        """
        self.wait_until(lambda: all(text in self.text() for text in texts), f"{texts} to appear", seconds=seconds)

    def wait_until(self, holds: Callable[[], bool], what: str, *, seconds: float = 10.0) -> None:
        """Read until ``holds`` does.

        Raises:
            AssertionError: it did not in time; it shows the screen.
        """
        deadline = time.monotonic() + seconds
        while not holds():
            left = deadline - time.monotonic()
            if left <= 0 or not self._read(min(left, 0.1)):
                screen = self.text().rstrip()
                raise AssertionError(f"waited {seconds} s for {what}; the screen is:\n{screen}")

    def wait_ended(self, *, seconds: float = 10.0) -> int:
        """Read until the command has ended; return its exit code as a shell sees it."""
        self.wait_until(lambda: _ENDED in self.text(), "the command to end", seconds=seconds)
        self.wait_until(lambda: "]" in self.text().rpartition(_ENDED)[2], "the exit code", seconds=seconds)
        return int(self.text().rpartition(_ENDED)[2].partition("]")[0])

    def wait_gone(self, holds: Callable[[], bool], what: str, *, seconds: float = 10.0) -> None:
        """Wait until ``holds`` does, after the window was closed.

        Raises:
            AssertionError: it did not in time.
        """
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
            time.sleep(0.02)

    def _read(self, seconds: float) -> bool:
        """Take in what has come; False once nobody can write any more."""
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # EIO: the last writer has closed its end
            return False
        self.output += data
        self._stream.feed(data)
        return bool(data)

    def close(self) -> None:
        """End what still runs on the terminal, and the terminal."""
        if self._master >= 0:
            os.close(self._master)  # the kernel sends SIGHUP to the session
        try:
            self._shell.wait(2)
        except subprocess.TimeoutExpired:
            self._shell.kill()
            self._shell.wait()


def _set_size(descriptor: int, rows: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _take_terminal() -> None:
    """In the child: standard input becomes the controlling terminal of the new session."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def open_terminal(
    command: Sequence[str], *, cwd: Path, environment: Mapping[str, str], rows: int = 24, columns: int = 80
) -> Iterator[Terminal]:
    """Run ``command`` on a terminal of its own while the block runs."""
    master, slave = os.openpty()
    _set_size(master, rows, columns)
    shell = subprocess.Popen(
        ["/bin/sh", "-c", _SHELL, "sh", *command],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=cwd,
        env={"TERM": "xterm-256color", **environment},
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509 - no threads run in a test that opens a terminal
    )
    os.close(slave)
    terminal = Terminal(master, shell, rows=rows, columns=columns)
    try:
        terminal.wait_for(_READY)
        terminal.press("enter")
        yield terminal
    finally:
        terminal.close()

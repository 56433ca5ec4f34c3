"""The terminal that other tests use behaves as a terminal does."""

from __future__ import annotations

import os
import sys
import termios
from pathlib import Path

import pytest

from tests.terminal import Terminal, open_terminal

ENVIRONMENT = {"PATH": os.environ["PATH"]}


def _python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def _before(terminal: Terminal) -> list[object]:
    return list(terminal.settings())


def test_a_command_sees_a_terminal_and_a_person_sees_its_screen(tmp_path: Path) -> None:
    source = (
        "import os; print(os.isatty(0), os.isatty(1), os.get_terminal_size()); "
        "print('\\x1b[31mred\\x1b[0m'); print(input('name? '))"
    )
    with open_terminal(_python(source), cwd=tmp_path, environment=ENVIRONMENT, rows=30, columns=100) as terminal:
        terminal.wait_for("True True", "columns=100, lines=30", "red", "name?")
        terminal.enter("Ada")
        assert terminal.wait_ended() == 0
        assert "Ada" in terminal.lines()
        assert b"\x1b[31mred" in terminal.output


def test_ctrl_c_reaches_the_command_and_not_the_shell(tmp_path: Path) -> None:
    source = "import time; print('going', flush=True); time.sleep(600)"
    with open_terminal(_python(source), cwd=tmp_path, environment=ENVIRONMENT) as terminal:
        terminal.wait_for("going")
        terminal.press("ctrl-c")
        assert terminal.wait_ended() == 130


def test_settings_show_what_a_command_left_behind(tmp_path: Path) -> None:
    source = "import tty; print('before', flush=True); input(); tty.setraw(0); print('raw', flush=True)"
    with open_terminal(_python(source), cwd=tmp_path, environment=ENVIRONMENT) as terminal:
        terminal.wait_for("before")
        before = _before(terminal)
        terminal.press("enter")
        terminal.wait_ended()
        assert terminal.settings() != before
        assert not terminal.settings()[3] & termios.ICANON


def test_a_new_size_is_told(tmp_path: Path) -> None:
    # The signal is blocked before it can come: a handler would not run while input() waits, if it came just before.
    source = (
        "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH]); "
        "print('ready', flush=True); signal.sigwait([signal.SIGWINCH]); print(os.get_terminal_size())"
    )
    with open_terminal(_python(source), cwd=tmp_path, environment=ENVIRONMENT) as terminal:
        terminal.wait_for("ready")
        terminal.resize(10, 60)
        terminal.wait_for("columns=60, lines=10")


def test_what_never_appears_fails_with_the_screen(tmp_path: Path) -> None:
    with (
        open_terminal(_python("print('only this')"), cwd=tmp_path, environment=ENVIRONMENT) as terminal,
        pytest.raises(AssertionError, match="only this"),
    ):
        terminal.wait_for("something else", seconds=0.5)


def test_lines_that_scrolled_away_are_kept(tmp_path: Path) -> None:
    with open_terminal(
        _python("for n in range(100): print('line', n)"), cwd=tmp_path, environment=ENVIRONMENT
    ) as terminal:
        terminal.wait_ended()
        assert "line 0\n" in terminal.text()
        assert "line 0" not in terminal.lines()

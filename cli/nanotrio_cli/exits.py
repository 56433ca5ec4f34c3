"""How the command ends: its exit codes, and the two errors that choose one."""

from __future__ import annotations

__all__ = ["FAILED", "OK", "USAGE", "CommandError", "CommandLineError", "OutputClosedError", "signal_code"]

OK = 0
FAILED = 1
"""All that went wrong but for the command line itself."""
USAGE = 2
"""The command line: flags, values, an empty prompt."""


def signal_code(number: int) -> int:
    """Return the exit code after signal ``number``, as shells count it: 130 for INT, 143 for TERM, 129 for HUP."""
    return 128 + number


class CommandLineError(Exception):
    """The command line cannot be used; nothing was read or written. Exit code 2."""


class CommandError(Exception):
    """The command cannot be carried out; the message says what, where and what to do. Exit code 1."""


class OutputClosedError(Exception):
    """Whoever read standard output has gone. The command ends quietly, with exit code 1."""

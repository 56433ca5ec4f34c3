"""Errors on their way to a person: foreseen ones are one line, the rest is a report in a file.

No traceback reaches the terminal. A report holds it, with the values of keys in the environment replaced.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import traceback
from collections.abc import Callable, Mapping

from .exits import CommandError, CommandLineError, OutputClosedError

__all__ = ["FaultLog", "foreseen", "report_fault"]

_KEY_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
_MIN_KEY_CHARACTERS = 8


class FaultLog(logging.Handler):
    """Tells what the library logs in lines for people; what broke in a turn goes to a report.

    Without it Python itself would print them, tracebacks included.
    """

    def __init__(self, environment: Mapping[str, str], tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._environment = environment
        self._tell = tell

    def __enter__(self) -> None:
        logging.getLogger("nanotrio").addHandler(self)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("nanotrio").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Tell of one record."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._tell(report_fault(error, self._environment))
        else:
            self._tell(f"nanotrio: {record.getMessage()}")


def foreseen(error: BaseException) -> Exception | None:
    """Return the error that explains ``error`` to a person, or None where nanotrio did not foresee it.

    Groups that Trio's nurseries make are looked through; a group that also holds something unforeseen is unforeseen.
    """
    leaves = _leaves(error)
    kinds: tuple[type[Exception], ...] = (CommandError, CommandLineError, OutputClosedError)
    if "nanotrio.errors" in sys.modules:
        kinds = (*kinds, sys.modules["nanotrio.errors"].NanotrioError)
    known = [leaf for leaf in leaves if isinstance(leaf, kinds)]
    return known[0] if known and len(known) == len(leaves) else None


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def report_fault(error: BaseException, environment: Mapping[str, str]) -> str:
    """Write a report and return the line that tells a person of it."""
    leaf = _leaves(error)[0]
    line = f"nanotrio: a fault of its own: {type(leaf).__name__}: {_redacted(str(leaf), environment)}"
    text = "".join(traceback.format_exception(error))
    try:
        path = _write(_redacted(text, environment), environment)
    except (CommandError, OSError) as problem:
        return f"{line} (and no report could be written: {problem})"
    return f"{line}; the report is in {path}"


def _write(text: str, environment: Mapping[str, str]) -> str:
    from .data_folder import DataFolder

    path = DataFolder(environment).fault_report()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"Python {platform.python_version()} on {platform.platform()}\n{text}")
    return str(path)


def _redacted(text: str, environment: Mapping[str, str]) -> str:
    for name, value in environment.items():
        if name.endswith(_KEY_ENDINGS) and len(value) >= _MIN_KEY_CHARACTERS:
            text = text.replace(value, f"[{name}]")
    return text

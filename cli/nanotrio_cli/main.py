"""The command's entry: reads the command line, does what it says, and sees that it ends in good order.

What needs Trio or the library is imported once it is needed, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, assert_never

from .arguments import AskedForHelp, AskedForVersion, DemoOptions, InspectOptions, Options, RunOptions, parse
from .care_arguments import ExportOptions, SqlOptions, StoreOptions
from .exits import FAILED, OK, USAGE, CommandError, CommandLineError, OutputClosedError, signal_code
from .map_arguments import MapRunOptions
from .output import write_error, write_now

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["main"]

_SIGINT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv``, or the process's own arguments, and return its exit code."""
    _fill_closed_descriptors()
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    environment = dict(os.environ)
    try:
        return _do(parse(sys.argv[1:] if argv is None else argv), environment)
    except KeyboardInterrupt:
        return signal_code(_SIGINT)
    except SystemExit as asked:
        return asked.code if isinstance(asked.code, int) else FAILED
    except BaseException as error:  # noqa: ASYNC103, BLE001 - the last resort
        return _explain(error, environment)  # noqa: ASYNC104 - no task runs here


def _do(options: Options, environment: Mapping[str, str]) -> int:
    match options:
        case AskedForHelp():
            write_now(options.text.encode())
            return OK
        case AskedForVersion():
            write_now(f"nanotrio {_version()}\n".encode())
            return OK
        case DemoOptions():
            from .demo import run

            return run(options)
        case MapRunOptions():
            directory = _directory()
            from .map_command import run_map

            return run_map(options, environment, directory)
        case InspectOptions():
            from .inspection import inspect

            return inspect(options, environment)
        case StoreOptions():
            from .care import care_for

            return care_for(options)
        case ExportOptions():
            from .export import export

            return export(options, environment)
        case SqlOptions():
            from .sql import ask

            return ask(options)
        case RunOptions():
            return _run(options, environment)
        case _:
            assert_never(options)


def _run(options: RunOptions, environment: Mapping[str, str]) -> int:
    if options.headless:
        from .prompt_input import read_prompt

        prompt = read_prompt(options.prompt)
        directory = _directory()
        from .headless import run_headless

        return run_headless(options, prompt, environment, directory)
    if not (os.isatty(0) and os.isatty(1)):
        which = "input" if not os.isatty(0) else "output"
        raise CommandLineError(f'standard {which} is not a terminal; without one, run nanotrio -p "PROMPT"')
    directory = _directory()
    from .interactive import run_interactive

    return run_interactive(options, environment, directory)


def _directory() -> Path:
    from pathlib import Path

    try:
        return Path.cwd()
    except OSError:
        raise CommandError("the working directory no longer exists; change to one that does") from None


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("nanotrio")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _explain(error: BaseException, environment: Mapping[str, str]) -> int:
    from .faults import foreseen, report_fault

    known = foreseen(error)
    if isinstance(known, OutputClosedError):
        return FAILED
    if known is not None:
        write_error(f"nanotrio: {known}")
        return USAGE if isinstance(known, CommandLineError) else FAILED
    if isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt):
        return signal_code(_SIGINT)
    write_error(report_fault(error, environment))
    return FAILED


def _fill_closed_descriptors() -> None:
    """Open the null device where a caller closed a standard stream, so that no file of ours gets its number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)

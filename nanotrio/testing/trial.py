"""What a program under test is given, and how it is found by its name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import msgspec
import trio

from ..errors import UsageError
from ..tools import Tool
from .effects import log_effects

__all__ = ["Program", "Trial", "find_program", "name_of", "run_program"]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One store and what is done to it: each process of the trial is given the same value."""

    store: str
    """The address of the store."""
    effects: str
    """The path of the file that tools note their effects in; see ``log_effects``."""
    seed: int = 0
    data: dict[str, Any] = {}
    """Whatever the program wants to be told; as JSON can say it."""

    def logged(self, tool: Tool | Callable[..., Any]) -> Tool:
        """Return the tool, or a function as one, so that each of its runs is noted in the file of effects."""
        return log_effects(tool, self.effects)


Program: TypeAlias = str | Callable[[Trial], Any]
"""A function of a ``Trial``, async or plain, at the top of its file; or its name, ``module:function`` or
``path/to/file.py:function``."""


def name_of(program: Program) -> str:
    """Return the name by which another process finds ``program``.

    Raises:
        UsageError: it is no function at the top of a file.
    """
    if isinstance(program, str):
        return program
    if "." in program.__qualname__ or "<" in program.__qualname__:
        raise UsageError(f"{program.__qualname__} is made inside something else; put it at the top of its file")
    return f"{Path(inspect.getfile(program)).absolute()}:{program.__qualname__}"


def find_program(name: str) -> Callable[[Trial], Any]:
    """Import the function of that name; a file is imported as a module of its own.

    Raises:
        UsageError: there is no such function.
    """
    place, _, function = name.rpartition(":")
    module = _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    found: Callable[[Trial], Any] | None = getattr(module, function, None)
    if found is None:
        raise UsageError(
            f"{place} has no function {function!r}; a program is named module:function or file.py:function"
        )
    return found


def run_program(function: Callable[[Trial], Any], trial: Trial) -> None:
    """Run a program to its end; an async one in ``trio.run``."""
    if inspect.iscoroutinefunction(function):
        trial_function: Callable[[Trial], Awaitable[object]] = function
        trio.run(trial_function, trial)
    else:
        function(trial)


def _import_file(path: Path) -> ModuleType:
    name = f"_nanotrio_trial_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise UsageError(f"{path} is no Python file; a program is named module:function or file.py:function")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

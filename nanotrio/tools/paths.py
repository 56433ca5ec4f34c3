"""Paths as a model gives them."""

from __future__ import annotations

import difflib
import os
import stat
import unicodedata
from pathlib import Path

from ..errors import ToolError
from ..messages import clean_text
from .tool import ToolContext

__all__ = ["file_trouble", "open_regular", "resolve_path", "shown"]

_MAX_LISTED = 5_000


def resolve_path(context: ToolContext, path: str) -> Path:
    """Return the absolute path that ``path`` means to the agent: below its directory, or below HOME for ``~``.

    Raises:
        ToolError: the path is empty, holds NUL, or names a home that is not known.
    """
    if not path:
        raise ToolError("the path is empty; give the file's name")
    if "\0" in path:
        raise ToolError("the path holds a NUL character, which no file name can")
    if path == "~" or path.startswith("~/"):
        home = context.environment.get("HOME")
        if not home:
            raise ToolError(f"{path}: there is no HOME in the environment; give the whole path")
        path = home + path[1:]
    return context.directory / path


def open_regular(path: Path) -> tuple[int, os.stat_result]:
    """Open a regular file for reading and return its descriptor and status; never waits on a pipe or device.

    Raises:
        ToolError: there is no such file, it cannot be read, or it is no regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise file_trouble(path, error) from error
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return descriptor, status
    os.close(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{shown(path)} is a directory; list it with bash (ls)")
    raise ToolError(f"{shown(path)} is a device, pipe or socket, not a file, and may never end; use bash with a bound")


def file_trouble(path: Path, error: Exception) -> ToolError:
    """Return the error for the model, with what to do about it."""
    name = shown(path)
    if isinstance(error, FileNotFoundError):
        near = _near_name(path)
        return ToolError(f"{name} does not exist" + (f"; there is {shown(path.parent / near)}" if near else ""))
    if isinstance(error, PermissionError):
        return ToolError(f"{name}: permission denied; the file or its directory belongs to somebody else or is closed")
    if isinstance(error, (NotADirectoryError, FileExistsError)):
        return ToolError(f"{name}: a part of this path is a file, not a directory")
    return ToolError(f"{name}: {getattr(error, 'strerror', None) or error}")


def shown(path: Path) -> str:
    """Return the path as text that every store and wire takes; bytes that are no UTF-8 show as U+FFFD."""
    return clean_text(str(path))


def _near_name(path: Path) -> str:
    """Find the name that was probably meant: the same but for case, kind of space or Unicode form, or nearly so."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry, _ in zip(entries, range(_MAX_LISTED), strict=False)]
    except OSError:
        return ""
    wanted = _folded(path.name)
    folded = {_folded(name): name for name in names}
    if wanted in folded:
        return folded[wanted]
    near = difflib.get_close_matches(wanted, folded, n=1, cutoff=0.8) if len(folded) <= 500 else []
    return folded[near[0]] if near else ""


def _folded(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())

"""Where the items of ``nanotrio map`` come from: a file, the files of a pattern, or standard input."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

import trio

from .exits import CommandError, CommandLineError
from .map_rows import MAX_ROW_BYTES, Row, RowReader

__all__ = ["FileItems", "GlobItems", "Items", "StdinItems", "choose_items"]

_CHUNK = 65_536
_ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}


class FileItems:
    """The rows of a file, which is read anew each time."""

    def __init__(self, path: Path, form: str) -> None:
        self.name = str(path)
        self.place = str(path.absolute())
        self.form = form

    def read(self) -> Iterator[tuple[RowReader, Row]]:
        """Yield the rows, with their reader.

        Raises:
            CommandError: the file cannot be read on.
        """
        reader = RowReader(self.name, self.form)
        try:
            with open(self.place, "rb") as file:  # noqa: PTH123 - a path that need not be text
                for number, data in enumerate(iter(partial(file.readline, MAX_ROW_BYTES + 1), b""), 1):
                    if (row := reader.feed(number, data)) is not None:
                        yield reader, row
        except OSError as error:
            raise CommandError(f"{self.name} cannot be read: {error.strerror or error}") from None
        if (row := reader.end()) is not None:
            yield reader, row

    def where(self, row: Row) -> str:
        """Return a row's place, as people find it."""
        return f"{self.name}:{row.line}"


class GlobItems:
    """The files of a pattern, in order of their names: ``item`` is the path, ``text`` the content."""

    form = "glob"

    def __init__(self, pattern: str, directory: Path, but: tuple[int, int] | None = None) -> None:
        """Find the files; ``but`` is one that is no item, as ``_identity`` tells it."""
        self.name = pattern
        self.place = str(directory / pattern)
        self.wants_text = False
        """Whether contents are read; then one that is no text is a problem."""
        found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
        self._paths = sorted(path for path in found if Path(path).is_file() and (not but or _identity(path) != but))

    def read(self) -> Iterator[tuple[None, Row]]:
        """Yield the files; each is read as it is yielded."""
        for path in self._paths:
            yield None, self._row(path)

    def _row(self, path: str) -> Row:
        item = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - a path that need not be text
                data = file.read(MAX_ROW_BYTES + 1) if self.wants_text else b""
                file.seek(0)
                digest = hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=16)).digest()
        except OSError as error:
            return Row(item, {}, 0, f"it cannot be read: {error.strerror or error}")
        content = item.encode() + b"\0" + digest
        if len(data) > MAX_ROW_BYTES:
            return Row(item, {}, 0, f"it is longer than {MAX_ROW_BYTES:,} bytes", content)
        try:
            text = data.decode().removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            problem = f"byte 0x{data[error.start]:02x} at place {error.start + 1} is not UTF-8"
            return Row(item, {}, 0, problem, content)
        return Row(item, {"item": item, "text": text}, 0, "", content)

    def where(self, row: Row) -> str:
        """Return a row's place, as people find it."""
        return str(row.item)


class StdinItems:
    """The rows of standard input, as they come."""

    name = "-"
    place = "-"

    def __init__(self, form: str) -> None:
        self.form = form

    async def read(self) -> AsyncIterator[tuple[RowReader, Row]]:
        """Yield the rows, with their reader; a slow writer holds nobody up. Checkpoints."""
        reader = RowReader("standard input", self.form)
        number, rest = 0, b""
        while True:
            try:
                chunk = await trio.to_thread.run_sync(os.read, 0, _CHUNK, abandon_on_cancel=True)
            except OSError as error:
                raise CommandError(f"standard input cannot be read: {error.strerror or error}") from None
            *lines, rest = (rest + chunk).split(b"\n")
            if not chunk and rest:
                lines, rest = [rest], b""
            for line in lines:
                number += 1
                if (row := reader.feed(number, line + b"\n")) is not None:
                    yield reader, row
            if len(rest) > MAX_ROW_BYTES:
                reader.feed(number + 1, rest)
            if not chunk:
                break
        if (row := reader.end()) is not None:
            yield reader, row

    def where(self, row: Row) -> str:
        """Return a row's place, as people find it."""
        return f"standard input:{row.line}"


Items: TypeAlias = FileItems | GlobItems | StdinItems


def choose_items(given: str, form: str | None, directory: Path, output: str | None = None) -> Items:
    """Return what the argument stands for. ``output``, which is there from the second run on, is no item of a pattern.

    Raises:
        CommandLineError: there is no such file, or it is none that can be read, or ``output`` is the same file.
    """
    written = None if output is None else _identity(output)
    if given == "-":
        if form == "glob":
            raise CommandLineError("--format glob goes with a pattern of file names, and - is standard input")
        if os.isatty(0):
            raise CommandLineError("ITEMS is -, and standard input is a terminal; pipe the items in, or name a file")
        _check_apart(written, 0, "-", output)
        return StdinItems(form or "lines")
    path = Path(given)
    if form == "glob" or (form is None and glob.has_magic(given) and not path.exists()):
        return GlobItems(given, directory, written)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise CommandLineError(f"the items {given!r} cannot be read: {error.strerror or error}") from None
    if not stat.S_ISREG(mode):
        what = "a folder; give a pattern in quotes, as in 'folder/*.txt'" if stat.S_ISDIR(mode) else "no file; use -"
        raise CommandLineError(f"the items {given!r} are {what}")
    if not os.access(path, os.R_OK):
        raise CommandLineError(f"the items {given!r} cannot be read: Permission denied")
    _check_apart(written, path, given, output)
    return FileItems(path, form or _ENDINGS.get(path.suffix.lower(), "lines"))


def _check_apart(written: tuple[int, int] | None, place: Path | int, given: str, output: str | None) -> None:
    if written is not None and _identity(place) == written:
        raise CommandLineError(
            f"--output {output} is the file that the items {given!r} are read from; name another file"
        )


def _identity(place: Path | str | int) -> tuple[int, int] | None:
    """Tell a regular file from others, whatever it is called."""
    try:
        status = os.stat(place)  # noqa: PTH116 - also of a descriptor
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None

"""Rows of a file of items, made from its bytes line by line.

A reader is a push machine: ``feed`` takes a line with its number and returns the row that ends with it, if one does.
So a file, which is read twice, and standard input, which comes when it comes, are read alike. Whatever is wrong with a
row is said by the row itself, in ``problem``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from .exits import CommandError

__all__ = ["MAX_ROW_BYTES", "Row", "RowReader"]

MAX_ROW_BYTES = 10_000_000
_BOM = b"\xef\xbb\xbf"
_OPENING = re.compile(rb'(?:^|,)"')
"""Where a quoted field begins: a quote within a field that is not quoted is a quote, as in ``5" pipe``."""


class Row(msgspec.Struct):
    """One item."""

    item: Any
    values: Mapping[str, Any]
    """What a template may ask for; emptied once a prompt was made of it."""
    line: int
    """Where it begins; 0 for a file of a pattern."""
    problem: str = ""
    """Why it cannot be used; empty where it can."""
    content: bytes = b""
    """What makes it the same item as another; where it is empty, ``item`` does."""

    @property
    def key(self) -> bytes:
        """What makes it the same item as another."""
        return self.content or msgspec.json.encode(self.item, order="deterministic")


class RowReader:
    """Reads one input of the form ``lines``, ``jsonl`` or ``csv``; ``name`` is what people call it."""

    def __init__(self, name: str, form: str) -> None:
        self.name = name
        self.columns: tuple[str, ...] = ()
        """Of a CSV file, once its first row was read."""
        self._form = form
        self._open: list[bytes] = []
        """Lines of a row whose last field goes on."""
        self._open_bytes = 0
        self._open_line = 0
        csv.field_size_limit(MAX_ROW_BYTES)

    def feed(self, line: int, data: bytes) -> Row | None:
        """Take line number ``line``, with or without its end; return the row that it ends.

        Raises:
            CommandError: the input cannot be read on.
        """
        if line == 1:
            data = data.removeprefix(_BOM)
        if len(data) + self._open_bytes > MAX_ROW_BYTES:
            raise CommandError(
                f"{self.name}:{self._open_line or line}: the row is longer than {MAX_ROW_BYTES:,} bytes"
                + ("; is a quote never closed?" if self._open else "")
            )
        if self._form == "csv":
            return self._feed_csv(line, data)
        return self._row(line, data)

    def _checked(self, row: Row) -> Row:
        """Return a row, unless it should have been the header: what follows it is nothing without one."""
        if self._form == "csv" and not self.columns:
            raise CommandError(f"{self.name}:{row.line}: the header cannot be read: {row.problem}")
        return row

    def end(self) -> Row | None:
        """The input is over; return the row that was still open."""
        if not self._open:
            return None
        return self._checked(Row(_shown(self._take_open()), {}, self._open_line, "a quote is never closed"))

    def _feed_csv(self, line: int, data: bytes) -> Row | None:
        if not self._open:
            self._open_line = line
        is_open = _stays_open(data, is_open=bool(self._open))
        self._open.append(data)
        self._open_bytes += len(data)
        return None if is_open else self._row(self._open_line, self._take_open())

    def _take_open(self) -> bytes:
        data = b"".join(self._open)
        self._open.clear()
        self._open_bytes = 0
        return data

    def _row(self, line: int, data: bytes) -> Row | None:
        data = data.removesuffix(b"\n").removesuffix(b"\r")
        if not data.strip():
            return None
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            where = f"byte 0x{data[error.start]:02x} at place {error.start + 1} is not UTF-8"
            return self._checked(Row(_shown(data), {}, line, where))
        match self._form:
            case "jsonl":
                return _json_row(line, text)
            case "csv":
                return self._csv_row(line, text)
            case _:
                return Row(text, {"item": text}, line)

    def _csv_row(self, line: int, text: str) -> Row | None:
        try:
            fields = next(csv.reader([text], strict=True))
        except csv.Error as error:
            told = str(error).partition(" - ")[0]  # behind it is advice for programs
            return self._checked(Row(text, {}, line, f"it is not CSV: {told}"))
        if not self.columns:
            self.columns = self._header(line, fields)
            return None
        if len(fields) != len(self.columns):
            has = f"{len(fields)} field{'' if len(fields) == 1 else 's'}"
            return Row(text, {}, line, f"it has {has}, and the header has {len(self.columns)}")
        row = dict(zip(self.columns, fields, strict=True))
        return Row(row, {"item": row, **row}, line)

    def _header(self, line: int, fields: list[str]) -> tuple[str, ...]:
        names = [field.strip() for field in fields]
        for name in names:
            if not name or names.count(name) > 1:
                what = f"{names.count(name)} columns are called {name!r}" if name else "a column has no name"
                raise CommandError(f"{self.name}:{line}: {what} in the header")
        return tuple(names)


def _stays_open(data: bytes, *, is_open: bool) -> bool:
    """Tell whether a quoted field goes on behind a line; ``is_open`` says that one went on before it."""
    place = 0
    while True:
        if not is_open:
            if (found := _OPENING.search(data, place)) is None:
                return False
            place, is_open = found.end(), True
        if (place := data.find(b'"', place)) < 0:
            return True
        is_open = data[place + 1 : place + 2] == b'"'  # two of them are one of the text
        place += 1 + is_open


def _json_row(line: int, text: str) -> Row:
    try:
        item = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        return Row(text, {}, line, f"it is not JSON: {error}")
    return Row(item, {"item": item, **item} if isinstance(item, dict) else {"item": item}, line)


def _shown(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace").rstrip("\r\n")[:1_000]

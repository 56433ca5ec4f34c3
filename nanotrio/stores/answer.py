"""What a query in SQL to a row store gave."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

__all__ = ["SEVERAL", "Answer", "Value"]

SEVERAL = "the query cannot be run: it has several statements; ask one at a time"

Value: TypeAlias = str | int | float | bytes | None


class Answer(msgspec.Struct, frozen=True):
    """What a query gave."""

    columns: tuple[str, ...]
    rows: list[tuple[Value, ...]]
    is_cut: bool
    """There were more rows than asked for."""
    behind: int
    """Records in the log that are not in the tables: they were written by a run that named the store without rows."""

"""Which rows are to be ended: those below a parent that is cancelled, or that hands in its result.

Rows are looked at some thousands a pass. Those that are to be ended are *set aside*, so that they hold up nobody, and
are closed from there as agents in memory, a slice at a time.
"""

from __future__ import annotations

import msgspec
import trio

from .rows import Rows

__all__ = ["RowEnding", "RowEndings"]

_SCANNED = 4_096


class RowEnding(msgspec.Struct, frozen=True):
    """Rows below one parent that are to be ended: those before the place ``end``."""

    end: int
    reason: str
    is_told: bool
    """The parent ends them, so their ends are no news to it."""


class RowEndings:
    """The endings that are under way, by parent."""

    __slots__ = ("_endings", "_gone", "_scanned_to", "aside")

    def __init__(self) -> None:
        self._endings: dict[int, RowEnding] = {}
        self._gone: dict[int, trio.Event] = {}
        self._scanned_to = 0
        self.aside: dict[int, int] = {}
        """Rows that were set aside: agent and last record."""

    def __bool__(self) -> bool:
        return bool(self._endings or self.aside)

    def begin(self, parent: int, rows: Rows, reason: str, *, is_told: bool) -> None:
        """End all rows that are below ``parent`` now."""
        self._endings[parent] = RowEnding(rows.end, reason, is_told)
        self._scanned_to = rows.at

    def get(self, parent: int) -> RowEnding | None:
        """Return what ends the rows below ``parent``; None where nothing does."""
        return self._endings.get(parent)

    def scan(self, rows: Rows) -> None:
        """Set rows aside that are to be ended, of some thousand."""
        start = max(self._scanned_to, rows.at)
        stop = min(start + _SCANNED, rows.end)
        for place in range(start, stop):
            row = rows.row(place)
            ending = self._endings.get(row.kind.parent)
            if row.seq and ending is not None and place < ending.end:
                self.aside[row.agent] = row.seq
                rows.take(place)
        self._scanned_to = stop
        if stop == rows.end and not self.aside:
            for parent in list(self._endings):
                self.finish(parent)

    def finish(self, parent: int) -> None:
        """All rows below ``parent`` are ended."""
        self._endings.pop(parent, None)
        event = self._gone.pop(parent, None)
        if event is not None:
            event.set()

    async def gone(self, parent: int) -> None:
        """Wait until the rows below ``parent`` are ended. Checkpoints only where some are to be."""
        while parent in self._endings:
            await self._gone.setdefault(parent, trio.Event()).wait()

    def clear(self) -> None:
        """End none any more."""
        self.aside.clear()
        for parent in list(self._endings):
            self.finish(parent)

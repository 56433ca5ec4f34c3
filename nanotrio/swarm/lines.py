"""Children that were never started, by root: whose turn is next, and which rows are to be in memory by then.

Theory of operation
-------------------
Each root with such children has a *line*, first come first served; roots take turns, a child each. A line holds agents
in memory and places of ``Rows``: those that are *near*, which are in memory or were, and the *far* ones, as ranges,
two integers each however many rows they hold. An agent in memory that is queued gets a ticket, the place that the next
row of any line will get, and is started when its line's rows before that have been.

A line whose first row is not in memory yet *stalls*: it leaves the round and comes back at its front once the row is,
so a free slot is never held up by reading, nor looks at the same line twice.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .node import Node

__all__ = ["Line", "Ranges"]

_MIN_CUT = 256


class Ranges:
    """Integers in the order they came, kept as ranges."""

    __slots__ = ("_bounds", "_first")

    def __init__(self) -> None:
        self._bounds = array("q")
        self._first = 0

    def __bool__(self) -> bool:
        return self._first < len(self._bounds)

    def push(self, start: int, stop: int) -> None:
        """Put the integers from ``start`` to before ``stop`` at the end."""
        if start == stop:
            return
        if self and self._bounds[-1] == start:
            self._bounds[-1] = stop
        else:
            self._bounds.extend((start, stop))

    def first(self) -> int:
        """Return the first."""
        return self._bounds[self._first]

    def pop(self) -> int:
        """Take the first."""
        bounds, at = self._bounds, self._first
        item = bounds[at]
        bounds[at] += 1
        if bounds[at] == bounds[at + 1]:
            self._first += 2
            if self._first >= _MIN_CUT and self._first * 2 >= len(bounds):
                del bounds[: self._first]
                self._first = 0
        return item

    def some(self, count: int) -> list[int]:
        """Return the first ones, at most ``count``."""
        found: list[int] = []
        at = self._first
        while len(found) < count and at < len(self._bounds):
            start = self._bounds[at]
            found += range(start, min(self._bounds[at + 1], start + count - len(found)))
            at += 2
        return found


class Line:
    """What waits below one root."""

    __slots__ = ("far", "in_memory", "is_in_round", "near", "root")

    def __init__(self, root: int) -> None:
        self.root = root
        self.in_memory: deque[tuple[int, Node]] = deque()
        """With their tickets."""
        self.near: deque[int] = deque()
        self.far = Ranges()
        self.is_in_round = False

    def __bool__(self) -> bool:
        return bool(self.in_memory or self.near or self.far)

    @property
    def has_rows(self) -> bool:
        """Whether rows wait in it."""
        return bool(self.near or self.far)

    def first_place(self) -> int:
        """Return the place of its first row; -1 where it has none."""
        if self.near:
            return self.near[0]
        return self.far.first() if self.far else -1

    def pass_first_place(self) -> None:
        """The first row is done with."""
        if self.near:
            self.near.popleft()
        else:
            self.far.pop()

    def come_near(self, last: int) -> None:
        """The far rows up to the place ``last`` are in memory now, or are no more."""
        while self.far and self.far.first() <= last:
            self.near.append(self.far.pop())

    def drop_rows(self) -> None:
        """Forget the rows."""
        self.near.clear()
        self.far = Ranges()

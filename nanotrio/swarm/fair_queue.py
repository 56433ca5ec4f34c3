"""Who is started next, so that no root and no parent starves for another that has more children.

Theory of operation
-------------------
Roots take turns, and below each root its parents do; the children of one parent go in the order they came. So when a
root asks for a hundred thousand children and then another root for ten, the ten are started by turns with the others'
first ten, and not after all of them; likewise for two parents below one root. Whoever comes anew waits at the end of
the round, so its first child is started after at most one child of each other root.

Items are integers, eight bytes each in an array for each parent; taking one moves an index, and the array is cut once
half of it was taken. Every operation takes constant time, the cutting spread over what was taken.
"""

from __future__ import annotations

from array import array
from collections import deque

__all__ = ["FairQueue"]

_MIN_CUT = 256


class _Line:
    """The items of one parent, first in, first out."""

    __slots__ = ("_items", "_taken")

    def __init__(self) -> None:
        self._items = array("q")
        self._taken = 0

    def __len__(self) -> int:
        return len(self._items) - self._taken

    def push(self, item: int) -> None:
        self._items.append(item)

    def pop(self) -> int:
        item = self._items[self._taken]
        self._taken += 1
        if self._taken >= _MIN_CUT and self._taken * 2 >= len(self._items):
            del self._items[: self._taken]
            self._taken = 0
        return item


class _Round:
    """The parents below one root that have children in the queue, in the order of their turns."""

    __slots__ = ("lines", "turns")

    def __init__(self) -> None:
        self.lines: dict[int, _Line] = {}
        self.turns: deque[int] = deque()


class FairQueue:
    """A queue of integers that takes turns between roots, and below each root between parents."""

    __slots__ = ("_rounds", "_size", "_turns")

    def __init__(self) -> None:
        self._rounds: dict[int, _Round] = {}
        self._turns: deque[int] = deque()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, root: int, parent: int, item: int) -> None:
        """Put ``item`` behind the others of its parent; a root's own place is that of parent 0."""
        found = self._rounds.get(root)
        if found is None:
            found = self._rounds[root] = _Round()
            self._turns.append(root)
        line = found.lines.get(parent)
        if line is None:
            line = found.lines[parent] = _Line()
            found.turns.append(parent)
        line.push(item)
        self._size += 1

    def pop(self) -> int:
        """Take the next item.

        Raises:
            IndexError: the queue is empty.
        """
        root = self._turns.popleft()
        found = self._rounds[root]
        parent = found.turns.popleft()
        line = found.lines[parent]
        item = line.pop()
        if line:
            found.turns.append(parent)
        else:
            del found.lines[parent]
        if found.turns:
            self._turns.append(root)
        else:
            del self._rounds[root]
        self._size -= 1
        return item

    def drop(self, root: int) -> int:
        """Forget all that waits below ``root``; return how many that were. Takes as long as roots wait."""
        found = self._rounds.pop(root, None)
        if found is None:
            return 0
        self._turns.remove(root)
        dropped = sum(map(len, found.lines.values()))
        self._size -= dropped
        return dropped

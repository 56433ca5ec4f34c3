"""What a store holds that is unfinished and was not taken up yet."""

from __future__ import annotations

from collections.abc import Iterator

from ..records import Head
from .rows import Rows

__all__ = ["Unresumed", "may_be_row"]

MAX_SHOWN = 1_024
"""Pending agents whose heads are held, to be shown; of further ones three integers are."""


def may_be_row(head: Head) -> bool:
    """Whether an unfinished agent may wait as a row, which does not say how many children were spawned below it."""
    return head.status == "pending" and head.parent != 0 and not head.children


class Unresumed:
    """Unfinished agents by root: heads of those that had begun, and of some that had not; the others as rows."""

    def __init__(self) -> None:
        self._heads: dict[int, list[Head]] = {}
        self._rows: dict[int, Rows] = {}
        self.max_shown = MAX_SHOWN
        self._shown = 0

    def add(self, head: Head) -> None:
        """Take note of an unfinished agent."""
        if may_be_row(head):
            if self._shown >= self.max_shown:
                rows = self._rows.get(head.root)
                if rows is None:
                    rows = self._rows[head.root] = Rows()
                rows.push_head(head)
                return
            self._shown += 1
        self._heads.setdefault(head.root, []).append(head)

    def heads(self) -> Iterator[Head]:
        """Yield the heads that are held."""
        for heads in self._heads.values():
            yield from heads

    def roots(self) -> list[int]:
        """Return the roots whose trees have unfinished agents."""
        return sorted(self._heads.keys() | self._rows.keys())

    def __contains__(self, root: int) -> bool:
        """Whether the tree of ``root`` has unfinished agents."""
        return root in self._heads or root in self._rows

    def of(self, root: int) -> tuple[list[Head], Rows]:
        """Return what is unfinished in the tree of ``root``."""
        return sorted(self._heads.get(root, ()), key=lambda head: head.agent), self._rows.get(root, Rows())

    def forget(self, root: int) -> None:
        """The tree of ``root`` was taken up."""
        self._heads.pop(root, None)
        self._rows.pop(root, None)

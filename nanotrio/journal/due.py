"""Which heads the store lacks: of whom the journal is to ask, and those that came with a group."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..records import Head, Record

__all__ = ["DueHeads"]


class DueHeads:
    """Agents whose heads changed, before and in the open round, and heads that wait for their group."""

    __slots__ = ("_dirty", "_given", "_open")

    def __init__(self) -> None:
        self._dirty: set[int] = set()
        self._open: set[int] = set()
        """Agents of the open round whose heads are not committed yet."""
        self._given: deque[tuple[int, Sequence[Head]]] = deque()
        """Heads that came with a group, and the number of the group's last record."""

    def __bool__(self) -> bool:
        return bool(self._dirty)

    def __contains__(self, agent: int) -> bool:
        return agent in self._dirty or agent in self._open

    def mark(self, agents: Sequence[int] | dict[int, int]) -> None:
        """The heads of ``agents`` have changed."""
        self._dirty.update(agents)

    def appended(self, group: Sequence[Record], heads: Sequence[Head], last_seq: int) -> None:
        """A group was appended that ends with ``last_seq``; ``heads`` came with it."""
        dirty = self._dirty
        if heads:
            self._given.append((last_seq, heads))
            with_head = {head.agent for head in heads}
            dirty.update([record.agent for record in group if record.agent not in with_head])
        else:
            for record in group:
                dirty.add(record.agent)

    def begin_round(self) -> list[int]:
        """Return the agents whose heads are to be written; what changes from here on is for the next round."""
        self._dirty.discard(0)
        self._open, self._dirty = self._dirty, set()
        return list(self._open)

    def given_up_to(self, seq: int) -> list[Head]:
        """Take the heads that came with groups up to record ``seq``."""
        heads: list[Head] = []
        while self._given and self._given[0][0] <= seq:
            heads += self._given.popleft()[1]
        return heads

    def committed(self, heads: Sequence[Head]) -> None:
        """These were written."""
        if heads and self._open:
            self._open.difference_update([head.agent for head in heads])

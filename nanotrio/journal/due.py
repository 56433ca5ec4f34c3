"""Which heads the store lacks: of whom the journal is to ask, and those that came with a group.

Theory of operation
-------------------
Agents whose heads changed are *dirty*. A round takes them all; those it is not done with yet are *open*. It asks for
their heads a slice at a time: first ``here``, which answers at once, then ``elsewhere`` for those that are left out.
What was asked for is *ready*, and goes into the next batch. A head that came with a group is *given*, and goes into the
batch of its group; it shows its agent as that began, so one that is ready is newer and goes in its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from ..records import Head, Record

__all__ = ["DueHeads", "Elsewhere", "Here"]

Here: TypeAlias = Callable[[Iterable[int]], list[Head]]
Elsewhere: TypeAlias = Callable[[Sequence[int]], Awaitable[list[Head]]]


async def _nowhere(_: Sequence[int]) -> list[Head]:
    return []


class DueHeads:
    """Agents whose heads changed, before and in the open round, and heads that wait for their group."""

    __slots__ = ("_dirty", "_elsewhere", "_given", "_here", "_left", "_open", "_ready")

    def __init__(self, here: Here, elsewhere: Elsewhere | None = None) -> None:
        self._here = here
        self._elsewhere = elsewhere or _nowhere
        self._dirty: set[int] = set()
        self._open: set[int] = set()
        """Agents of the open round whose heads are not committed yet."""
        self._left: list[int] = []
        """Those of whom nobody was asked yet."""
        self._ready: list[Head] = []
        self._given: deque[tuple[int, Sequence[Head]]] = deque()
        """Heads that came with a group, and the number of the group's last record."""

    def __bool__(self) -> bool:
        return bool(self._dirty)

    def __contains__(self, agent: int) -> bool:
        return agent in self._dirty or agent in self._open

    @property
    def has_left(self) -> bool:
        """Whether the open round is to ask for more heads."""
        return bool(self._left)

    @property
    def ready(self) -> int:
        """How many heads wait for the next batch."""
        return len(self._ready)

    def mark(self, agents: Iterable[int]) -> None:
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

    def begin_round(self) -> None:
        """Take the agents whose heads are to be written; what changes from here on is for the next round."""
        self._dirty.discard(0)
        self._open, self._dirty = self._dirty, set()
        self._left = list(self._open)

    async def ask(self, count: int) -> None:
        """Have the heads of up to ``count`` agents ready. Checkpoints only where some are elsewhere.

        Cancelled, or with an error of ``elsewhere``, nothing has changed.

        Raises:
            StoreError: from ``elsewhere``.
        """
        agents = self._left[-count:]
        heads = self._here(agents)
        if len(heads) < len(agents):
            known = {head.agent for head in heads}
            heads += await self._elsewhere([agent for agent in agents if agent not in known])
            if missing := set(agents).difference([head.agent for head in heads]):
                raise RuntimeError(f"no heads for agents {sorted(missing)[:10]}, which have records")
        del self._left[-count:]
        self._ready += heads

    def given(self, agents: Iterable[int]) -> list[Head]:
        """Return the heads of ``agents`` that came with groups which are not committed yet."""
        wanted = set(agents)
        return [head for _, heads in self._given for head in heads if head.agent in wanted]

    def take(self, seq: int) -> list[Head]:
        """Take the heads that are ready, and those that came with groups up to record ``seq``."""
        heads, self._ready = self._ready, []
        newer = {head.agent for head in heads}
        while self._given and self._given[0][0] <= seq:
            given = self._given.popleft()[1]
            heads += [head for head in given if head.agent not in newer] if newer else given
        return heads

    def committed(self, heads: Sequence[Head]) -> None:
        """These were written."""
        if heads and self._open:
            self._open.difference_update([head.agent for head in heads])

"""A store that fails on demand or by a seed, around a real one, and that can tell what it was given."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import trio

from ..errors import StoreError
from ..records import Head, Record
from ..stores import MemoryStore, this_process
from ..stores.store import Batch, Owner, Store, StoreStatistics, Tenure

__all__ = ["UnreliableStore"]


class UnreliableStore:
    """Passes everything on to ``store``, but for commits while something is set here, or by chance.

    Args:
        store: the store that keeps what is written.
        seed: what is drawn from; the same seed has the same faults at the same commits.
        fail: the share of commits that raise ``StoreError`` and write nothing.
        lose: the share that are made and then raise, as when a server's answer is lost.
        delay_seconds: each commit waits for up to so long before, on Trio's clock.
        tape: keep every batch that is committed, so that a crash can be had at any of them (``as_of``).

    Attributes:
        batches: what was kept.
        error: while set, every commit raises it and writes nothing.
        lost_answers: so many commits are made and then raise, as when a server's answer is lost.
        refused: how many commits raised so far.
    """

    def __init__(
        self,
        store: Store,
        seed: int = 0,
        *,
        fail: float = 0.0,
        lose: float = 0.0,
        delay_seconds: float = 0.0,
        tape: bool = False,
    ) -> None:
        self.store = store
        self._chance = random.Random(seed)  # noqa: S311 - the same faults again are the point
        self._fail = fail
        self._lose = lose
        self._delay_seconds = delay_seconds
        self._tape = tape
        self.batches: list[Batch] = []
        self.error: StoreError | None = None
        self.lost_answers = 0
        self.refused = 0

    async def as_of(self, batches: int) -> UnreliableStore:
        """Return a store in memory as a process that died after so many batches leaves it; taped as this one is."""
        copy = UnreliableStore(MemoryStore(), tape=True)
        await copy.acquire(this_process())
        for number, batch in enumerate(self.batches[:batches], 1):
            await copy.commit(msgspec.structs.replace(batch, number=number))
        return copy

    async def acquire(self, owner: Owner, *, takeover: bool = False) -> Tenure:
        """See ``Store.acquire``."""
        return await self.store.acquire(owner, takeover=takeover)

    async def commit(self, batch: Batch) -> None:
        """See ``Store.commit``; fails as the attributes and the chance say."""
        if self.error is not None:
            self.refused += 1
            raise self.error.with_traceback(None)  # one for all commits: it would grow by each
        luck = 1.0
        if self._fail or self._lose or self._delay_seconds:
            luck, delay = self._chance.random(), self._chance.random() * self._delay_seconds
            await trio.sleep(delay)
        if luck < self._fail:
            self.refused += 1
            raise StoreError("a commit failed on purpose")
        if self._tape:
            self.batches.append(batch)
        await self.store.commit(batch)
        if self.lost_answers or luck < self._fail + self._lose:
            self.lost_answers = max(0, self.lost_answers - 1)
            self.refused += 1
            raise StoreError("the answer to a commit was lost")

    async def heads(
        self,
        *,
        agents: Sequence[int] | None = None,
        unfinished: bool = False,
        roots: bool = False,
        after: int = 0,
        limit: int = 4096,
    ) -> list[Head]:
        """See ``Store.heads``."""
        return await self.store.heads(agents=agents, unfinished=unfinished, roots=roots, after=after, limit=limit)

    async def load(self, ends: Sequence[tuple[int, int]]) -> list[list[Record]]:
        """See ``Store.load``."""
        return await self.store.load(ends)

    async def scan(self, after_seq: int, *, limit: int = 4096) -> list[Record]:
        """See ``Store.scan``."""
        return await self.store.scan(after_seq, limit=limit)

    async def statistics(self) -> StoreStatistics:
        """See ``Store.statistics``."""
        return await self.store.statistics()

    async def aclose(self) -> None:
        """See ``Store.aclose``."""
        await self.store.aclose()

"""A store that lives and dies with its process: for tests, and for runs that are to leave nothing behind."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import trio

from ..errors import FencedError, StoreDamagedError
from ..records import Head, Record
from .store import Batch, Owner, StoreStatistics, Tenure

__all__ = ["MemoryStore"]


class MemoryStore:
    """Implements ``Store`` on dicts; what it promises of durability holds as long as the process does."""

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}
        self._heads: dict[int, Head] = {}
        self._owner: Owner | None = None
        self._epoch = 0
        self._held_epoch = 0
        self._batch = 0
        self._heads_seq = 0
        self._commits = 0

    async def acquire(self, owner: Owner, *, takeover: bool = False) -> Tenure:  # noqa: ARG002 - nobody else can own it
        """Become the one writer; there is no other process to refuse for."""
        await trio.lowlevel.checkpoint()
        former, self._owner = self._owner, owner
        self._epoch += 1
        self._held_epoch = self._epoch
        self._batch = 0
        return Tenure(self._epoch, len(self._records), self._heads_seq, max(self._heads, default=0), former)

    async def commit(self, batch: Batch) -> None:
        """Take the batch; does not checkpoint."""
        if self._held_epoch != self._epoch:
            raise FencedError("the store was taken over; nothing more can be written from here")
        if batch.number <= self._batch:
            return
        self._records.update({record.seq: record for record in batch.records})
        self._heads.update({head.agent: head for head in batch.heads})
        if batch.heads_seq is not None:
            self._heads_seq = batch.heads_seq
        self._batch = batch.number
        self._commits += 1

    async def heads(
        self,
        *,
        agents: Sequence[int] | None = None,
        unfinished: bool = False,
        roots: bool = False,
        after: int = 0,
        limit: int = 4096,
    ) -> list[Head]:
        """Return heads in order of agent."""
        await trio.lowlevel.checkpoint()
        wanted = sorted(self._heads if agents is None else set(agents).intersection(self._heads))
        found = [self._heads[agent] for agent in wanted if agent > after]
        wanted_ones = (head for head in found if (head.unfinished or not unfinished) and not (roots and head.parent))
        return list(islice(wanted_ones, limit))

    async def load(self, ends: Sequence[tuple[int, int]]) -> list[list[Record]]:
        """Return chains, each oldest first."""
        await trio.lowlevel.checkpoint()
        return [self._chain(last_seq, stop_seq) for last_seq, stop_seq in ends]

    def _chain(self, seq: int, stop_seq: int) -> list[Record]:
        chain: list[Record] = []
        while seq and seq >= stop_seq:
            record = self._records.get(seq)
            if record is None:
                raise StoreDamagedError(f"record {seq} is missing from the store in memory")
            chain.append(record)
            seq = record.prev
        chain.reverse()
        return chain

    async def scan(self, after_seq: int, *, limit: int = 4096) -> list[Record]:
        """Return the records that follow ``after_seq``."""
        await trio.lowlevel.checkpoint()
        last = min(after_seq + limit, len(self._records))
        return [self._records[seq] for seq in range(after_seq + 1, last + 1)]

    async def statistics(self) -> StoreStatistics:
        """Return counts; sizes are those of the facts."""
        await trio.lowlevel.checkpoint()
        size = sum(len(record.facts) for record in self._records.values())
        return StoreStatistics(
            "memory:", len(self._records), len(self._heads), size, 0, self._commits, self._heads_seq, self._owner
        )

    async def aclose(self) -> None:
        """Nothing to give back; what was written stays for a later ``acquire``."""
        await trio.lowlevel.checkpoint()

"""What the running swarm asks of a store, and what a driver must promise.

A store is a log of records and a cache of heads. Whoever writes a driver implements ``Store`` and runs
``nanotrio.testing.check_store`` against it; when that passes, the driver is done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import msgspec

from ..records import Head, Record

__all__ = ["Batch", "Owner", "Store", "StoreStatistics", "Tenure"]


class Owner(msgspec.Struct, frozen=True):
    """The process that wants to write."""

    boot_id: str
    pid: int
    started: int
    """The process's start time in clock ticks since boot, so that a reused pid is not taken for its owner."""
    host: str = ""


class Tenure(msgspec.Struct, frozen=True):
    """What an owner is given: its epoch, and where the log stands."""

    epoch: int
    last_seq: int
    """The number of the last record, 0 in an empty store."""
    heads_seq: int
    """All heads are true up to this record; what follows must be replayed."""
    last_agent: int
    """The greatest agent id that a head names; records after ``heads_seq`` may name greater ones."""
    former: Owner | None
    """The owner before, None in a new store."""
    former_lives: bool = False
    """It was alive, and had not given the store back: the store was taken from it."""
    renew_seconds: float = math.inf
    """At least so often something must be committed, an empty batch if need be, or others may take the store."""


class Batch(msgspec.Struct, frozen=True):
    """One commit: whole groups only, records in order of their numbers without a gap, heads merged by agent."""

    number: int
    """Counts up by one within a tenure; with the epoch it tells whether a commit whose answer was lost was made."""
    records: Sequence[Record]
    heads: Sequence[Head] = ()
    heads_seq: int | None = None
    """Where given, all heads are true up to this record once the batch is in."""


class StoreStatistics(msgspec.Struct, frozen=True):
    """Sizes and counts, for people and benchmarks."""

    url: str
    records: int
    heads: int
    size_bytes: int
    """Of the main file or tables."""
    pending_bytes: int
    """Of a write-ahead log that was not yet moved into the main file."""
    commits: int
    """Since this store was opened here."""
    heads_seq: int = 0
    """Heads are true up to this record."""
    owner: Owner | None = None
    """Who holds the store, or held it when it died; None where it was given back."""
    warning: str = ""
    """What a person should know, such as a reader that keeps a write-ahead log growing; empty when all is well."""


class Store(Protocol):
    """A durable log of records with a cache of heads; one writer, any number of readers.

    One commit at a time. Reads (heads, load, scan, statistics) may run beside a commit and beside each other, and see
    whole batches. Every method checkpoints unless it says otherwise. Errors are ``StoreError`` and its kinds.
    """

    async def acquire(self, owner: Owner, *, takeover: bool = False) -> Tenure:
        """Become the one writer.

        An owner on the same boot that is dead is taken over at once. One that is alive or stopped is refused with
        ``StoreOwnedError`` (its pid and state), unless ``takeover``; then it is fenced.
        """
        ...

    async def commit(self, batch: Batch) -> None:
        """Write the whole batch or nothing.

        On return it survives a SIGKILL of this process. A batch number at or below the last one of this epoch was
        committed before, and is passed over. A small batch may be written without a checkpoint. Once begun it is not
        undone by cancellation: a driver finishes it first.

        Raises:
            FencedError: another process owns the store now; nothing was written.
            StoreDamagedError: the batch does not follow the log's last record, or the log cannot be written at all.
            StoreError: nothing was written, and the same batch may be tried again.
        """
        ...

    async def heads(
        self,
        *,
        agents: Sequence[int] | None = None,
        unfinished: bool = False,
        roots: bool = False,
        after: int = 0,
        limit: int = 4096,
    ) -> list[Head]:
        """Return heads in order of agent, those above ``after``, at most ``limit``.

        Only those of ``agents`` where given (unknown ones are left out), only unfinished ones or roots' where asked.
        """
        ...

    async def load(self, ends: Sequence[tuple[int, int]]) -> list[list[Record]]:
        """Return one chain for each ``(last_seq, stop_seq)``, in the order asked, each oldest first.

        A chain is the record ``last_seq``, its ``prev``, and so on, as far as their numbers are at least ``stop_seq``
        (that one included; 0 for the whole chain). A ``last_seq`` of 0 is an empty chain. Chains that are asked for
        together are walked together, which is several times cheaper than one by one: ask for some hundreds.

        Raises:
            StoreDamagedError: a record of a chain is missing.
        """
        ...

    async def scan(self, after_seq: int, *, limit: int = 4096) -> list[Record]:
        """Return the records that follow ``after_seq``, in order, at most ``limit``."""
        ...

    async def statistics(self) -> StoreStatistics:
        """Return sizes and counts."""
        ...

    async def aclose(self) -> None:
        """Give the store back: the owner row says so, and the files are closed. Safe to call twice."""
        ...

"""The care of stores: look one through, save what can be read, copy it, drop what is old, count what is in it.

Nothing here changes a log. What is damaged is saved into a new store, and what is young is kept in a new one, never in
place; what is only a cache, heads and tables, is made anew where it lies.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from hashlib import blake2b

import msgspec
import trio

from ..counted import counted
from ..errors import StoreDamagedError, StoreError, UsageError
from ..messages import Usage
from ..records import Record
from .address import Address, open_store, parse_url
from .audit import Audit
from .owner import this_process
from .pruning import PruneReport, prune_into
from .rebuilding import rebuild_heads
from .sqlite_file import find_problems
from .sqlite_rows import drop_tables
from .store import Batch, Store, StoreStatistics

__all__ = ["CheckReport", "CopyReport", "RepairReport", "StoreCare", "StoreSummary", "beside"]

_SLICE = 2048


class CheckReport(msgspec.Struct, frozen=True):
    """What ``check`` found."""

    url: str
    records: int
    agents: int
    heads: int
    problems: tuple[str, ...]
    """In sentences, the first hundred of ``problem_count``; empty where the store is whole."""
    problem_count: int
    warning: str
    """What is no damage and worth knowing, such as an end that a crash cut short."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problem_count


class RepairReport(msgspec.Struct, frozen=True):
    """What ``repair`` did."""

    url: str
    """The store that is whole now."""
    is_new: bool
    """It was made for what could be saved; the damaged one is as it was."""
    records: int
    lost: str
    """Behind which record nothing could be saved, and why; empty where nothing was lost."""


class CopyReport(msgspec.Struct, frozen=True):
    """What ``copy`` did."""

    source: str
    target: str
    records: int
    heads: int


class StoreSummary(msgspec.Struct, frozen=True):
    """What is in a store."""

    statistics: StoreStatistics
    agents: dict[str, int]
    """How many, by status."""
    outcomes: dict[str, int]
    """How many, by the outcome of their last turn."""
    roots: int
    unfinished: int
    usage: Usage
    """Of all, as the roots know it: what descendants used is in their root's once they have ended."""
    spent_nano: int
    uncertain_nano: int


class StoreCare:
    """The care of the store at ``url``. Every method opens the store, checkpoints, and closes it again.

    Raises:
        UsageError: the address is wrong.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._address = parse_url(url)

    async def check(self) -> CheckReport:
        """Read everything and say what is wrong, beside a running owner too.

        Raises:
            StoreError: the store cannot be opened at all.
        """
        audit = Audit()
        warning = ""
        store = await open_store(self.url, read_only=True)
        try:
            if self._address.scheme.startswith("sqlite"):
                for problem in await trio.to_thread.run_sync(find_problems, self._address.path):
                    audit.add_problem(problem)
            statistics = await store.statistics()
            warning = statistics.warning
            await self._audit(store, audit, statistics.heads_seq)
        except StoreDamagedError as error:
            audit.add_problem(str(error))
        finally:
            await store.aclose()
        return CheckReport(
            url=self._address.url,
            records=audit.records,
            agents=len(set(audit.agents) - {0}),
            heads=audit.heads,
            problems=tuple(audit.problems),
            problem_count=audit.problem_count,
            warning=warning,
        )

    async def repair(self, into: str = "") -> RepairReport:
        """Make the store whole again, as far as its log can be read.

        Where the log is whole, heads and tables are made anew in place. Else the longest beginning of it that can be
        read, whole batches where the store knows them, is copied into a new store, at ``into`` or at the same place
        with ``.repaired`` after it, and heads and tables are made there; what is damaged stays as it is.

        Raises:
            UsageError: ``into`` is this store.
            StoreOwnedError: agents run in it.
            StoreError: nothing can be read, or the new store cannot be written.
        """
        self._check_apart(into)
        lost = await self._find_damage()
        if not lost and not into:
            return await self._remake()
        target = into or beside(self.url, "repaired")
        store = await _made(target)
        try:
            records, number, why = await self._save_into(store)
            await rebuild_heads(store, number)
        finally:
            await store.aclose()
        if lost:
            lost = f"what follows record {records:,}, since {(why or lost).partition('; put ')[0]}"
        return RepairReport(parse_url(target).url, is_new=True, records=records, lost=lost)

    async def copy(self, target: str) -> CopyReport:
        """Copy everything into a new store of any kind at ``target``, byte for byte, beside a running owner too.

        The copy is read back and compared. What the owner writes meanwhile may be in it or not, in order.

        Raises:
            UsageError: the target is this store.
            StoreDamagedError: the store cannot be read whole; ``repair`` saves what can be.
            StoreError: the target is no new store, or cannot be written; what is there by then is to be removed.
        """
        self._check_apart(target)
        source = await open_store(self.url, read_only=True)
        try:
            heads_seq = (await source.statistics()).heads_seq
            copy = await _made(target)
            try:
                work = _Copy(source, copy)
                await work.copy_records()
                # Heads may be ahead of what was copied by now, but never of the log.
                heads = await work.copy_heads()
                await work.copy_records()
                await copy.commit(Batch(work.number, (), (), heads_seq))
                await work.compare()
            finally:
                await copy.aclose()
        finally:
            await source.aclose()
        return CopyReport(self._address.url, parse_url(target).url, work.last_seq, heads)

    async def prune(self, into: str, older_than_us: int) -> PruneReport:
        """Copy all but finished sessions older than ``older_than_us`` (Unix time) into a new store at ``into``.

        This store stays as it is; put the new one in its place once it was looked at. What is kept has its numbers,
        ids and bytes, and every unfinished tree is kept whole (see ``stores/pruning.py``).

        Raises:
            UsageError: the target is this store.
            StoreOwnedError: agents run in it.
            StoreError: it cannot be read whole, or the target is no new store.
        """
        self._check_apart(into)
        source = await _acquired(self.url)
        try:
            await rebuild_heads(source, 1, after=(await source.statistics()).heads_seq)
            target = await _made(into)
            try:
                return await prune_into(source, target, older_than_us, (self._address.url, parse_url(into).url))
            finally:
                await target.aclose()
        finally:
            await source.aclose()

    async def stats(self) -> StoreSummary:
        """Count what is in the store, by its heads; beside a running owner too.

        Raises:
            StoreError: it cannot be read.
        """
        store = await open_store(self.url, read_only=True)
        try:
            statistics = await store.statistics()
            agents: Counter[str] = Counter()
            outcomes: Counter[str] = Counter()
            usage, spent, uncertain, roots, unfinished, after = Usage(), 0, 0, 0, 0, 0
            while heads := await store.heads(after=after):
                for head in heads:
                    agents[head.status] += 1
                    unfinished += head.unfinished
                    if head.outcome:
                        outcomes[head.outcome] += 1
                    if head.parent:
                        spent += head.unreported_nano  # which no root has counted yet
                    else:
                        roots += 1
                        usage += head.usage
                        spent += head.spent_nano
                        uncertain += head.uncertain_nano
                after = heads[-1].agent
        finally:
            await store.aclose()
        return StoreSummary(statistics, dict(agents), dict(outcomes), roots, unfinished, usage, spent, uncertain)

    def _check_apart(self, target: str) -> None:
        """Refuse a target that is this store, by whatever name."""
        if target and _place_of(parse_url(target)) == _place_of(self._address):
            raise UsageError(
                f"the new store and the one it is made from are the same, {self._address.url}; name a place where "
                "nothing is yet"
            )

    async def _audit(self, store: Store, audit: Audit, heads_seq: int) -> None:
        while records := await store.scan(audit.records, limit=_SLICE):
            for record in records:
                audit.add_record(record)
        after = 0
        while heads := await store.heads(after=after):
            # An owner may have written more by now, and heads of it.
            while records := await store.scan(audit.records, limit=_SLICE):
                for record in records:
                    audit.add_record(record)
            for head in heads:
                audit.add_head(head, heads_seq)
            after = heads[-1].agent
        audit.finish(heads_seq)

    async def _find_damage(self) -> str:
        """Read the whole log; return what is wrong with it, or nothing."""
        store = await open_store(self.url, read_only=True)
        try:
            after = 0
            while records := await store.scan(after):
                after = records[-1].seq
        except StoreDamagedError as error:
            return str(error)
        finally:
            await store.aclose()
        return ""

    async def _save_into(self, target: Store) -> tuple[int, int, str]:
        """Copy the records that can be read, as far as they follow each other.

        Returns the last one, the number of the next batch, and what was wrong with the record behind the last.
        """
        source = await _open_damaged(self.url)
        try:
            after, number, limit, why = 0, 1, _SLICE, ""
            while limit:
                try:
                    records = await source.scan(after, limit=limit)
                except StoreDamagedError as error:
                    limit, why = limit // 2, str(error)
                    continue
                if not records or records[0].seq != after + 1 or records[-1].seq != after + len(records):
                    break
                await target.commit(Batch(number, records))
                after, number = records[-1].seq, number + 1
        finally:
            await source.aclose()
        return after, number, why

    async def _remake(self) -> RepairReport:
        """Make heads and tables anew in place."""
        store = await _acquired(self.url)
        try:
            await rebuild_heads(store, 1)
            records = (await store.statistics()).records
            if self._address.scheme.endswith("+rows"):
                await self._drop_tables()
        finally:
            await store.aclose()
        if self._address.scheme.endswith("+rows"):
            # Whoever acquires a row store without tables makes them.
            store = await _acquired(self.url)
            await store.aclose()
        return RepairReport(self._address.url, is_new=False, records=records, lost="")

    async def _drop_tables(self) -> None:
        if self._address.server is None:
            await trio.to_thread.run_sync(drop_tables, self._address.path)
        else:
            from .postgres_rows import drop_rows

            await drop_rows(self._address.server)


class _Copy:
    """A copy under way."""

    def __init__(self, source: Store, target: Store) -> None:
        self.number = 1
        self.last_seq = 0
        self._source = source
        self._target = target
        self._digest = blake2b()

    async def copy_records(self) -> None:
        """Copy all that follow, until there are no more."""
        while records := await self._source.scan(self.last_seq, limit=_SLICE):
            await self._target.commit(Batch(self.number, records))
            self.number += 1
            self.last_seq = records[-1].seq
            _add(self._digest, records)

    async def copy_heads(self) -> int:
        """Copy all heads; return how many there are."""
        count = after = 0
        while heads := await self._source.heads(after=after):
            await self._target.commit(Batch(self.number, (), heads))
            self.number += 1
            count += len(heads)
            after = heads[-1].agent
        return count

    async def compare(self) -> None:
        """Read the copy back, and refuse it where a byte differs."""
        digest, after = blake2b(), 0
        while records := await self._target.scan(after, limit=_SLICE):
            after = records[-1].seq
            _add(digest, records)
        if digest.digest() != self._digest.digest():
            raise StoreDamagedError("the copy differs from its source; remove it, and look in the system's log")


def _add(digest: blake2b, records: list[Record]) -> None:
    for record in records:
        digest.update(b"%d %d %d %d %d " % (record.seq, record.prev, record.agent, record.at_us, len(record.facts)))
        digest.update(record.facts)


def _place_of(address: Address) -> str:
    """Return the same text for all addresses of one store, as far as they can be told from here."""
    return address.token_text if address.server is not None else os.path.realpath(address.path)


async def _acquired(url: str) -> Store:
    store = await open_store(url)
    try:
        await store.acquire(this_process())
    except BaseException:
        await store.aclose()
        raise
    return store


async def _made(url: str) -> Store:
    """Return a new store, acquired.

    Raises:
        StoreError: one is there and holds something.
    """
    store = await _acquired(url)
    records = (await store.statistics()).records
    if records:
        await store.aclose()
        raise StoreError(f"{parse_url(url).url} holds {counted(records, 'record')}; name a new store")
    return store


async def _open_damaged(url: str) -> Store:
    address = parse_url(url)
    if address.scheme == "jsonl":
        from .jsonl import JsonlStore

        return await JsonlStore.open(address.path, salvage=True)
    return await open_store(url, read_only=True)


def beside(url: str, word: str) -> str:
    """Return the address of a new store beside that at ``url``: ``PATH.word``, or ``swarm=NAME_word`` on a server."""
    if parse_url(url).server is None:
        return f"{url}.{word}"
    return re.sub(r"([?&]swarm=[^&]+)", rf"\1_{word}", url)

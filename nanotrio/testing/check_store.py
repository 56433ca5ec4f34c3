"""What every store driver is held to. When ``check_store`` returns, the driver keeps the promises of ``Store``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias, TypeVar

import trio

from ..errors import FencedError, StoreDamagedError, StoreError, StoreOwnedError
from ..fact_form import decode_facts, encode_facts
from ..records import Content, Head, MailArrived, Record
from ..stores.owner import owner_of, this_process
from ..stores.store import Batch, Store

__all__ = ["CHECKS", "OpenStore", "check_store"]

OpenStore: TypeAlias = Callable[[str], Awaitable[Store]]
"""Opens the store of that name, not acquired: the same name is the same store each time, a new name an empty one."""

_E = TypeVar("_E", bound=Exception)

_ODD_TEXTS = (
    "",
    "W\0s\0l\0",
    "\\u0000 and \\x00 as characters",
    "\N{FAMILY}\u200d\N{GIRL} \u2028 \ufffd \ufeff \x7f\x9b",
    "'; DROP TABLE log; --\t\r\n\\.",
)


async def check_store(open_store: OpenStore) -> None:
    """Run every check, each on an empty store of its own.

    Raises:
        AssertionError: a promise is not kept; says which, what was expected and what came.
    """
    for check in CHECKS:
        try:
            await check(open_store)
        except AssertionError as error:
            raise AssertionError(f"{check.__name__.removeprefix('_').replace('_', ' ')}: {error}") from error


async def _an_empty_store_is_empty(open_store: OpenStore) -> None:
    async with _opened(open_store, "empty") as store:
        tenure = await store.acquire(this_process())
        _same("tenure.last_seq", tenure.last_seq, 0)
        _same("tenure.heads_seq", tenure.heads_seq, 0)
        _same("tenure.last_agent", tenure.last_agent, 0)
        _same("tenure.former", tenure.former, None)
        _same("scan(0)", await store.scan(0), [])
        _same("heads()", await store.heads(), [])
        _same("load([(0, 0)])", await store.load([(0, 0)]), [[]])
        _same("load([])", await store.load([]), [])
        statistics = await store.statistics()
        _same("statistics.records", statistics.records, 0)
        _same("statistics.heads", statistics.heads, 0)


async def _records_come_back_byte_for_byte(open_store: OpenStore) -> None:
    bodies = [encode_facts((MailArrived("text", 0, text),)) for text in _ODD_TEXTS]
    bodies.append(encode_facts((Content(bytes(range(16)), bytes(range(256)) * 20_000),)))
    bodies += [b"", b"\0", b"\xff" * 300, b"{", b"\\x"]
    records = [
        Record(seq, 0, seq % 3, (-1) ** seq * (1 << 62) + seq, facts) for seq, facts in enumerate(bodies, start=1)
    ]
    async with _opened(open_store, "bytes") as store:
        await store.acquire(this_process())
        await store.commit(Batch(1, records[:4]))
        await store.commit(Batch(2, records[4:]))
        _same_records("scan(0)", await store.scan(0), records)
    async with _opened(open_store, "bytes") as store:
        tenure = await store.acquire(this_process())
        _same("tenure.last_seq after reopening", tenure.last_seq, len(records))
        found = await store.scan(0)
        _same_records("scan(0) after reopening", found, records)
        decode_facts(found[0].facts)


async def _scans_go_on_where_they_stopped(open_store: OpenStore) -> None:
    records = [Record(seq, 0, 1, seq, b"\x80") for seq in range(1, 1001)]
    async with _opened(open_store, "scans") as store:
        await store.acquire(this_process())
        await store.commit(Batch(1, records))
        for limit in (1, 300, 1000, 5000):
            found: list[Record] = []
            while part := await store.scan(found[-1].seq if found else 0, limit=limit):
                _same(f"no more than limit={limit} records", len(part) <= limit, True)
                found += part
                if limit == 1 and len(found) == 5:
                    break
            _same_records(f"scan in parts of {limit}", found, records[: len(found)])
        _same("scan after the end", await store.scan(1000), [])


async def _chains_are_walked_back(open_store: OpenStore) -> None:
    agents, length = 500, 12
    records: list[Record] = []
    last = [0] * agents
    for _ in range(length):
        for agent in range(agents):
            seq = len(records) + 1
            records.append(Record(seq, last[agent], agent + 1, seq, b"%d" % seq))
            last[agent] = seq
    fork = Record(len(records) + 1, records[agents * 5].seq, agents + 1, 1, b"fork")
    long = [Record(fork.seq + 1 + n, n and fork.seq + n, agents + 2, n, b"x") for n in range(3000)]
    async with _opened(open_store, "chains") as store:
        await store.acquire(this_process())
        await store.commit(Batch(1, [*records, fork, *long]))
        found = await store.load([(seq, 0) for seq in last])
        for agent, chain in enumerate(found):
            _same_records(f"chain of agent {agent + 1}", chain, records[agent::agents])
        first = records[0::agents]
        _same_records("chain down to a stop", (await store.load([(last[0], first[7].seq)]))[0], first[7:])
        _same_records("a stop between records", (await store.load([(last[0], first[7].seq - 1)]))[0], first[7:])
        _same_records("a stop at the end itself", (await store.load([(last[0], last[0])]))[0], first[-1:])
        several = await store.load([(fork.seq, 0), (0, 0), (last[0], 0), (last[0], first[3].seq)])
        _same_records("a fork goes on along the other chain", several[0], [*first[:6], fork])
        _same("an end of 0 is an empty chain", several[1], [])
        _same_records("the same chain twice, whole", several[2], first)
        _same_records("the same chain twice, in part", several[3], first[3:])
        _same_records("a long chain", (await store.load([(long[-1].seq, 0)]))[0], long)
        await _raises(StoreDamagedError, "load of a record that is missing", store.load([(long[-1].seq + 5, 0)]))


async def _heads_are_merged_and_paged(open_store: OpenStore) -> None:
    async with _opened(open_store, "heads") as store:
        await store.acquire(this_process())
        heads = [_head(agent, unfinished=agent % 3 == 0) for agent in range(1, 1001)]
        await store.commit(Batch(1, [], heads[500:]))
        await store.commit(Batch(2, [], heads[:500], 0))
        _same("all heads, in order of agent", await store.heads(), heads)
        _same("unfinished heads", await store.heads(unfinished=True), [head for head in heads if head.unfinished])
        _same("heads of some agents", await store.heads(agents=[7, 2000, 3, 7]), [heads[2], heads[6]])
        _same("heads of no agents", await store.heads(agents=[]), [])
        _same("heads after one, limited", await store.heads(after=10, limit=3), heads[10:13])
        page = await store.heads(unfinished=True, after=10, limit=2)
        _same("unfinished heads after one", page, [heads[11], heads[14]])
        done = [_head(agent, unfinished=False, last_seq=9) for agent in (3, 6)]
        await store.commit(Batch(3, [], done))
        _same("heads written again", await store.heads(agents=[3, 6]), done)
        first = (await store.heads(unfinished=True, limit=1))[0]
        _same("the first unfinished one", first.agent, 9)
        below = [_head(agent, parent=parent) for agent, parent in ((1001, 10), (1002, 1000), (1003, 100))]
        await store.commit(Batch(4, [], [*below, last := _head(1004, unfinished=False)]))
        _same("heads of roots", await store.heads(roots=True, after=999), [heads[999], last])
        _same("heads of roots, limited", await store.heads(roots=True, limit=1), heads[:1])
        _same("unfinished heads of roots", await store.heads(roots=True, unfinished=True, after=999), [])
        _same("heads of roots among some", await store.heads(roots=True, agents=[1003, 1004, 1005]), [last])
    async with _opened(open_store, "heads") as store:
        tenure = await store.acquire(this_process())
        _same("tenure.last_agent after reopening", tenure.last_agent, 1004)
        _same("heads after reopening", (await store.heads(limit=3))[2], done[0])
        _same("heads of roots after reopening", await store.heads(roots=True, after=1000), [last])


async def _a_batch_counts_once(open_store: OpenStore) -> None:
    async with _opened(open_store, "once") as store:
        await store.acquire(this_process())
        batch = Batch(1, _records(1, 3), [_head(1)], 3)
        await store.commit(batch)
        await store.commit(batch)
        await store.commit(Batch(2, _records(4, 2), [_head(1, last_seq=5)]))
        await store.commit(batch)
        _same_records("the log after a batch was repeated", await store.scan(0), _records(1, 5))
        _same("the head after an old batch was repeated", (await store.heads())[0].last_seq, 5)
    async with _opened(open_store, "once") as store:
        tenure = await store.acquire(this_process())
        _same("tenure.heads_seq", tenure.heads_seq, 3)
        await store.commit(Batch(1, _records(6, 1)))
        _same("batch numbers begin anew in a new tenure", len(await store.scan(0)), 6)


async def _a_batch_is_all_or_nothing(open_store: OpenStore) -> None:
    async with _opened(open_store, "whole") as store:
        await store.acquire(this_process())
        await store.commit(Batch(1, _records(1, 3), [_head(1)], 3))
        for bad in (_records(3, 3), _records(5, 3), [*_records(4, 2), *_records(8, 1)]):
            await _raises(
                StoreDamagedError,
                f"a batch of records {[record.seq for record in bad]} after record 3",
                store.commit(Batch(2, bad, [_head(1, last_seq=99), _head(2)], 5)),
            )
            _same_records("the log after a refused batch", await store.scan(0), _records(1, 3))
            _same("the heads after a refused batch", await store.heads(), [_head(1)])
        await store.commit(Batch(2, _records(4, 2)))
        _same_records("the log after the right batch", await store.scan(0), _records(1, 5))
    async with _opened(open_store, "whole") as store:
        tenure = await store.acquire(this_process())
        _same("tenure.heads_seq after a refused batch", tenure.heads_seq, 3)


async def _reads_run_beside_a_commit(open_store: OpenStore) -> None:
    async with _opened(open_store, "beside") as store:
        await store.acquire(this_process())

        async def read() -> None:
            for _ in range(10):
                count = len(await store.scan(0, limit=100_000))
                _same("a scan beside commits sees whole batches of 1,000", count % 1000, 0)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(read)
            for number in range(10):
                await store.commit(Batch(number + 1, _records(number * 1000 + 1, 1000)))


async def _a_cancelled_commit_is_whole_or_absent(open_store: OpenStore) -> None:
    async with _opened(open_store, "cancelled") as store:
        await store.acquire(this_process())
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.commit(Batch(1, _records(1, 20_000)))
        count = len(await store.scan(0, limit=100_000))
        _same("records after a commit in a cancelled scope: all or none", count in (0, 20_000), True)
        await store.commit(Batch(1, _records(1, 20_000)))
        _same("records after the same batch again", len(await store.scan(0, limit=100_000)), 20_000)


async def _a_live_owner_is_not_disturbed(open_store: OpenStore) -> None:
    process = await trio.lowlevel.open_process(["sleep", "600"])
    try:
        owner = owner_of(process.pid)
        async with _opened(open_store, "owned") as first, _opened(open_store, "owned") as second:
            await first.acquire(owner)
            await first.commit(Batch(1, _records(1, 2)))
            error = await _raises(StoreOwnedError, "acquire of an owned store", second.acquire(this_process()))
            _same("the error's pid and state", (error.pid, error.state), (process.pid, "running"))
            _same("the error's text names the pid", str(process.pid) in str(error), True)
            os.kill(process.pid, signal.SIGSTOP)
            await trio.to_thread.run_sync(os.waitid, os.P_PID, process.pid, os.WSTOPPED)
            error = await _raises(StoreOwnedError, "acquire of a stopped one's store", second.acquire(this_process()))
            _same("the error's state", error.state, "stopped" if sys.platform == "linux" else "running")
            await first.commit(Batch(2, _records(3, 2)))
            process.kill()
            await process.wait()
            tenure = await second.acquire(this_process())
            _same("what a dead owner wrote", tenure.last_seq, 4)
            _same("the former owner", tenure.former and tenure.former.pid, owner.pid)
            await _raises(FencedError, "a commit of the former owner", first.commit(Batch(3, _records(5, 1))))
            await second.commit(Batch(1, _records(5, 2)))
            _same_records("the log after that", await second.scan(0), _records(1, 6))
    finally:
        process.kill()
        with trio.move_on_after(5, shield=True):
            await process.wait()


async def _a_takeover_fences_the_owner(open_store: OpenStore) -> None:
    async with _opened(open_store, "fenced") as first, _opened(open_store, "fenced") as second:
        old = await first.acquire(this_process())
        await first.commit(Batch(1, _records(1, 2)))
        await _raises(StoreOwnedError, "acquire beside a live owner", second.acquire(this_process()))
        new = await second.acquire(this_process(), takeover=True)
        _same("the epoch rises", new.epoch > old.epoch, True)
        _same("tenure.last_seq", new.last_seq, 2)
        late = Batch(2, _records(3, 1), [_head(1)], 3)
        await _raises(FencedError, "a late commit of the former owner", first.commit(late))
        await _raises(FencedError, "a repeated commit of the former owner", first.commit(Batch(1, _records(1, 2))))
        await second.commit(Batch(1, _records(3, 2)))
        _same_records("the log holds nothing of the late commit", await second.scan(0), _records(1, 4))
        _same("nor do the heads", await second.heads(), [])
        await first.aclose()
        await second.commit(Batch(2, _records(5, 1)))
    async with _opened(open_store, "fenced") as third:
        _same("a store given back is free", (await third.acquire(this_process())).last_seq, 5)


async def _a_closed_store_refuses(open_store: OpenStore) -> None:
    async with _opened(open_store, "closed") as store:
        await store.acquire(this_process())
        await store.aclose()
        await store.aclose()
        await _raises(StoreError, "a commit after aclose", store.commit(Batch(1, _records(1, 1))))
        await _raises(StoreError, "a scan after aclose", store.scan(0))
    async with _opened(open_store, "closed") as store:
        await _raises(StoreError, "a commit before acquire", store.commit(Batch(1, _records(1, 1))))
        await store.acquire(this_process())


CHECKS: tuple[Callable[[OpenStore], Awaitable[None]], ...] = (
    _an_empty_store_is_empty,
    _records_come_back_byte_for_byte,
    _scans_go_on_where_they_stopped,
    _chains_are_walked_back,
    _heads_are_merged_and_paged,
    _a_batch_counts_once,
    _a_batch_is_all_or_nothing,
    _reads_run_beside_a_commit,
    _a_cancelled_commit_is_whole_or_absent,
    _a_live_owner_is_not_disturbed,
    _a_takeover_fences_the_owner,
    _a_closed_store_refuses,
)
"""Each check alone, for a test runner that wants to name them."""


@asynccontextmanager
async def _opened(open_store: OpenStore, name: str) -> AsyncIterator[Store]:
    store = await open_store(name)
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()


def _records(first: int, count: int) -> list[Record]:
    return [Record(seq, max(seq - 1, 0), 1, 1_000_000 + seq, b"\x80%d" % seq) for seq in range(first, first + count)]


def _head(agent: int, *, parent: int = 0, unfinished: bool = True, last_seq: int = 1) -> Head:
    name = f"agent\0'\N{SNOWMAN}.{agent}"
    return Head(agent, parent, parent or agent, name, "running", unfinished, last_seq, 0, spent_nano=1 << 60)


def _same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"{what}: expected {_short(expected)}, got {_short(found)}")


def _same_records(what: str, found: Sequence[Record], expected: Sequence[Record]) -> None:
    for place, (one, other) in enumerate(zip(found, expected, strict=False)):
        if one != other:
            raise AssertionError(f"{what}: at place {place} expected {_short(other)}, got {_short(one)}")
    _same(f"{what}: how many", len(found), len(expected))


async def _raises(kind: type[_E], what: str, doing: Awaitable[object]) -> _E:
    try:
        result = await doing
    except kind as error:
        return error
    except StoreError as error:
        raise AssertionError(f"{what}: expected {kind.__name__}, got {type(error).__name__}: {error}") from error
    raise AssertionError(f"{what}: expected {kind.__name__}, and it returned {_short(result)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:200]}... ({len(text)} characters)"

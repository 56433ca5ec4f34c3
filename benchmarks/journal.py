"""The rate at which the journal makes records durable, beside the driver's own plain bulk insert in the same run.

The records are those of the swarm benchmark: of each agent its first one with a task of 500 bytes, three steps, the
mail it sends and gets, and its end, one or two a group. All four runs commit 4,096 at a time; the first two encode them
in the same way, by ``encode_facts``, within the time that is measured, for the last two they are encoded before.

- idle: one task appends as fast as it can, from the first append to the last record durable. Heads are not written.
- bulk: the plain way of the driver, the same rows into such a table: ``executemany``, a transaction a batch, COPY on
  Postgres, one ``write`` a batch on JSON lines. Nothing else runs.
- busy: 64 agents keep the loop busy, 30 µs each between two checkpoints; the journal writes beside them.
- busy_bulk: beside the same agents a task hands 4,096 rows at a time to the plain way in a thread.

    python -m benchmarks.journal --records 200000 --store sqlite:journal-bench.db
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import apsw
import trio

from benchmarks.swarm import _PADDING, _refuse_tmpfs
from nanotrio.journal import Journal, JournalLimits
from nanotrio.messages import Text, ToolCall, Usage
from nanotrio.records import (
    ChildEnded,
    Content,
    Fact,
    MailArrived,
    Record,
    Replied,
    Settled,
    Spawned,
    Submitted,
    ToolEnded,
    ToolIntended,
    TurnEnded,
    TurnStarted,
    encode_facts,
)
from nanotrio.stores import open_store, parse_url, this_process

BATCH = 4_096
AGENTS = 64
"""That keep the loop busy."""
WORK_SECONDS = 30e-6
"""Of an agent between two checkpoints, as encoding a request and reading a reply take."""
_USAGE = Usage(1_900, 40, 0, 0)


Row = tuple[int, int, tuple[Fact, ...]]
"""prev, agent, facts."""


def rows(count: int) -> list[list[Row]]:
    """Return groups of records to be encoded, ``count`` in all; numbers begin at 1."""
    body = b"You are one of many agents that work on one large job. " * 75
    groups: list[list[Row]] = [[(0, 0, (Content(blake2b(body, digest_size=16).digest(), body),))]]
    made, agent = 1, 1
    while made < count:
        agent += 1
        for group in _life(agent, made + 1):
            groups.append(group)
            made += len(group)
    groups[-1] = groups[-1][: len(groups[-1]) - (made - count)] or groups[-1]
    return groups


def _life(agent: int, seq: int) -> Iterator[list[Row]]:
    task = f"child 0 {agent} {_PADDING}"[:500]
    call = ToolCall(f"call_{agent}_0", "send_message", f'{{"to":"w.{agent + 1000}","text":"row {agent} is done"}}')
    last = ToolCall(f"call_{agent}_2", "submit_result", f'{{"result":"row {agent} is of kind {agent % 7}"}}')
    result = f'"row {agent} is of kind {agent % 7}"'
    yield [(0, agent, (Spawned(1, 1, 1, f"w.{agent}", 1), MailArrived("prompt", 1, task)))]
    sent = (Replied("scripted/bench", (call,), "tool_use", _USAGE, 0), ToolIntended(call.id))
    yield [(seq, agent, (TurnStarted(1, seq), *sent))]
    mail = (MailArrived("text", agent, f"row {agent} is done", f"w.{agent}"),)
    yield [(seq + 1, agent, (ToolEnded(call.id, f"sent to w.{agent + 1000}"),)), (0, agent + 1_000_000, mail)]
    pause = Replied("scripted/bench", (Text("I have told my sibling."),), "pause", _USAGE, 0)
    yield [(seq + 2, agent, (pause,))]
    end = Replied("scripted/bench", (last,), "tool_use", _USAGE, 0)
    ended = (end, Submitted(result), ToolEnded(last.id, "the result was taken"), TurnEnded("completed", "", result, ""))
    told = ChildEnded(agent, f"w.{agent}", 1, "completed", "", result, "", _USAGE, 0)
    yield [(seq + 4, agent, (*ended, Settled())), (0, 1, (told,))]


def encoded(group: Sequence[Row], seq: int) -> list[Record]:
    """Encode a group as a swarm does."""
    at_us = time.time_ns() // 1_000
    made = []
    for number, (prev, agent, facts) in enumerate(group, seq):
        made.append(Record(number, prev, agent, at_us, encode_facts(facts)))
    return made


class Bulk(Protocol):
    """The plain way of a driver."""

    def write(self, records: Sequence[Record]) -> None:
        """Write a batch."""
        ...

    def close(self) -> None:
        """End."""
        ...


class SqliteBulk:
    """``executemany`` in one transaction a batch, with the journal's settings and checkpoints."""

    def __init__(self, path: Path) -> None:
        self._db = apsw.Connection(str(path))
        self._db.pragma("journal_mode", "wal")
        self._db.pragma("synchronous", "normal")
        self._db.wal_autocheckpoint(4_096)
        self._db.execute("CREATE TABLE log (seq INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT")

    def write(self, records: Sequence[Record]) -> None:
        """Write a batch."""
        from nanotrio.stores.sqlite_file import FRONT

        front = FRONT.pack
        rows = [(each.seq, front(each.prev, each.agent, each.at_us) + each.facts) for each in records]
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO log VALUES (?, ?)", rows)
        self._db.execute("COMMIT")

    def close(self) -> None:
        """End."""
        self._db.close()


class JsonlBulk:
    """One ``write`` a batch of the driver's lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._number = 0

    def write(self, records: Sequence[Record]) -> None:
        """Write a batch."""
        from nanotrio.stores.jsonl_lines import batch_block

        self._number += 1
        self._file.write(batch_block(self._number, records))

    def close(self) -> None:
        """End."""
        self._file.close()


class PostgresBulk:
    """COPY in the binary form, a transaction a batch, on a connection of psycopg's own."""

    def __init__(self, url: str) -> None:
        import psycopg

        from nanotrio.stores.postgres_address import parse_postgres_url

        self._db = psycopg.connect(**parse_postgres_url(url).parameters)
        self._db.execute("DROP TABLE IF EXISTS bulk_bench")
        self._db.execute(
            "CREATE TABLE bulk_bench (seq bigint PRIMARY KEY, prev bigint NOT NULL, agent bigint NOT NULL, "
            "at_us bigint NOT NULL, facts bytea NOT NULL)"
        )
        self._db.commit()

    def write(self, records: Sequence[Record]) -> None:
        """Write a batch."""
        with self._db.cursor() as cursor, cursor.copy("COPY bulk_bench FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int8", "int8", "int8", "int8", "bytea"])
            for each in records:
                copy.write_row((each.seq, each.prev, each.agent, each.at_us, each.facts))
        self._db.commit()

    def close(self) -> None:
        """End."""
        self._db.execute("DROP TABLE bulk_bench")
        self._db.commit()
        self._db.close()


def bulk_of(url: str, path: Path) -> Bulk:
    """Return the plain way of the driver of ``url``."""
    if url.startswith("postgres"):
        return PostgresBulk(url)
    return JsonlBulk(path) if url.startswith("jsonl") else SqliteBulk(path)


async def _with_journal(url: str, work: Callable[[Journal], Awaitable[None]]) -> float:
    """Return the seconds that ``work`` took, with what it appended durable."""
    store = await open_store(url)
    try:
        tenure = await store.acquire(this_process(), takeover=True)
        limits = JournalLimits(max_batch_records=BATCH, heads_records=1 << 60, heads_idle_seconds=float("inf"))
        journal = Journal(store, tenure, lambda _: [], limits=limits)
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            started = time.perf_counter()
            await work(journal)
            await journal.durable(journal.next_seq - 1)
            seconds = time.perf_counter() - started
            nursery.cancel_scope.cancel()
    finally:
        await store.aclose()
    return seconds


async def _idle(url: str, groups: Sequence[Sequence[Row]]) -> float:
    async def work(journal: Journal) -> None:
        for index, group in enumerate(groups):
            journal.append_nowait(encoded(group, journal.next_seq))
            if journal.is_full:
                await journal.room()
            elif index % 256 == 0:
                await trio.lowlevel.checkpoint()

    return await _with_journal(url, work)


def _bulk(bulk: Bulk, groups: Sequence[Sequence[Row]]) -> float:
    started = time.perf_counter()
    seq, waiting = 1, list[Record]()
    for group in groups:
        waiting += encoded(group, seq)
        seq += len(group)
        if len(waiting) >= BATCH:
            bulk.write(waiting)
            waiting = []
    if waiting:
        bulk.write(waiting)
    seconds = time.perf_counter() - started
    bulk.close()
    return seconds


async def _work(done: trio.Event) -> None:
    """Keep the loop busy, as an agent does."""
    while not done.is_set():
        until = time.perf_counter() + WORK_SECONDS
        while time.perf_counter() < until:
            pass
        await trio.lowlevel.checkpoint()


async def _busily(work: Callable[[], Awaitable[None]]) -> None:
    """Do ``work`` beside the agents."""
    done = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(AGENTS):
            nursery.start_soon(_work, done)
        await work()
        done.set()


async def _busy(url: str, groups: Sequence[Sequence[Record]]) -> float:
    async def work(journal: Journal) -> None:
        async def append() -> None:
            for index, group in enumerate(groups):
                journal.append_nowait(group)
                if journal.is_full:
                    await journal.room()
                elif index % 256 == 0:
                    await trio.lowlevel.checkpoint()
            await journal.durable(journal.next_seq - 1)

        await _busily(append)

    return await _with_journal(url, work)


async def _busy_bulk(bulk: Bulk, groups: Sequence[Sequence[Record]]) -> float:
    async def write() -> None:
        waiting = [record for group in groups for record in group]
        for start in range(0, len(waiting), BATCH):
            await trio.to_thread.run_sync(bulk.write, waiting[start : start + BATCH])

    started = time.perf_counter()
    await _busily(write)
    seconds = time.perf_counter() - started
    bulk.close()
    return seconds


def _encode_all(groups: Sequence[Sequence[Row]]) -> list[list[Record]]:
    seq, made = 1, []
    for group in groups:
        made.append(encoded(group, seq))
        seq += len(group)
    return made


def remove(url: str) -> None:
    """Remove a store: its files, or its schema on a server."""
    address = parse_url(url)
    if address.server is not None:
        import psycopg

        with psycopg.connect(**address.server.parameters) as db:
            db.execute(f'DROP SCHEMA IF EXISTS "nanotrio_{address.server.swarm}" CASCADE'.encode())
        return
    for each in address.path.parent.glob(f"{address.path.name}*"):
        with suppress(OSError):
            each.unlink()


def main() -> None:
    """Run the four and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--busy-records", type=int, default=20_000, help="for the two runs on a busy loop")
    parser.add_argument("--store", default="sqlite:journal-bench.db", help="removed before and after")
    args = parser.parse_args()
    path = parse_url(args.store).path
    is_file = not args.store.startswith("postgres")
    if is_file:
        _refuse_tmpfs(path.parent)
    groups = rows(args.records)
    count = sum(len(group) for group in groups)
    few = _encode_all(rows(args.busy_records))
    few_count = sum(len(group) for group in few)
    figures: dict[str, Any] = {}
    plain = path.with_name(f"{path.name}-bulk") if is_file else Path()
    runs: dict[str, Callable[[], float]] = {
        "idle": lambda: trio.run(_idle, args.store, groups),
        "bulk": lambda: _bulk(bulk_of(args.store, plain), groups),
        "busy": lambda: trio.run(_busy, args.store, few),
        "busy_bulk": lambda: trio.run(_busy_bulk, bulk_of(args.store, plain), few),
    }
    for name, run in runs.items():
        remove(args.store)
        figures[f"{name}_records_per_second"] = round((few_count if "busy" in name else count) / run())
    remove(args.store)
    idle, bulk, busy, busy_bulk = figures.values()
    result = {
        "benchmark": "journal",
        "store": args.store.partition(":")[0],
        "records": count,
        "busy_records": few_count,
        "mean_bytes": round(sum(len(record.facts) for group in few for record in group) / few_count),
        **figures,
        "idle_to_bulk": round(idle / bulk, 3),
        "busy_to_busy_bulk": round(busy / busy_bulk, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

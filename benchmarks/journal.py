"""The rate at which the journal makes records durable, beside the driver's own plain bulk insert in the same run.

The records are those of the swarm benchmark: of each agent its first one with a task of 500 bytes, three steps, the
mail it sends and gets, and its end, one or two a group. All runs commit 4,096 at a time; the first two encode them in
the same way, by ``encode_facts``, within the time that is measured, for the others they are encoded before.

- idle: one task appends as fast as it can, from the first append to the last record durable. Heads are not written.
- bulk: the plain way of the driver, the same rows into such a table: ``executemany``, a transaction a batch, COPY on
  Postgres, one ``write`` a batch on JSON lines. Nothing else runs.
- busy: 64 agents keep the loop busy, a fixed piece of work of 30 µs each between two checkpoints; the journal writes
  beside them. What fights the loop for the interpreter's lock varies much: some runs, their median, least and most,
  and beside them the share of the time that the agents worked.
- busy_rows: beside the same agents a task hands 4,096 rows at a time to the driver's row by row way in a thread:
  ``executemany`` on the databases, a ``write`` a line on JSON lines.
- busy_bulk: the same with the plain way of above, where it is another.

All of it with the interpreter tuned as it is while a swarm is open, and the busy runs end after a minute at the latest.

    python -m benchmarks.journal --records 200000 --store sqlite
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import apsw
import trio

from benchmarks._crowd import task_of
from benchmarks._measures import print_result
from benchmarks._places import Place, add_store_arguments, opened_place, remove_store
from nanotrio.fact_form import encode_facts
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
)
from nanotrio.stores import open_store, parse_url, this_process
from nanotrio.swarm.interpreter import tuned_interpreter

BATCH = 4_096
AGENTS = 64
"""That keep the loop busy."""
WORK_SECONDS = 30e-6
"""Of an agent between two checkpoints, as encoding a request and reading a reply take."""
MAX_SECONDS = 60.0
"""Of a run that the loop starves."""
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
    task = task_of(0, agent)
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
    """The plain ways of a driver."""

    def write(self, records: Sequence[Record]) -> None:
        """Write a batch in the way that is meant for many rows."""
        ...

    def write_rows(self, records: Sequence[Record]) -> None:
        """Write a batch row by row."""
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

    write_rows = write

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

    def write_rows(self, records: Sequence[Record]) -> None:
        """Write each line by itself."""
        from nanotrio.stores.jsonl_lines import batch_block

        self._number += 1
        for line in batch_block(self._number, records).splitlines(keepends=True):
            self._file.write(line)

    def close(self) -> None:
        """End."""
        self._file.close()


class PostgresBulk:
    """COPY in the binary form, a transaction a batch, on a connection of psycopg's own."""

    def __init__(self, url: str) -> None:
        import psycopg
        from psycopg.conninfo import make_conninfo

        from nanotrio.stores.postgres_address import parse_postgres_url

        self._db = psycopg.connect(make_conninfo(**parse_postgres_url(url).parameters))
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

    def write_rows(self, records: Sequence[Record]) -> None:
        """Write a batch by ``executemany``."""
        rows = [(each.seq, each.prev, each.agent, each.at_us, each.facts) for each in records]
        with self._db.cursor() as cursor:
            cursor.executemany("INSERT INTO bulk_bench VALUES (%b, %b, %b, %b, %b)", rows)
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


@dataclass
class _Rate:
    """How much became durable in what time."""

    records: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.records / self.seconds


async def _with_journal(url: str, work: Callable[[Journal], Awaitable[None]]) -> _Rate:
    """Return how much of what ``work`` appended is durable when it ends, or when the time is over."""
    store = await open_store(url)
    try:
        tenure = await store.acquire(this_process(), takeover=True)
        limits = JournalLimits(max_batch_records=BATCH, heads_records=1 << 60, heads_idle_seconds=float("inf"))
        journal = Journal(store, tenure, lambda _: [], limits=limits)
        with tuned_interpreter():  # as a swarm does while it is open
            async with trio.open_nursery() as nursery:
                await nursery.start(journal.run)
                started = time.perf_counter()
                with trio.move_on_after(MAX_SECONDS):
                    await work(journal)
                    await journal.durable(journal.next_seq - 1)
                rate = _Rate(journal.durable_seq, time.perf_counter() - started)
                nursery.cancel_scope.cancel()
    finally:
        await store.aclose()
    return rate


async def _append(journal: Journal, groups: Iterable[Sequence[Record]]) -> None:
    for index, group in enumerate(groups):
        journal.append_nowait(group)
        if journal.is_full:
            await journal.room()
        elif index % 256 == 0:
            await trio.lowlevel.checkpoint()


async def _idle(url: str, groups: Sequence[Sequence[Row]]) -> _Rate:
    def made(journal: Journal) -> Iterator[list[Record]]:
        for group in groups:
            yield encoded(group, journal.next_seq)

    return await _with_journal(url, lambda journal: _append(journal, made(journal)))


def _bulk(bulk: Bulk, groups: Sequence[Sequence[Row]]) -> _Rate:
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
    rate = _Rate(seq - 1, time.perf_counter() - started)
    bulk.close()
    return rate


class Loop:
    """A loop kept busy by agents that each do a fixed piece of work between two checkpoints, as fast as they can."""

    def __init__(self) -> None:
        started = time.thread_time()
        for _ in range(1_000_000):
            pass
        self._rounds = range(round(WORK_SECONDS / (time.thread_time() - started) * 1_000_000))
        self._pieces = 0
        self._seconds = 0.0
        self._is_over = False

    async def _agent(self) -> None:
        while not self._is_over:
            for _ in self._rounds:
                pass
            self._pieces += 1
            await trio.lowlevel.checkpoint()

    async def beside(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work`` beside the agents."""
        self._is_over = False
        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(AGENTS):
                nursery.start_soon(self._agent)
            try:
                await work()
            finally:
                self._is_over = True
        self._seconds += time.perf_counter() - started

    @property
    def share(self) -> float:
        """What part of the time the agents worked, had each piece taken what it takes alone."""
        return self._pieces * WORK_SECONDS / self._seconds


async def _busy(url: str, loop: Loop, groups: Sequence[Sequence[Record]]) -> _Rate:
    async def work(journal: Journal) -> None:
        async def append() -> None:
            await _append(journal, groups)
            await journal.durable(journal.next_seq - 1)

        await loop.beside(append)

    return await _with_journal(url, work)


async def _busy_bulk(
    bulk: Bulk, loop: Loop, groups: Sequence[Sequence[Record]], write_batch: Callable[[Sequence[Record]], None]
) -> _Rate:
    records = [record for group in groups for record in group]
    rate = _Rate(0, 0.0)
    started = time.perf_counter()

    async def write() -> None:
        while rate.records < len(records) and rate.seconds < MAX_SECONDS:  # a thread cannot be cancelled
            batch = records[rate.records : rate.records + BATCH]
            await trio.to_thread.run_sync(write_batch, batch)
            rate.records += len(batch)
            rate.seconds = time.perf_counter() - started

    with tuned_interpreter():
        await loop.beside(write)
    bulk.close()
    return rate


def _encode_all(groups: Sequence[Sequence[Row]]) -> list[list[Record]]:
    seq, made = 1, []
    for group in groups:
        made.append(encoded(group, seq))
        seq += len(group)
    return made


Run = Callable[[Loop], _Rate]


class _Ways:
    """All the ways of one place; each run finds nothing there."""

    def __init__(self, place: Place) -> None:
        self._place = place
        is_file = place.server is None and not place.kind.startswith("postgres")
        self._plain = parse_url(place.url).path.with_name("plain-bulk") if is_file else Path()

    def clear(self) -> str:
        """Remove what is there; return the store's address."""
        if self._plain.name:
            remove_store(f"sqlite:{self._plain}")
        return self._place.fresh()

    def bulk(self) -> Bulk:
        """Return the driver's plain way."""
        return bulk_of(self.clear(), self._plain)

    def busy(self, groups: Sequence[Sequence[Record]]) -> Run:
        """Return the journal's run on a busy loop."""
        return lambda loop: trio.run(_busy, self.clear(), loop, groups)

    def busy_plain(self, groups: Sequence[Sequence[Record]], *, row_by_row: bool) -> Run:
        """Return a plain way's run on a busy loop."""

        def run(loop: Loop) -> _Rate:
            bulk = self.bulk()
            return trio.run(_busy_bulk, bulk, loop, groups, bulk.write_rows if row_by_row else bulk.write)

        return run


def _busy_figures(name: str, run: Run, repeats: int) -> dict[str, float]:
    """Return the median, least and most of the rates of some runs, and the agents' share of the time."""
    loop = Loop()
    rates = [run(loop).per_second for _ in range(repeats)]
    return {
        f"{name}_records_per_second": round(statistics.median(rates)),
        f"{name}_least": round(min(rates)),
        f"{name}_most": round(max(rates)),
        f"{name}_loop_share": loop.share,
    }


def _measure(place: Place, args: argparse.Namespace) -> dict[str, float]:
    ways = _Ways(place)
    groups, few = rows(args.records), _encode_all(rows(args.busy_records))
    idle = trio.run(_idle, ways.clear(), groups)
    bulk = _bulk(ways.bulk(), groups)
    figures: dict[str, float] = {
        "records": idle.records,
        "busy_records": sum(map(len, few)),
        "mean_bytes": round(sum(len(record.facts) for group in few for record in group) / sum(map(len, few))),
        "idle_records_per_second": round(idle.per_second),
        "bulk_records_per_second": round(bulk.per_second),
        "idle_to_bulk": idle.per_second / bulk.per_second,
    }
    runs = {
        "busy": ways.busy(few),
        "busy_rows": ways.busy_plain(few, row_by_row=True),
        "busy_bulk": ways.busy_plain(few, row_by_row=False),
    }
    for name, run in runs.items():
        figures |= _busy_figures(name, run, args.repeats)
    ways.clear()
    for name in ("busy_rows", "busy_bulk"):
        figures[f"busy_to_{name}"] = figures["busy_records_per_second"] / figures[f"{name}_records_per_second"]
    return figures


def main() -> None:
    """Run them all and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--busy-records", type=int, default=20_000, help="for the runs on a busy loop")
    parser.add_argument("--repeats", type=int, default=5, help="of each run on a busy loop")
    add_store_arguments(parser)
    args = parser.parse_args()
    with opened_place(args.store, args.folder) as place:
        figures = _measure(place, args)
    print_result({"benchmark": "journal", "store": place.kind, **figures})


if __name__ == "__main__":
    main()

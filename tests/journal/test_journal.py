"""The queue of records and its one writer, on real SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from nanotrio.errors import ClosedError, FencedError, LimitError, StoreDamagedError, StoreError
from nanotrio.fact_form import decode_facts
from nanotrio.journal import Journal, JournalLimits
from nanotrio.records import Content, Head, Record
from nanotrio.stores.owner import this_process
from nanotrio.stores.sqlite import SqliteStore
from nanotrio.stores.store import Tenure
from nanotrio.stores.tail import read_tail
from nanotrio.testing.unreliable_store import UnreliableStore
from tests.stores.failing_disk import FailingDisk


class Bench:
    """A journal over a store in a file, and agents whose heads are their newest record."""

    def __init__(self, store: UnreliableStore, tenure: Tenure, limits: JournalLimits | None) -> None:
        self.store = store
        self.last: dict[int, int] = {}
        self.asked: list[list[int]] = []
        self.journal = Journal(store, tenure, self.heads, limits=limits)

    def heads(self, agents: Iterable[int]) -> list[Head]:
        agents = list(agents)
        self.asked.append(agents)
        return [Head(agent, 0, agent, f"a.{agent}", "running", True, self.last[agent], 0) for agent in agents]

    def append(self, *agents: int, size: int = 10) -> int:
        group = []
        for seq, agent in enumerate(agents, start=self.journal.next_seq):
            group.append(Record(seq, self.last.get(agent, 0), agent, 0, b"x" * size))
            self.last[agent] = seq
        self.journal.append_nowait(group)
        return self.journal.next_seq - 1


@asynccontextmanager
async def _bench(path: Path, limits: JournalLimits | None = None, vfs: str = "") -> AsyncIterator[Bench]:
    store = UnreliableStore(await SqliteStore.open(path / "swarm.db", vfs=vfs))
    tenure = await store.acquire(this_process())
    bench = Bench(store, tenure, limits)
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.journal.run)
        yield bench
        nursery.cancel_scope.cancel()
    await store.aclose()


def _run(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_record_is_durable_when_the_wait_returns(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path) as bench:
            start = trio.current_time()
            seq = bench.append(1, 2)
            assert bench.journal.durable_seq == 0
            await bench.journal.durable(seq)
            assert bench.journal.durable_seq == 2
            assert trio.current_time() == start, "nobody gathers while somebody waits"
            looker = await SqliteStore.open(tmp_path / "swarm.db", read_only=True)
            assert [record.seq for record in await looker.scan(0)] == [1, 2]
            await looker.aclose()
            await bench.journal.durable(1)

    _run(main)


def test_records_gather_for_a_while_when_nobody_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path) as bench:
            bench.append(1)
            await trio.sleep(0.015)
            bench.append(1)
            assert bench.journal.statistics().durable_seq == 0
            await trio.sleep(0.010)
            assert bench.journal.durable_seq == 2
            assert bench.journal.statistics().batches == 1

    _run(main)


def test_a_full_batch_does_not_wait_for_more_and_groups_are_never_cut(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path, JournalLimits(max_batch_records=3)) as bench:
            start = trio.current_time()
            for _ in range(10):
                bench.append(1, 2)
            await bench.journal.durable(20)
            assert trio.current_time() == start
            assert bench.journal.statistics().batches == 5, "two groups of two reach the bound of three"
            bench.append(*range(1, 11))
            await bench.journal.durable(30)
            assert bench.journal.statistics().batches == 6, "a large group goes whole"

    _run(main)


def test_thousands_of_waiters_are_all_woken(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path, JournalLimits(max_batch_records=500)) as bench, trio.open_nursery() as nursery:
            for agent in range(1, 3001):
                nursery.start_soon(bench.journal.durable, bench.append(agent))
        assert bench.journal.durable_seq == 3000

    _run(main)


def test_cancelling_a_wait_ends_the_wait_only(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path) as bench:
            bench.store.error = StoreError("no")
            seq = bench.append(1)
            for wait in (bench.journal.flush, lambda: bench.journal.durable(seq)):
                with trio.move_on_after(1) as scope:
                    await wait()
                assert scope.cancelled_caught
            bench.store.error = None
            await bench.journal.durable(seq)

    _run(main)


def test_appenders_wait_at_the_bound_and_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path, JournalLimits(max_queued_records=10)) as bench:
            await bench.journal.room()
            bench.store.error = StoreError("the disk is full")
            for _ in range(9):
                bench.append(1)
            bench.append(1)
            assert bench.journal.is_full
            with trio.move_on_after(60) as scope:
                await bench.journal.room()
            assert scope.cancelled_caught
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(bench.journal.room)
                await trio.testing.wait_all_tasks_blocked()
                bench.store.error = None
            assert bench.journal.durable_seq == 10

    _run(main)


def test_the_bound_in_bytes_holds_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path, JournalLimits(max_queued_bytes=1000)) as bench:
            bench.append(1, size=600)
            await bench.journal.room()
            assert bench.journal.durable_seq == 0, "below the bound nobody waits for the writer"
            bench.append(1, size=600)
            assert bench.journal.is_full
            await bench.journal.room()
            assert bench.journal.statistics().durable_seq == 2

    _run(main)


def test_trouble_shows_at_once_and_ends_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path) as bench:
            journal = bench.journal
            bench.store.error = StoreError("the disk that holds swarm.db is full")
            seq = bench.append(1)
            assert "is full" in await journal.wait_trouble_change("")
            assert journal.statistics().trouble == journal.trouble
            async with trio.open_nursery() as nursery:
                nursery.start_soon(journal.durable, seq)
                await trio.sleep(10)
                assert journal.durable_seq == 0
                assert 10 <= bench.store.refused <= 20, "tried again about once a second"
                bench.store.error = None
            assert journal.statistics().trouble == ""
            assert await journal.wait_trouble_change("is full") == ""
            await journal.durable(bench.append(1))

    _run(main)


def test_a_lost_answer_does_not_write_a_batch_twice(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path) as bench:
            bench.store.lost_answers = 2
            await bench.journal.durable(bench.append(1, 2))
            await bench.journal.durable(bench.append(1))
            assert bench.store.refused == 2
            assert [record.seq for record in await bench.store.scan(0)] == [1, 2, 3]

    _run(main)


def test_a_full_disk_is_waited_out_by_the_real_driver(tmp_path: Path) -> None:
    disk = FailingDisk("full-for-two-seconds")

    async def main() -> None:
        async with _bench(tmp_path, vfs=disk.name) as bench:
            await bench.journal.durable(bench.append(1))
            disk.suffix, disk.full = "-wal", True
            seq = bench.append(1, 2, 3)
            assert "is full" in await bench.journal.wait_trouble_change("")
            await trio.sleep(2)
            assert bench.journal.durable_seq == 1
            disk.full = False
            await bench.journal.durable(seq)
            assert bench.journal.trouble == ""
            assert len(await bench.store.scan(0)) == 4

    _run(main)
    disk.unregister()


@pytest.mark.parametrize("error", [FencedError("taken over"), StoreDamagedError("torn")])
def test_a_final_failure_reaches_everyone_who_waits(tmp_path: Path, error: StoreError) -> None:
    async def main() -> None:
        async with _bench(tmp_path, JournalLimits(max_queued_records=3)) as bench:
            journal = bench.journal
            bench.store.error = error
            failures = []

            async def expect(wait: Callable[[], Awaitable[None]]) -> None:
                with pytest.raises(type(error), match=str(error)) as caught:
                    await wait()
                failures.append(caught.value)

            async with trio.open_nursery() as nursery:
                seq = bench.append(1, 2, 3)
                nursery.start_soon(expect, lambda: journal.durable(seq))
                nursery.start_soon(expect, journal.flush)
                nursery.start_soon(expect, journal.room)
                assert isinstance(await journal.wait_failed(), type(error))
            assert len(failures) == len({id(failure) for failure in failures}) == 3
            await expect(lambda: journal.durable(seq))
            with pytest.raises(type(error)):
                bench.append(1)
            with pytest.raises(type(error)):
                await journal.aclose(trio.current_time() + 1)

    _run(main)


def test_flush_writes_the_heads_of_agents_with_records_and_marks_them_true(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path, JournalLimits(heads_slice=10)) as bench:
            for agent in range(1, 36):
                bench.append(agent, 1)
            await bench.journal.flush()
            assert bench.journal.heads_seq == bench.journal.durable_seq == 70
            assert [len(agents) for agents in bench.asked] == [10, 10, 10, 5]
            heads = await bench.store.heads()
            assert {head.agent: head.last_seq for head in heads} == bench.last
            bench.append(7)
            await bench.journal.flush()
            assert bench.asked[4:] == [[7]], "only what changed since"
            await bench.journal.flush()
            assert len(bench.asked) == 5
        looker = await SqliteStore.open(tmp_path / "swarm.db")
        assert (await looker.acquire(this_process())).heads_seq == 71
        await looker.aclose()

    _run(main)


def test_heads_are_written_after_many_records_and_after_idleness(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path, JournalLimits(heads_records=100)) as bench:
            for _ in range(99):
                await bench.journal.durable(bench.append(1))
            assert bench.journal.statistics().heads_seq == 0
            await bench.journal.durable(bench.append(2))
            assert bench.journal.statistics().heads_seq == 100
            await bench.journal.durable(bench.append(3))
            await trio.sleep(1.9)
            assert bench.journal.statistics().heads_seq == 100
            await trio.sleep(0.2)
            assert bench.journal.statistics().heads_seq == 101
            batches = bench.journal.statistics().batches
            await trio.sleep(3600)
            assert bench.journal.statistics().batches == batches, "an idle journal writes nothing"

    _run(main)


def test_heads_keep_up_with_new_agents_however_fast_they_come(tmp_path: Path) -> None:
    async def main() -> None:
        limits = JournalLimits(heads_records=100, heads_slice=4, max_batch_records=50, max_queued_records=200)
        async with _bench(tmp_path, limits) as bench:
            behind = []
            for agent in range(1, 3_000):
                bench.append(agent, agent, agent, agent)
                await bench.journal.room()
                behind.append(bench.journal.durable_seq - bench.journal.heads_seq)
            assert max(behind[-1_000:]) <= 800
            await bench.journal.flush()

    _run(main)


def test_heads_never_run_ahead_of_the_log(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path, JournalLimits(heads_records=20, heads_slice=2, max_batch_records=4)) as bench:
            looker = await SqliteStore.open(tmp_path / "swarm.db", read_only=True)
            for turn in range(60):
                for agent in range(1, 8):
                    bench.append(agent, agent + 10)
                await trio.lowlevel.checkpoint()
                if turn % 5 == 0:
                    heads = await looker.heads()
                    assert max((head.last_seq for head in heads), default=0) <= len(await looker.scan(0, limit=100_000))
            await bench.journal.flush()
            await looker.aclose()

    _run(main)


def test_what_followed_the_heads_is_read_back_and_its_heads_are_written(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path) as bench:
            bench.append(1, 2)
            await bench.journal.flush()
            group: list[Record] = []
            content = bench.journal.content(b"shared", 5, group)
            bench.journal.append_nowait(group)
            await bench.journal.durable(bench.append(5, 2, 5))
        store = await SqliteStore.open(tmp_path / "swarm.db")
        tenure = await store.acquire(this_process())
        assert (tenure.last_seq, tenure.heads_seq, tenure.last_agent) == (6, 2, 2)
        tail = await read_tail(store, tenure.heads_seq)
        assert tail.last_seq == {5: 6, 2: 5}
        assert (tail.last_agent, tail.records) == (5, 4)
        with pytest.raises(ValueError, match="read the store's tail"):
            Journal(store, tenure, bench.heads)
        bench.asked.clear()
        journal = Journal(store, tenure, bench.heads, tail=tail)
        group = []
        assert journal.content(b"shared", 6, group) == content
        assert group == []
        await journal.aclose(trio.current_time() + 5)
        assert [sorted(agents) for agents in bench.asked] == [[2, 5]]
        assert [head.last_seq for head in await store.heads()] == [1, 5, 6]
        await store.aclose()

    trio.run(main)


def test_content_is_stored_once_and_known_only_when_it_was_appended(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path, JournalLimits(max_contents=2)) as bench:
            journal = bench.journal
            bench.append(1)
            dropped: list[Record] = []
            assert journal.content(b"one", 5, dropped) == 2
            bench.append(1)
            group: list[Record] = []
            assert journal.content(b"one", 5, group) == 3
            assert journal.content(b"two", 5, group) == 4
            assert journal.content(b"one", 5, group) == 3
            journal.append_nowait(group)
            (fact,) = decode_facts(group[0].facts)
            assert isinstance(fact, Content)
            assert (fact.body, len(fact.digest), len(group)) == (b"one", 16, 2)
            later: list[Record] = []
            assert journal.content(b"two", 6, later) == 4
            assert journal.content(b"one", 6, later) == 3
            assert journal.content(b"three", 6, later) == 5
            journal.append_nowait(later)
            assert journal.content(b"one", 7, []) == 3
            assert journal.content(b"two", 7, []) == 6, "the oldest was forgotten, and is stored again"
            await journal.flush()
            assert [head.agent for head in await bench.store.heads()] == [1]

    _run(main)


def test_a_wrong_number_or_a_record_too_large_is_refused_and_queues_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path, JournalLimits(max_record_bytes=100)) as bench:
            with pytest.raises(ValueError, match="numbered 2 was appended where 1 comes next"):
                bench.journal.append_nowait([Record(2, 0, 1, 0, b"")])
            with pytest.raises(LimitError, match="max_record_bytes"):
                bench.journal.append_nowait([Record(1, 0, 9, 0, b"x" * 101)])
            with pytest.raises(ValueError, match="record 1 was not appended"):
                await bench.journal.durable(1)
            assert bench.journal.statistics().queued_records == 0
            bench.append(1, 1, size=60)
            await bench.journal.flush()
            assert bench.asked == [[1]]

    _run(main)


def test_closing_in_a_cancelled_scope_writes_all_that_is_queued(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SqliteStore.open(tmp_path / "swarm.db")
        bench = Bench(UnreliableStore(store), await store.acquire(this_process()), JournalLimits(max_batch_records=10))
        async with trio.open_nursery() as nursery:
            await nursery.start(bench.journal.run)
            for agent in range(1, 101):
                bench.append(agent)
            nursery.cancel_scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            finally:
                # It shields itself.
                await bench.journal.aclose(trio.current_time() + 5)  # noqa: ASYNC102
                await bench.journal.aclose(trio.current_time() + 5)  # noqa: ASYNC102
        assert bench.journal.durable_seq == bench.journal.heads_seq == 100
        with pytest.raises(ClosedError):
            bench.append(1)
        assert len(await store.heads()) == len(await store.scan(0)) == 100
        await store.aclose()

    trio.run(main)


def test_closing_while_the_writer_runs_lets_it_finish(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path) as bench, trio.open_nursery() as nursery:
            seq = bench.append(1, 2, 3)
            nursery.start_soon(bench.journal.durable, seq)
            await bench.journal.aclose(trio.current_time() + 5)
            assert bench.journal.heads_seq == 3

    _run(main)


def test_closing_a_store_that_fails_gives_up_at_the_deadline_and_says_what_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path) as bench:
            bench.store.error = StoreError("the disk is full")
            bench.append(1, 2, 3)
            ended = []

            async def wait() -> None:
                with pytest.raises(ClosedError):
                    await bench.journal.durable(3)
                ended.append(True)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(StoreError, match=r"3 of the records could not be written.*the disk is full"):
                    await bench.journal.aclose(trio.current_time() + 5)
            assert ended

    _run(main)


def test_a_journal_has_one_writer(tmp_path: Path) -> None:
    async def main() -> None:
        async with _bench(tmp_path) as bench:
            with pytest.raises(RuntimeError, match="one writer"):
                await bench.journal.run()

    _run(main)

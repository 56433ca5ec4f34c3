"""The SQLite driver beyond what every driver promises: its file, other people's files, and its write-ahead log."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from nanotrio.errors import NewerStoreError, NotAStoreError, StoreDamagedError, StoreError, StoreOwnedError
from nanotrio.records import Head, Record
from nanotrio.stores.owner import this_process
from nanotrio.stores.place import file_size
from nanotrio.stores.sqlite import SqliteStore
from nanotrio.stores.store import Batch
from nanotrio.testing.check_store import CHECKS, OpenStore
from tests.stores.failing_disk import FailingDisk


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.strip("_"))
def test_keeps_every_promise_of_a_store(check: Callable[[OpenStore], Awaitable[None]], tmp_path: Path) -> None:
    async def main() -> None:
        await check(lambda name: SqliteStore.open(tmp_path / f"{name}.db"))

    trio.run(main)


def test_keeps_every_promise_with_fsync_too(tmp_path: Path) -> None:
    async def main() -> None:
        for check in CHECKS:
            await check(lambda name: SqliteStore.open(tmp_path / f"{name}.db", fsync=True))

    trio.run(main)


def _records(first: int, count: int, size: int = 100) -> list[Record]:
    return [Record(seq, max(seq - 1, 0), 1, 0, b"x" * size) for seq in range(first, first + count)]


async def _store(path: Path, **options: object) -> SqliteStore:
    store = await SqliteStore.open(path, **options)  # type: ignore[arg-type]
    await store.acquire(this_process())
    return store


def _listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_only_the_owner_can_read_the_files_and_the_folders_made_for_them(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    async def main() -> None:
        path = tmp_path / "one" / "two" / "swarm.db"
        store = await _store(path)
        await store.commit(Batch(1, _records(1, 1)))
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        assert modes == {"swarm.db": 0o600, "swarm.db-wal": 0o600, "swarm.db-shm": 0o600}
        assert [stat.S_IMODE(folder.stat().st_mode) for folder in path.parents[:3]] == [0o700, 0o700, 0o755]
        await store.aclose()
        assert list(_listing(path.parent)) == ["swarm.db"]

    old = os.umask(0)
    try:
        trio.run(main)
    finally:
        os.umask(old)


def test_nothing_is_made_before_the_store_is_acquired(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SqliteStore.open(tmp_path / "new" / "swarm.db")
        with pytest.raises(StoreError, match="there is no store at"):
            await store.heads()
        await store.aclose()
        assert not (tmp_path / "new").exists()

    trio.run(main)


def test_an_empty_file_becomes_a_store_that_only_its_owner_can_read(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "made-by-mktemp"
        path.touch(0o644)
        await (await _store(path)).aclose()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    trio.run(main)


def _other_program(path: Path, mode: str, **pragmas: int) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", mode)
    connection.execute("CREATE TABLE note (text)")
    for name, value in pragmas.items():
        connection.pragma(name, value)
    connection.close()


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"{}\n" * 200, NotAStoreError, "no SQLite file"),
        (b"x", NotAStoreError, "no SQLite file"),
        ({"mode": "delete"}, NotAStoreError, "of another program"),
        ({"mode": "wal", "user_version": 7}, NotAStoreError, "of another program"),
        ({"mode": "delete", "application_id": 0x6E74726F, "user_version": 99}, NewerStoreError, "upgrade nanotrio"),
        ({"mode": "wal", "application_id": 0x6E74726F, "user_version": 99}, NewerStoreError, "form 99"),
    ],
)
def test_a_file_that_is_no_store_of_ours_is_refused_and_untouched(
    content: object, error: type[Exception], words: str, tmp_path: Path
) -> None:
    async def main() -> None:
        path = tmp_path / "file"
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, dict):
            _other_program(path, **content)
        before = _listing(tmp_path)
        for read_only in (False, True):
            with pytest.raises(error, match=words):
                await SqliteStore.open(path, read_only=read_only)
        assert _listing(tmp_path) == before

    trio.run(main)


def test_a_place_where_no_file_can_be_is_refused_in_one_line(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(NotAStoreError, match="is a directory"):
            await SqliteStore.open(tmp_path)
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(NotAStoreError, match="no regular file"):
            await SqliteStore.open(tmp_path / "fifo")
        (tmp_path / "file").write_text("x")
        with pytest.raises(StoreError, match="Not a directory"):
            await SqliteStore.open(tmp_path / "file" / "swarm.db")
        with pytest.raises(StoreError, match="there is no store at"):
            await SqliteStore.open(tmp_path / "absent.db", read_only=True)
        with pytest.raises(StoreError, match="File name too long"):
            await SqliteStore.open(tmp_path / ("x" * 300))
        store = await SqliteStore.open(Path("/proc/nanotrio.db"))
        with pytest.raises(StoreError, match=r"cannot make a store at /proc/nanotrio\.db"):
            await store.acquire(this_process())

    trio.run(main)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_a_file_without_permission_is_refused_in_one_line(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "swarm.db"
        await (await _store(path)).aclose()
        path.chmod(0o400)
        with pytest.raises(StoreError, match="cannot be written"):
            await _store(path)
        path.chmod(0)
        with pytest.raises(StoreError, match="cannot be read: permission denied"):
            await SqliteStore.open(path)

    trio.run(main)


def test_damage_in_the_middle_is_loud(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "swarm.db"
        store = await _store(path)
        await store.commit(Batch(1, _records(1, 2000)))
        await store.aclose()
        with path.open("r+b") as file:
            file.seek(20 * 4096)
            file.write(bytes(4096 * 30))
        store = await _store(path)
        with pytest.raises(StoreDamagedError, match="is damaged"):
            await store.scan(0)
        with pytest.raises(StoreDamagedError, match="is damaged"):
            await store.load([(2000, 0)])
        await store.aclose()

    trio.run(main)


def test_threads_that_tools_occupy_never_starve_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        limiter = trio.to_thread.current_default_thread_limiter()
        while limiter.available_tokens:
            limiter.acquire_on_behalf_of_nowait(object())
        with trio.fail_after(30):
            store = await _store(tmp_path / "swarm.db")
            await store.commit(Batch(1, _records(1, 5000)))
            assert len(await store.scan(0, limit=10_000)) == 5000
            assert len((await store.load([(5000, 0)]))[0]) == 5000
            await store.aclose()

    trio.run(main)


def test_a_file_that_is_removed_or_replaced_takes_no_more_records_until_it_is_back(tmp_path: Path) -> None:
    async def main() -> None:
        path, elsewhere = tmp_path / "swarm.db", tmp_path / "moved.db"
        store = await _store(path)
        await store.commit(Batch(1, _records(1, 3)))
        path.rename(elsewhere)
        with pytest.raises(StoreError, match="removed or replaced"):
            await store.commit(Batch(2, _records(4, 1)))
        path.write_bytes(b"")
        with pytest.raises(StoreError, match="removed or replaced"):
            await store.commit(Batch(2, _records(4, 1)))
        elsewhere.rename(path)
        await store.commit(Batch(2, _records(4, 1)))
        assert len(await store.scan(0)) == 4
        await store.aclose()

    trio.run(main)


def test_a_store_can_be_looked_into_while_its_owner_runs(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "swarm.db"
        store = await _store(path)
        await store.commit(Batch(1, _records(1, 3), [Head(1, 0, 1, "a.1", "idle", False, 3, 0)], 3))
        looker = await SqliteStore.open(path, read_only=True)
        assert len(await looker.scan(0)) == 3
        await store.commit(Batch(2, _records(4, 1)))
        assert len((await looker.load([(4, 0)]))[0]) == 4
        assert [head.name for head in await looker.heads()] == ["a.1"]
        assert (await looker.statistics()).records == 4
        with pytest.raises(StoreError, match="opened for reading"):
            await looker.acquire(this_process())
        await looker.aclose()
        await store.commit(Batch(3, _records(5, 1)))
        other = await SqliteStore.open(path)
        with pytest.raises(StoreOwnedError):
            await other.acquire(this_process())
        await other.aclose()
        await store.commit(Batch(4, _records(6, 1)))
        await store.aclose()

    trio.run(main)


def test_the_write_ahead_log_stays_bounded_and_a_reader_that_keeps_it_is_told_of(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "swarm.db"
        wal = Path(f"{path}-wal")
        store = await _store(path)
        number, first = 0, 1

        async def write(megabytes: int) -> None:
            nonlocal number, first
            for _ in range(megabytes):
                number += 1
                await store.commit(Batch(number, _records(first, 64, 16_384)))
                first += 64

        await write(60)
        assert file_size(wal) < 20 << 20
        reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM owner").fetchall()
        await write(40)
        statistics = await store.statistics()
        assert "a reader keeps the write-ahead log" in statistics.warning
        assert statistics.pending_bytes > 30 << 20
        reader.execute("COMMIT")
        await write(60)
        assert (await store.statistics()).warning == ""
        reader.close()
        await store.aclose()
        assert file_size(wal) == 0

    trio.run(main)


def test_another_programs_transaction_is_waited_for_while_the_loop_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "swarm.db"
        store = await _store(path)
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.commit, Batch(1, _records(1, 3)))
            await trio.sleep(3)
            other.execute("COMMIT")
        assert len(await store.scan(0)) == 3
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"another program keeps .* busy"):
            await store.commit(Batch(2, _records(4, 1)))
        with trio.move_on_after(1) as scope:
            await store.commit(Batch(2, _records(4, 1)))
        assert scope.cancelled_caught
        other.execute("COMMIT")
        await store.commit(Batch(2, _records(4, 1)))
        assert len(await store.scan(0)) == 4
        other.close()
        await store.aclose()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("count", [3, 1000])
@pytest.mark.parametrize("suffix", ["-wal", ".db"])
def test_a_full_disk_refuses_a_batch_whole_and_takes_it_later(tmp_path: Path, count: int, suffix: str) -> None:
    disk = FailingDisk("full")

    async def main() -> None:
        store = await _store(tmp_path / "swarm.db", vfs=disk.name)
        await store.commit(Batch(1, _records(1, 2)))
        disk.suffix, disk.full = suffix, True
        if suffix == "-wal":  # The main file is not written before the log is moved.
            for _ in range(3):
                with pytest.raises(StoreError, match="is full; free some space"):
                    await store.commit(Batch(2, _records(3, count)))
            assert len(await store.scan(0)) == 2
            assert disk.failures
        disk.full = False
        await store.commit(Batch(2, _records(3, count)))
        assert len(await store.scan(0)) == 2 + count
        disk.full = True
        await store.aclose()
        disk.full = False
        store = await SqliteStore.open(tmp_path / "swarm.db", vfs=disk.name)
        # The row could not be given back, so it still names this process.
        tenure = await store.acquire(this_process(), takeover=True)
        assert tenure.last_seq == 2 + count
        assert len(await store.scan(0)) == 2 + count
        await store.aclose()

    trio.run(main)
    disk.unregister()

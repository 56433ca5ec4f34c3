"""The JSONL driver beyond what every driver promises: its files, torn ends, damage, and fenced owners."""

from __future__ import annotations

import json
import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from nanotrio.counted import counted
from nanotrio.errors import FencedError, NewerStoreError, NotAStoreError, StoreDamagedError, StoreError, StoreOwnedError
from nanotrio.records import Record
from nanotrio.stores.jsonl import JsonlStore
from nanotrio.stores.jsonl_lines import Claim
from nanotrio.stores.jsonl_log import Log, check_log, claim_segment
from nanotrio.stores.owner import this_process
from nanotrio.stores.store import Batch
from nanotrio.testing.check_store import CHECKS, OpenStore
from tests.stores.jsonl_files import (
    acquired,
    files_in,
    largest_file,
    make_head,
    make_records,
    remove_all,
    write_batches,
)

WRITER = Path(__file__).with_name("write_until_killed.py")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.strip("_"))
async def test_keeps_every_promise_of_a_store(check: Callable[[OpenStore], Awaitable[None]], tmp_path: Path) -> None:
    await check(lambda name: JsonlStore.open(tmp_path / f"{name}.jsonl"))


async def test_keeps_every_promise_with_fsync_too(tmp_path: Path) -> None:
    for check in CHECKS:
        await check(lambda name: JsonlStore.open(tmp_path / f"{name}.jsonl", fsync=True))


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


async def test_only_the_owner_can_read_the_files_and_the_folders_made_for_them(open_folder: Path) -> None:
    path = open_folder / "one" / "two" / "swarm.jsonl"
    old = os.umask(0)
    try:
        await write_batches(path, Batch(1, make_records(1, 1), [make_head(1)]))
        await write_batches(path)
    finally:
        os.umask(old)
    modes = {name: _mode(file) for name, file in files_in(path.parent).items()}
    assert modes == {"swarm.jsonl": 0o600, "swarm.jsonl.2": 0o600, "swarm.jsonl.heads": 0o600}
    assert [_mode(folder) for folder in path.parents[:3]] == [0o700, 0o700, 0o755]


async def test_nothing_is_made_before_the_store_is_acquired(tmp_path: Path) -> None:
    store = await JsonlStore.open(tmp_path / "new" / "swarm.jsonl")
    with pytest.raises(StoreError, match="there is no store at"):
        await store.heads()
    await store.aclose()
    assert not (tmp_path / "new").exists()


async def test_an_empty_file_becomes_a_store_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "made-by-mktemp"
    path.touch(0o644)
    await write_batches(path, Batch(1, make_records(1, 1)))
    assert _mode(path) == 0o600


async def test_every_line_is_an_object_that_any_json_tool_reads(tmp_path: Path) -> None:
    path = tmp_path / "swarm.jsonl"
    await write_batches(path, Batch(1, make_records(1, 2)), Batch(2, make_records(3, 1)))
    lines = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
    assert [line["seq"] for line in lines if "seq" in line] == [1, 2, 3]
    assert [line["count"] for line in lines if "batch" in line] == [2, 1]
    assert lines[0]["owner"]["pid"] == os.getpid()
    assert lines[-1] == {"released": True}


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"{}\n" * 200, NotAStoreError, "not a nanotrio store"),
        (b"x", NotAStoreError, "not a nanotrio store"),
        (b'{"nanotrio":"heads"}\n', NotAStoreError, "not a nanotrio store"),
        (b"\xff\xfe\x00\n", NotAStoreError, "not a nanotrio store"),
        (b"SQLite format 3\0" + bytes(4096), NotAStoreError, "not a nanotrio store"),
        (b'{"nanotrio":"log","form":99,"what":1}\n', NewerStoreError, "upgrade nanotrio"),
    ],
)
async def test_a_file_that_is_no_store_of_ours_is_refused_and_untouched(
    content: bytes, error: type[Exception], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(error, match=words):
            await JsonlStore.open(path, read_only=read_only)
    assert {name: file.read_bytes() for name, file in files_in(tmp_path).items()} == {"file": content}


async def test_a_place_where_no_file_can_be_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="is a directory"):
        await JsonlStore.open(tmp_path)
    with pytest.raises(StoreError, match="there is no store at"):
        await JsonlStore.open(tmp_path / "absent", read_only=True)
    store = await JsonlStore.open(Path("/proc/nanotrio.jsonl"))
    with pytest.raises(StoreError, match=r"cannot make a store at /proc/nanotrio\.jsonl"):
        await store.acquire(this_process())
    await store.aclose()


async def test_a_batch_cut_short_at_any_byte_is_told_of_and_never_joined(tmp_path: Path) -> None:
    path = tmp_path / "swarm.jsonl"
    store = await acquired(path)
    await store.commit(Batch(1, make_records(1, 3), [make_head(1)], 3))
    before = path.stat().st_size
    heads = (tmp_path / "swarm.jsonl.heads").read_bytes()
    await store.commit(Batch(2, make_records(4, 2, 20)))
    whole = path.read_bytes()
    await store.aclose()
    for cut in range(before, len(whole)):
        remove_all(tmp_path)
        path.write_bytes(whole[:cut])
        (tmp_path / "swarm.jsonl.heads").write_bytes(heads)
        looker = await JsonlStore.open(path, read_only=True)
        assert len(await looker.scan(0)) == 3
        store = await JsonlStore.open(path)
        tenure = await store.acquire(this_process(), takeover=True)
        assert (tenure.last_seq, tenure.heads_seq) == (3, 3)
        warning = (await store.statistics()).warning
        assert (f"({counted(cut - before, 'byte')}) was cut short by a crash" in warning) == (cut > before), warning
        await store.commit(Batch(1, make_records(4, 3)))
        assert await store.scan(0) == make_records(1, 6)
        assert len(await looker.scan(0)) == 6
        await looker.aclose()
        await store.aclose()
        store = await acquired(path)
        assert await store.scan(0) == make_records(1, 6)
        assert (await store.load([(6, 0)]))[0] == make_records(1, 6)
        assert (await store.statistics()).warning == ""
        await store.aclose()


@pytest.mark.parametrize("zeros", [1, 300, 5000])
async def test_zeros_that_a_loss_of_power_left_at_the_end_are_a_torn_end(zeros: int, tmp_path: Path) -> None:
    path = tmp_path / "swarm.jsonl"
    store = await acquired(path)
    await store.commit(Batch(1, make_records(1, 3)))
    before = path.stat().st_size
    await store.commit(Batch(2, make_records(4, 20)))
    whole = path.read_bytes()
    await store.aclose()
    for size in (before, before + 300):
        path.write_bytes(whole[:size] + bytes(zeros))
        looker = await JsonlStore.open(path, read_only=True)
        assert len(await looker.scan(0)) == 3
        assert "cut short by a crash" in (await looker.statistics()).warning
        await looker.aclose()
    path.write_bytes(whole[:-1000] + bytes(1000))
    looker = await JsonlStore.open(path, read_only=True)
    assert len(await looker.scan(0)) == 3
    await looker.aclose()


@pytest.mark.parametrize("size", [100, 20_000])
async def test_damage_in_the_middle_is_loud_and_names_byte_and_command(size: int, tmp_path: Path) -> None:
    path = tmp_path / "swarm.jsonl"
    await write_batches(path, *[Batch(number, make_records(number * 10 - 9, 10, size)) for number in range(1, 101)])
    whole = path.read_bytes()
    for at in (1000, len(whole) // 2, len(whole) - 60_000):
        path.write_bytes(whole[:at] + bytes(4096) + whole[at + 4096 :])
        with pytest.raises(StoreDamagedError, match=rf"damaged at byte \d+ .*`nanotrio store repair jsonl:{path}`"):
            store = await acquired(path)
            try:
                await store.scan(0)
            finally:
                await store.aclose()
                remove_all(tmp_path, "swarm.jsonl.[0-9]")
        path.write_bytes(whole[:at] + whole[at + 1 :])
        with pytest.raises(StoreDamagedError):
            await (await JsonlStore.open(path, read_only=True)).scan(0, limit=10_000)


async def test_a_missing_segment_is_damage_and_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "swarm.jsonl"
    for number in range(3):
        await write_batches(path, Batch(1, make_records(number + 1, 1)))
    (tmp_path / "swarm.jsonl.2").rename(tmp_path / "away")
    with pytest.raises(StoreDamagedError, match=r"swarm\.jsonl\.2 is missing, and .*swarm\.jsonl\.3 goes on from it"):
        await acquired(path)
    (tmp_path / "away").rename(tmp_path / "swarm.jsonl.2")
    store = await acquired(path)
    assert len(await store.scan(0)) == 3
    await store.aclose()


async def test_what_a_fenced_owner_writes_late_never_counts(tmp_path: Path) -> None:
    path = tmp_path / "swarm.jsonl"
    first = await acquired(path)
    await first.commit(Batch(1, make_records(1, 2), [make_head(1)], 2))
    second = await JsonlStore.open(path)
    await second.acquire(this_process(), takeover=True)
    # As if it had looked for the next segment just before that was made, and was stopped there.
    with path.open("ab") as file:
        file.write(b'{"batch":2,"first":3,"count":1,"bytes":9,"crc":"00000000"}\n{"seq":3}')
    heads = tmp_path / "swarm.jsonl.heads"
    with heads.open("ab") as file:
        file.write(heads.read_bytes().partition(b'{"heads":0,"epoch":2')[0])
    with pytest.raises(FencedError, match=f"process {os.getpid()} took"):
        await first.commit(Batch(3, make_records(3, 1)))
    await second.commit(Batch(1, make_records(3, 1), [make_head(1, 3)], 3))
    assert await second.heads() == [make_head(1, 3)]
    await second.aclose()
    await first.aclose()
    third = await acquired(path)
    assert await third.scan(0) == make_records(1, 3)
    assert await third.heads() == [make_head(1, 3)]
    await third.aclose()


async def test_an_owner_that_died_before_it_had_measured_the_log_leaves_it_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "swarm.jsonl"
    await write_batches(path, Batch(1, make_records(1, 2), [make_head(1)], 2))
    dead = Claim("log", 1, 2, this_process().__class__(boot_id="", pid=1, started=1))
    assert claim_segment(path, 2, dead) is not None
    assert claim_segment(path, 2, dead) is None, "a segment is claimed once"
    (tmp_path / "swarm.jsonl.3").write_bytes(b'{"nanotrio":"log","fo')
    store = await acquired(path)
    await store.commit(Batch(1, make_records(3, 1)))
    await store.aclose()
    store = await acquired(path)
    assert await store.scan(0) == make_records(1, 3)
    assert await store.heads() == [make_head(1)]
    assert Log.read(path).segments[1].counts is None
    await store.aclose()


async def test_a_store_can_be_looked_into_while_its_owner_runs(tmp_path: Path) -> None:
    path = tmp_path / "swarm.jsonl"
    store = await acquired(path)
    await store.commit(Batch(1, make_records(1, 3), [make_head(1, 3)], 3))
    looker = await JsonlStore.open(path, read_only=True)
    assert len(await looker.scan(0)) == 3
    await store.commit(Batch(2, make_records(4, 1), [make_head(2)]))
    assert len((await looker.load([(4, 0)]))[0]) == 4
    assert [head.name for head in await looker.heads()] == ["a.1", "a.2"]
    statistics = await looker.statistics()
    assert (statistics.records, statistics.heads, statistics.heads_seq) == (4, 2, 3)
    assert statistics.owner == this_process()
    with pytest.raises(StoreError, match="opened for reading"):
        await looker.acquire(this_process())
    other = await JsonlStore.open(path)
    with pytest.raises(StoreOwnedError):
        await other.acquire(this_process())
    await store.commit(Batch(3, make_records(5, 1)))
    await store.aclose()
    assert (await looker.statistics()).owner is None
    await other.acquire(this_process())
    await other.commit(Batch(1, make_records(6, 1)))
    assert len(await looker.scan(0)) == 6
    await looker.aclose()
    await other.aclose()


@pytest.mark.parametrize("count", [3, 2000])
async def test_a_full_disk_refuses_a_batch_whole_and_takes_it_later(count: int, tmp_path: Path) -> None:
    path = tmp_path / "swarm.jsonl"
    store = await acquired(path)
    await store.commit(Batch(1, make_records(1, 2)))
    size = path.stat().st_size
    batch = Batch(2, make_records(3, count), [make_head(1, count)], 2)
    with largest_file(size + 200):
        for _ in range(3):
            with pytest.raises(StoreError, match="may not grow"):
                await store.commit(batch)
        assert path.stat().st_size == size, "nothing is left of it"
        assert len(await store.scan(0)) == 2
    await store.commit(batch)
    assert len(await store.scan(0, limit=10_000)) == 2 + count
    await store.aclose()


async def test_a_file_that_is_removed_or_replaced_takes_no_more_records_until_it_is_back(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "swarm.jsonl", tmp_path / "moved"
    store = await acquired(path)
    await store.commit(Batch(1, make_records(1, 3)))
    path.rename(elsewhere)
    with pytest.raises(StoreError, match="removed or replaced"):
        await store.commit(Batch(2, make_records(4, 1)))
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="removed or replaced"):
        await store.commit(Batch(2, make_records(4, 1)))
    elsewhere.rename(path)
    await store.commit(Batch(2, make_records(4, 1)))
    assert len(await store.scan(0)) == 4
    await store.aclose()


async def test_damage_is_the_end_for_who_asks_to_salvage(tmp_path: Path) -> None:
    path = tmp_path / "swarm.jsonl"
    await write_batches(path, *[Batch(number, make_records(number * 10 - 9, 10)) for number in range(1, 11)])
    whole = path.read_bytes()
    at = whole.index(b'{"batch":7,')
    path.write_bytes(whole[:at] + b"?" + whole[at + 1 :])
    looker = await JsonlStore.open(path, salvage=True)
    assert await looker.scan(0) == make_records(1, 60)
    assert f"damaged at byte {at}" in (await looker.statistics()).warning
    await looker.aclose()


async def test_large_batches_and_threads_that_tools_occupy_do_not_starve_the_store(tmp_path: Path) -> None:
    limiter = trio.to_thread.current_default_thread_limiter()
    held = [object() for _ in range(int(limiter.available_tokens))]
    for token in held:
        limiter.acquire_on_behalf_of_nowait(token)
    try:
        assert not check_log(tmp_path / "swarm.jsonl")
        store = await acquired(tmp_path / "swarm.jsonl")
        await store.commit(Batch(1, make_records(1, 5000)))
        assert len(await store.scan(0, limit=10_000)) == 5000
        assert len((await store.load([(5000, 0)]))[0]) == 5000
        await store.aclose()
    finally:
        for token in held:
            limiter.release_on_behalf_of(token)


@pytest.mark.parametrize("seed", range(4))
def test_an_owner_that_is_stopped_anywhere_is_taken_over_and_acknowledges_nothing_that_is_lost(
    seed: int, tmp_path: Path
) -> None:
    url = f"jsonl:{tmp_path}/swarm.jsonl"

    async def take_over() -> int:
        store = await JsonlStore.open(tmp_path / "swarm.jsonl")
        with pytest.raises(StoreOwnedError) as caught:
            await store.acquire(this_process())
        assert (caught.value.pid, caught.value.state) == (process.pid, "stopped")
        tenure = await store.acquire(this_process(), takeover=True)
        process.send_signal(signal.SIGCONT)
        for number in range(20):
            await store.commit(Batch(number + 1, [Record(tenure.last_seq + 1 + number, 0, 99, 0, b"ours")]))
        assert await trio.to_thread.run_sync(partial(process.wait, timeout=30)) == 1
        assert [record.facts for record in await store.scan(tenure.last_seq)] == [b"ours"] * 20
        await store.aclose()
        return tenure.last_seq

    command = [sys.executable, str(WRITER), url, str(seed)]
    environment = {**os.environ, "PYTHONPATH": str(WRITER.parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            heard = process.stdout.read(8 * (20 + 17 * seed))
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            last = trio.run(take_over)
            heard += process.stdout.read()
            numbers = struct.unpack(f"<{len(heard) // 8}q", heard)
            assert max(numbers) <= last, "what it acknowledged is there"
            assert process.stderr is not None
            assert b"FencedError" in process.stderr.read()
        finally:
            process.kill()

"""SIGKILL while records are written: what was acknowledged is there, and only whole groups are."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from nanotrio.errors import StoreOwnedError
from nanotrio.records import Record
from nanotrio.stores.address import open_store
from nanotrio.stores.owner import this_process
from nanotrio.stores.store import Batch
from nanotrio.stores.tail import read_tail
from tests import counts
from tests.stores.postgres_server import NamedServer, PostgresServer, new_swarm

_WRITER = Path(__file__).with_name("write_until_killed.py")
_ROOT = str(_WRITER.parents[2])


@pytest.fixture(params=["sqlite", "sqlite+rows", "jsonl", "postgres"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Gives the address of a store that is not there yet, another one each time."""
    if request.param == "postgres":
        server = request.getfixturevalue("postgres")
        return lambda: server.url(new_swarm())
    return lambda: f"{request.param}:{tmp_path / new_swarm()}"


def _write_and_kill(url: str, seed: int) -> int:
    """Let a writer run until it has acknowledged some numbers, kill it, and return the greatest one."""
    acknowledgements = random.Random(seed).randrange(1, 300)
    command = [sys.executable, str(_WRITER), url, str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": _ROOT}) as process:
        assert process.stdout is not None
        heard = process.stdout.read(8 * acknowledgements)
        process.kill()
        # What it wrote to the pipe before it died was acknowledged too.
        heard += process.stdout.read()
    whole = len(heard) // 8
    assert whole >= acknowledgements, f"the writer ended by itself (seed {seed})"
    numbers: tuple[int, ...] = struct.unpack(f"<{whole}q", heard[: whole * 8])
    return max(numbers)


def _check_groups(records: list[Record]) -> None:
    at = 0
    while at < len(records):
        first, count = struct.unpack_from("<qq", records[at].facts)
        group = records[at : at + count]
        assert [record.seq for record in group] == list(range(first, first + count)), "a group is not whole"
        assert {struct.unpack_from("<qq", record.facts) for record in group} == {(first, count)}
        at += count


def test_after_a_sigkill_the_store_holds_a_prefix_with_all_that_was_acknowledged(new_url: Callable[[], str]) -> None:
    url = new_url()
    known = 0

    async def look(acknowledged: int, seed: int) -> None:
        nonlocal known
        store = await open_store(url)
        tenure = await store.acquire(this_process())
        assert tenure.last_seq >= acknowledged, f"acknowledged records are missing (seed {seed})"
        assert tenure.heads_seq <= tenure.last_seq
        records = await store.scan(known, limit=10_000_000)
        assert [record.seq for record in records] == list(range(known + 1, tenure.last_seq + 1))
        _check_groups(records)
        tail = await read_tail(store, tenure.heads_seq)
        heads = {head.agent: head.last_seq for head in await store.heads()}
        newest = {**heads, **tail.last_seq}
        # Every record lies on the chain that the heads and the tail lead to: that is what a reopen relies on.
        ends = [(seq, 0) for seq in newest.values()]
        assert sum(len(chain) for chain in await store.load(ends)) == tenure.last_seq
        known = tenure.last_seq
        await store.aclose()

    for seed in range(counts.KILLS):
        trio.run(look, _write_and_kill(url, seed), seed)
        if known > 30_000:  # what is checked is all of it, each time
            url = new_url()
            known = 0


def test_a_store_whose_owner_was_killed_can_be_looked_into_and_then_taken_over(new_url: Callable[[], str]) -> None:
    url = new_url()
    acknowledged = _write_and_kill(url, 1)

    async def main() -> None:
        looker = await open_store(url, read_only=True)
        seen = await looker.scan(0, limit=10_000_000)
        assert len(seen) >= acknowledged
        assert (await looker.statistics()).records == len(seen)
        await looker.aclose()
        store = await open_store(url)
        tenure = await store.acquire(this_process())
        assert (tenure.last_seq, tenure.epoch) == (len(seen), 2)
        assert tenure.former is not None
        assert tenure.former.pid != os.getpid()
        await store.aclose()

    trio.run(main)


def test_a_writer_that_is_stopped_anywhere_can_be_taken_over_on_postgres(
    postgres: PostgresServer | NamedServer,
) -> None:
    # In SQLite one that is stopped within a transaction keeps the file locked, and must be ended.
    url = postgres.url(new_swarm())
    command = [sys.executable, str(_WRITER), url, "3"]
    environment = {**os.environ, "PYTHONPATH": _ROOT}

    async def take_over() -> list[Record]:
        store = await open_store(url)
        with pytest.raises(StoreOwnedError) as caught:
            await store.acquire(this_process())
        assert (caught.value.pid, caught.value.state) == (process.pid, "stopped")
        with trio.fail_after(10):
            tenure = await store.acquire(this_process(), takeover=True)
            await store.commit(Batch(1, [Record(tenure.last_seq + 1, 0, 99, 0, b"ours")]))
        process.send_signal(signal.SIGCONT)
        assert await trio.to_thread.run_sync(partial(process.wait, timeout=30)) == 1
        records = await store.scan(0, limit=10_000_000)
        assert len(records) == tenure.last_seq + 1
        await store.aclose()
        return records

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            process.stdout.read(8 * 50)
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            assert trio.run(take_over)[-1].facts == b"ours"
            assert process.stderr is not None
            assert b"FencedError" in process.stderr.read()
        finally:
            process.kill()

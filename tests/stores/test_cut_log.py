"""A write-ahead log that ends anywhere, as after a loss of power: the store holds a prefix and takes records again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio

from nanotrio.errors import StoreError
from nanotrio.records import Record
from nanotrio.stores.owner import this_process
from nanotrio.stores.sqlite import SqliteStore
from nanotrio.stores.store import Batch

BATCHES, OF_EACH = 5, 3
_FRAME_BYTES = 24 + 4096
"""A page in the log, with its header."""


def _batch(number: int, first: int) -> Batch:
    facts = f"batch {number} ".encode() * 40
    return Batch(number, [Record(seq, seq - 1, 1, 0, facts) for seq in range(first, first + OF_EACH)])


def _cuts(length: int) -> list[int]:
    """Every frame's borders and a byte on either side, and offsets between."""
    borders = range(32, length + 1, _FRAME_BYTES)
    near = {border + step for border in borders for step in (-1, 0, 1, 25, 2_000)}
    return sorted(cut for cut in near | set(range(0, 32, 7)) if cut <= length)


async def _write(path: Path, copy: Path) -> None:
    """Leave in ``copy`` the files as they were while the owner still ran, before the log was moved."""
    store = await SqliteStore.open(path)
    await store.acquire(this_process())
    for number in range(BATCHES):
        await store.commit(_batch(number + 1, number * OF_EACH + 1))
    for name in (path.name, f"{path.name}-wal"):
        shutil.copy(path.with_name(name), copy / name)
    await store.aclose()


async def _reopened(path: Path) -> list[Record]:
    """Take the store over, check that it goes on, and return what it held before."""
    store = await SqliteStore.open(path)
    try:
        tenure = await store.acquire(this_process(), takeover=True)
        records = await store.scan(0)
        assert tenure.last_seq == len(records)
        await store.commit(Batch(1, _batch(9, tenure.last_seq + 1).records))
        assert (await store.scan(0))[: len(records)] == records
        assert len(await store.scan(0)) == len(records) + OF_EACH
        assert len((await store.load([(tenure.last_seq + OF_EACH, 0)]))[0]) == len(records) + OF_EACH
    finally:
        await store.aclose()
    return records


def test_a_cut_log_leaves_whole_batches_and_later_records_never_join_a_torn_one(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    trio.run(_write, tmp_path / "swarm.db", whole)
    log = (whole / "swarm.db-wal").read_bytes()
    held = []
    for cut in _cuts(len(log)):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        shutil.copy(whole / "swarm.db", folder)
        (folder / "swarm.db-wal").write_bytes(log[:cut])
        try:
            records = trio.run(_reopened, folder / "swarm.db")
        except StoreError:
            pytest.fail(f"a log cut at {cut} of {len(log)} bytes made the store unusable")
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        assert len(records) % OF_EACH == 0, f"half a batch is there after a cut at {cut}"
        held.append(len(records))
        shutil.rmtree(folder)
    assert held == sorted(held)
    assert (held[0], held[-1]) == (0, BATCHES * OF_EACH)
    assert set(held) == set(range(0, BATCHES * OF_EACH + 1, OF_EACH))

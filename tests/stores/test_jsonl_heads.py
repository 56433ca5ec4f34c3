"""The file of heads beside a JSONL store: a cache that may be lost, and is never wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nanotrio.errors import StoreError
from nanotrio.stores.jsonl import JsonlStore
from nanotrio.stores.owner import this_process
from nanotrio.stores.store import Batch
from tests.stores.jsonl_files import (
    acquired,
    files_in,
    largest_file,
    make_head,
    make_records,
    write_batches,
)


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: None,
        lambda whole: whole[:50] + b"?" + whole[51:],
        lambda whole: whole[:-30] + b"?" * 30,
        lambda whole: whole.replace(b'"log_seq":9', b'"log_seq":8'),
    ],
    ids=["emptied", "removed", "front", "last head", "crc"],
)
async def test_heads_that_are_lost_or_damaged_are_not_true_and_come_back(
    damage: Callable[[bytes], bytes | None], tmp_path: Path
) -> None:
    path, heads = tmp_path / "swarm.jsonl", tmp_path / "swarm.jsonl.heads"
    await write_batches(path, Batch(1, make_records(1, 9), [make_head(1, 9), make_head(2, 8)], 9))
    damaged = damage(heads.read_bytes())
    heads.unlink() if damaged is None else heads.write_bytes(damaged)
    store = await JsonlStore.open(path)
    tenure = await store.acquire(this_process())
    assert (tenure.heads_seq, tenure.last_agent, tenure.last_seq) == (0, 0, 9)
    is_damaged = bool(damaged)
    assert ("is damaged and does not count" in (await store.statistics()).warning) == is_damaged
    assert await store.heads() == []
    await store.commit(Batch(1, [], [make_head(1, 9)], 9))
    await store.aclose()
    store = await JsonlStore.open(path)
    assert (await store.acquire(this_process())).heads_seq == 9
    assert await store.heads() == [make_head(1, 9)]
    await store.aclose()


async def test_heads_cut_short_at_any_byte_are_those_before(tmp_path: Path) -> None:
    path, heads = tmp_path / "swarm.jsonl", tmp_path / "swarm.jsonl.heads"
    store = await acquired(path)
    await store.commit(Batch(1, make_records(1, 5), [make_head(1, 4)], 4))
    before = heads.stat().st_size
    await store.commit(Batch(2, [], [make_head(1, 5), make_head(2, 5)], 5))
    await store.aclose()
    whole = heads.read_bytes()
    for cut in range(before, len(whole)):
        heads.write_bytes(whole[:cut])
        store = await JsonlStore.open(path)
        assert (await store.acquire(this_process())).heads_seq == 4
        assert await store.heads() == [make_head(1, 4)]
        await store.commit(Batch(1, [], [make_head(2, 3)]))
        assert await store.heads() == [make_head(1, 4), make_head(2, 3)]
        await store.aclose()
        path.with_name(f"{path.name}.2").unlink()


async def test_heads_that_know_more_than_the_log_are_not_true(tmp_path: Path) -> None:
    path = tmp_path / "swarm.jsonl"
    store = await acquired(path)
    await store.commit(Batch(1, make_records(1, 5), [make_head(1, 5)], 5))
    size = path.stat().st_size
    await store.commit(Batch(2, make_records(6, 5), [make_head(1, 10)], 10))
    await store.aclose()
    os.truncate(path, size)
    looker = await JsonlStore.open(path, read_only=True)
    assert await looker.heads() == []
    await looker.aclose()
    store = await JsonlStore.open(path)
    tenure = await store.acquire(this_process(), takeover=True)
    assert (tenure.last_seq, tenure.heads_seq) == (5, 0)
    await store.aclose()


async def test_the_file_of_heads_is_written_anew_once_most_of_it_is_old(tmp_path: Path) -> None:
    path, heads = tmp_path / "swarm.jsonl", tmp_path / "swarm.jsonl.heads"
    store = await acquired(path)
    looker = await JsonlStore.open(path, read_only=True)
    for number in range(1, 130):
        await store.commit(
            Batch(number, [], [make_head(agent, number, unfinished=agent % 7 == 0) for agent in range(1, 1001)], 0)
        )
        if number % 40 == 0:
            assert {head.last_seq for head in await looker.heads()} == {number}
    assert heads.stat().st_size < 9 << 20
    expected = [make_head(agent, 129, unfinished=agent % 7 == 0) for agent in range(1, 1001)]
    assert await store.heads() == expected
    await store.aclose()
    assert await looker.heads(unfinished=True, after=5, limit=20) == [head for head in expected if head.unfinished][:20]
    await looker.aclose()
    assert set(files_in(tmp_path)) == {"swarm.jsonl", "swarm.jsonl.heads"}


async def test_records_are_written_once_where_only_the_heads_found_no_room(tmp_path: Path) -> None:
    path = tmp_path / "swarm.jsonl"
    store = await acquired(path)
    many = [make_head(agent) for agent in range(1, 101)]
    await store.commit(Batch(1, [], many))
    batch = Batch(2, make_records(1, 3), many, 3)
    with largest_file(5_000):
        for _ in range(3):
            with pytest.raises(StoreError, match="may not grow"):
                await store.commit(batch)
        assert await store.scan(0) == []
    await store.commit(batch)
    assert len(await store.scan(0)) == 3
    # One that was given up leaves no trace either.
    with largest_file(5_000), pytest.raises(StoreError, match="may not grow"):
        await store.commit(Batch(3, make_records(4, 5), many))
    await store.commit(Batch(4, make_records(4, 1)))
    await store.aclose()
    store = await acquired(path)
    assert await store.scan(0) == make_records(1, 4)
    await store.aclose()

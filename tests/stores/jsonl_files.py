"""What the tests of the JSONL store share."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

from nanotrio.records import Head, Record
from nanotrio.stores.jsonl import JsonlStore
from nanotrio.stores.owner import this_process
from nanotrio.stores.store import Batch


def make_records(first: int, count: int, size: int = 100) -> list[Record]:
    return [Record(seq, max(seq - 1, 0), 1, 0, b"x" * size) for seq in range(first, first + count)]


def make_head(agent: int, last_seq: int = 1, *, unfinished: bool = True) -> Head:
    return Head(agent, 0, agent, f"a.{agent}", "running" if unfinished else "idle", unfinished, last_seq, 0)


async def acquired(path: Path, **options: bool) -> JsonlStore:
    store = await JsonlStore.open(path, **options)
    await store.acquire(this_process())
    return store


async def write_batches(path: Path, *batches: Batch) -> None:
    store = await acquired(path)
    for batch in batches:
        await store.commit(batch)
    await store.aclose()


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let the system refuse to let any file grow beyond ``size``, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files_in(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in folder.iterdir()}


def remove_all(folder: Path, pattern: str = "*") -> None:
    for path in folder.glob(pattern):
        path.unlink()

"""Where a benchmark's store lives: a file, a schema on a server, or a server of its own.

``--store`` takes the address of a store, or one of the bare words sqlite, sqlite+rows, jsonl, postgres and
postgres+rows: then the store is in a temporary folder on a real disk, on Postgres with a server of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks._measures import refuse_tmpfs, written_bytes
from benchmarks._postgres import PostgresProcesses, private_postgres
from nanotrio.stores import parse_url

__all__ = ["KINDS", "Place", "add_store_arguments", "opened_place", "remove_store"]

KINDS = ("sqlite", "sqlite+rows", "jsonl", "postgres", "postgres+rows")


class Place:
    """A store's address, and what can be measured of it from outside."""

    def __init__(self, url: str, server: PostgresProcesses | None) -> None:
        self.url = url
        self.kind = url.partition(":")[0]
        self.server = server
        self._empty_bytes = server.database_bytes() if server else 0
        self._written = 0
        self._server_cpu = 0.0
        self.begin()

    def begin(self) -> None:
        """Count what is written from here on."""
        self._written = self._written_bytes()
        self._server_cpu = self.server.cpu_seconds() if self.server else 0.0

    def fresh(self) -> str:
        """Have a store that is not there yet, and return its address."""
        if self.server is not None:
            self.url = self.server.address(self.kind, _new_swarm())
        else:
            remove_store(self.url)
        return self.url

    def figures(self) -> dict[str, float | None]:
        """Return the size of the store and what was written since ``begin``, by this process and by a server of ours.

        The server's is counted after a checkpoint of its own, so that all of it is in.
        """
        written_mb = (self._written_bytes() - self._written) / 1e6
        figures: dict[str, float | None] = {"store_mb": self.size_mb(), "disk_written_mb": written_mb}
        if self.server is not None:
            figures["server_mb"] = self.server.pss_mb()
            figures["server_cpu_seconds"] = self.server.cpu_seconds() - self._server_cpu
        elif self.kind.startswith("postgres"):
            figures["disk_written_mb"] = None  # a server that is not ours may be anywhere
        return figures

    def size_mb(self) -> float | None:
        """Return the size of the store's files, or what the database grew by; None on a server that is not ours."""
        if self.server is not None:
            return (self.server.database_bytes() - self._empty_bytes) / 1e6
        if self.kind.startswith("postgres"):
            return None
        return sum(path.stat().st_size for path in _files(parse_url(self.url).path)) / 1e6

    def _written_bytes(self) -> int:
        if self.server is not None:
            self.server.settle()
        os.sync()
        return written_bytes() + (self.server.written_bytes() if self.server else 0)


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--store`` and ``--folder``."""
    parser.add_argument("--store", default="sqlite", help="an address, or a bare word: " + ", ".join(KINDS))
    parser.add_argument("--folder", type=Path, help="for stores of bare words; a temporary one otherwise")


@contextmanager
def opened_place(store: str, folder: Path | None = None) -> Iterator[Place]:
    """Find a place for what ``--store`` says; nothing is in it before, and nothing of bare words' is left after."""
    if store not in KINDS:
        if not store.startswith("postgres"):
            refuse_tmpfs(parse_url(store).path.parent)
        remove_store(store)
        yield Place(store, None)
        return
    parent = folder or _disk()
    refuse_tmpfs(parent)
    own = Path(tempfile.mkdtemp(prefix="nanotrio-bench-", dir=parent))
    try:
        if store.startswith("postgres"):
            own.chmod(0o755)  # the server may run as another user
            with private_postgres(own) as server:
                yield Place(server.address(store, _new_swarm()), server)
        else:
            yield Place(f"{store}:{own / 'store'}", None)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _new_swarm() -> str:
    return f"bench_{time.time_ns() // 1_000}"


def _disk() -> Path:
    """The folder for temporary files, or the current one where that lies in memory."""
    for each in (Path(tempfile.gettempdir()), Path("/var/tmp")):
        with suppress(SystemExit):
            refuse_tmpfs(each)
            return each
    return Path.cwd()


def remove_store(url: str) -> None:
    """Remove a store: its files, or its schema on a server."""
    address = parse_url(url)
    if address.server is not None:
        import psycopg
        from psycopg.conninfo import make_conninfo

        with psycopg.connect(make_conninfo(**address.server.parameters)) as db:
            db.execute(f'DROP SCHEMA IF EXISTS "nanotrio_{address.server.swarm}" CASCADE'.encode())
        return
    for path in _files(address.path):
        path.unlink(missing_ok=True)


def _files(path: Path) -> list[Path]:
    """The files of a store: the one it is named by, its segments, its heads, its log."""
    beside = [each for each in path.parent.glob(f"{path.name}[-.]*") if each.is_file()]
    return [each for each in (path, *beside) if each.exists()]

"""A Postgres of a benchmark's own, on a real disk and with the server's own defaults: it syncs each commit.

The tests' code brings it up, in a process of its own that ends it when the benchmark is gone, however that ended.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks._measures import cpu_seconds, process_tree, pss_mb, written_bytes

__all__ = ["PostgresProcesses", "private_postgres"]

_SETTINGS = {"listen_addresses": "127.0.0.1", "log_min_messages": "fatal", "max_connections": "40"}


class PostgresProcesses:
    """A running server, as a benchmark sees it from outside."""

    def __init__(self, url: str, pid: int) -> None:
        self._url = url
        self._pid = pid

    def address(self, kind: str, swarm: str) -> str:
        """Return the address of a store of ``kind`` in it."""
        return f"{kind}{self._url.removeprefix('postgres')}?swarm={swarm}"

    def settle(self) -> None:
        """Let the server write what it has put off."""
        self.execute("CHECKPOINT")

    def database_bytes(self) -> int:
        """Return the size of the database."""
        return int(self.execute("SELECT pg_database_size(current_database())"))

    def execute(self, statement: str) -> str:
        """Run a statement; return the first field it gives."""
        import psycopg

        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
        return str(row[0]) if row else ""

    def written_bytes(self) -> int:
        """Return what the server's processes gave the disk to write; of those that ended the postmaster keeps count."""
        return int(self._sum(written_bytes))

    def cpu_seconds(self) -> float:
        """Return their CPU time."""
        return self._sum(cpu_seconds)

    def pss_mb(self) -> float:
        """Return their memory."""
        return self._sum(pss_mb)

    def _sum(self, measure: object) -> float:
        total = 0.0
        for pid in process_tree(self._pid):
            with suppress(FileNotFoundError, ProcessLookupError):
                total += measure(pid)  # type: ignore[operator]
        return total


@contextmanager
def private_postgres(folder: Path) -> Iterator[PostgresProcesses]:
    """Bring a server up below ``folder``; it is gone with the block."""
    command = [sys.executable, "-m", "benchmarks._postgres", "--folder", str(folder)]
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        line = keeper.stdout.readline()
        if not line:
            raise SystemExit("no Postgres could be started for this benchmark; what it said stands above")
        told = json.loads(line)
        yield PostgresProcesses(told["url"], told["pid"])
    finally:
        keeper.stdin.close()
        keeper.wait(60)


def main() -> None:
    """Keep a server until standard input ends."""
    from tests.stores.postgres_server import PostgresServer

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    server = PostgresServer(parser.parse_args().folder, settings=_SETTINGS)
    try:
        server.start()
        assert server.process is not None
        print(json.dumps({"url": server.url("x").partition("?")[0], "pid": server.process.pid}), flush=True)
        sys.stdin.read()
        server.stop(signal.SIGINT)
    finally:
        server.remove()


if __name__ == "__main__":
    main()

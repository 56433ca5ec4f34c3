"""Behind a pooler that shares server connections by transaction: nothing is kept in a session, and pgbouncer serves.

The second part needs pgbouncer, on PATH or named by ``NANOTRIO_TEST_PGBOUNCER``, and is skipped without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

import nanotrio
from nanotrio.errors import StoreError
from nanotrio.models import ScriptedModel, reply_text
from nanotrio.records import MailArrived, Spawned
from nanotrio.stores import Batch, StoreCare, query, this_process
from nanotrio.stores.postgres import PostgresStore
from tests.stores.postgres_server import PASSWORD, PASSWORD_IN_URL, PostgresServer, free_port, new_swarm
from tests.stores.test_rows import record_with

PGBOUNCER = os.environ.get("NANOTRIO_TEST_PGBOUNCER", "") or shutil.which("pgbouncer") or ""
KINDS = pytest.mark.parametrize("kind", ["postgres", "postgres+rows"])

_KEPT = """
SELECT (SELECT count(*) FROM pg_prepared_statements) AS prepared,
  (SELECT count(*) FROM pg_listening_channels()) AS listening,
  (SELECT count(*) FROM pg_cursors WHERE is_holdable) AS cursors,
  (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks,
  (SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND pg_table_is_visible(oid)) AS temporary,
  (SELECT count(*) FROM pg_settings WHERE source = 'session' AND name <> 'transaction_isolation'
    AND name NOT LIKE 'transaction_%%') AS settings
"""


@KINDS
async def test_no_connection_keeps_anything_in_its_session(kind: str, own_postgres: PostgresServer) -> None:
    store = await PostgresStore.open(own_postgres.url(new_swarm(), kind=kind))
    await store.acquire(this_process())
    for number in range(1, 9):  # psycopg would prepare what is run five times
        facts = (Spawned(0, 1, 0, "a.1", 0),) if number == 1 else (MailArrived("text", 0, "hello"),)
        await store.commit(Batch(number, [record_with(number, 1, *facts)], (), number))
        await store.scan(0)
        await store.heads()
        await store.load([(1, 0)])
        await store.statistics()
    assert store._writer is not None
    connections = [store._writer, *store._pool._idle]
    assert len(connections) >= 2
    for connection in connections:
        assert await (await connection.execute(_KEPT)).fetchone() == (0,) * 6
    await store.aclose()


@contextmanager
def _pooler(server: PostgresServer, mode: str) -> Iterator[Callable[[str, str], str]]:
    """Bring up pgbouncer in front of ``server`` with three server connections; give what makes addresses of it."""
    port = free_port()
    users, settings = server.folder / "users.txt", server.folder / f"pgbouncer-{port}.ini"
    users.write_text(f'"postgres" "{PASSWORD}"\n')
    settings.write_text(
        f"[databases]\npostgres = host={server.folder} port={server.port} user=postgres\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = plain\nauth_file = {users}\n"
        f"pool_mode = {mode}\ndefault_pool_size = 3\n"
    )
    command = [PGBOUNCER, "-q", str(settings)]
    if server.user:
        user, group = server.user.pw_uid, server.user.pw_gid
        command = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", *command]
    address = f"postgres:{PASSWORD_IN_URL}@127.0.0.1:{port}/postgres"
    with subprocess.Popen(command, cwd=server.folder, stdin=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and process.poll() is None:
                with suppress(psycopg.OperationalError), psycopg.connect(f"postgres://{address}"):
                    break
            yield lambda kind, swarm: f"{kind}://{address}?swarm={swarm}"
        finally:
            process.terminate()


needs_pgbouncer = pytest.mark.skipif(not PGBOUNCER, reason="no pgbouncer on PATH or in NANOTRIO_TEST_PGBOUNCER")


@needs_pgbouncer
@KINDS
@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_a_swarm_runs_behind_pgbouncer(
    mode: str, kind: str, own_postgres: PostgresServer, tmp_path: Path
) -> None:
    with _pooler(own_postgres, mode) as address:
        url = address(kind, new_swarm())
        model = ScriptedModel(lambda conversation: reply_text(f"{conversation.task} is done"))
        async with nanotrio.open_swarm(store=url, model=model, environment={}) as swarm:
            agents = [await swarm.spawn(f"task {number}") for number in range(20)]
            assert [(await agent.wait()).status for agent in agents] == ["completed"] * 20
            views = await nanotrio.read_store(url)
        assert len(views) == 20
        assert (await StoreCare(url).check()).problems == ()
        await StoreCare(url).copy(f"jsonl:{tmp_path}/copy")
        if kind.endswith("+rows"):
            assert (await query(url, "SELECT count(*) FROM agents WHERE outcome = 'completed'")).rows == [(20,)]


@needs_pgbouncer
async def test_what_pgbouncer_must_be_told_is_said(own_postgres: PostgresServer) -> None:
    with _pooler(own_postgres, "statement") as address:
        store = await PostgresStore.open(address("postgres", new_swarm()))
        with pytest.raises(StoreError, match="set its pool_mode to transaction or session"):
            await store.acquire(this_process())
        await store.aclose()
        with pytest.raises(StoreError, match="add the parameter to its ignore_startup_parameters"):
            await PostgresStore.open(address("postgres", new_swarm()) + "&options=-c%20geqo%3Doff")

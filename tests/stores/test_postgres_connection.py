"""psycopg on Trio: cancelling reaches the server, and leaves a connection that serves or one that is closed."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import psycopg
import pytest
import trio
import trio.testing
from psycopg.pq import TransactionStatus

from nanotrio.errors import StoreError
from nanotrio.stores.postgres_address import parse_postgres_url
from nanotrio.stores.postgres_connection import TrioConnection, connect
from nanotrio.stores.postgres_pool import PostgresPool
from tests import counts
from tests.stores.postgres_server import NamedServer, PostgresServer

Server = PostgresServer | NamedServer


@asynccontextmanager
async def _connected(server: Server) -> AsyncIterator[TrioConnection]:
    connection = await connect(parse_postgres_url(server.url("none")).parameters)
    try:
        yield connection
    finally:
        connection.discard()


async def _rows(connection: TrioConnection, query: str) -> list[tuple[object, ...]]:
    return await (await connection.execute(query.encode())).fetchall()


async def _is_running(watcher: TrioConnection, text: str) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND state = 'active' AND query ~ %s"
    return (await (await watcher.execute(query, (text,))).fetchall())[0][0] > 0


async def _gone(watcher: TrioConnection, text: str) -> None:
    """Wait until the server runs no such statement; it reads of a closed connection a moment later."""
    with trio.fail_after(5):
        while await _is_running(watcher, text):
            pass


async def test_a_long_query_is_cancelled_promptly_here_and_on_the_server(postgres: Server) -> None:
    async with _connected(postgres) as connection, _connected(postgres) as watcher:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.execute, "SELECT pg_sleep(30), 'in prompt'")
            while not await _is_running(watcher, "in prompt"):
                pass
            before = time.perf_counter()
            nursery.cancel_scope.cancel()
        assert time.perf_counter() - before < 5
        await _gone(watcher, "in prompt")
        assert connection.info.transaction_status == TransactionStatus.IDLE
        assert await _rows(connection, "SELECT 1") == [(1,)]


async def test_a_copy_that_never_blocks_can_be_cancelled(postgres: Server) -> None:
    block = b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\0\1\0\0\0\x08" + bytes(8)
    async with _connected(postgres) as connection, _connected(postgres) as watcher:
        await connection.execute("CREATE TEMP TABLE sink (number bigint)")
        with trio.move_on_after(0.1) as scope:
            async with connection.cursor() as cursor, cursor.copy("COPY sink FROM STDIN (FORMAT binary)") as copy:
                await copy.write(block)
                while True:
                    await copy.write(b"\0\1\0\0\0\x08" + bytes(8))
        assert scope.cancelled_caught
        assert connection.info.transaction_status in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)
        await _gone(watcher, "COPY sink")


async def test_a_transaction_that_is_left_by_a_cancel_is_rolled_back(postgres: Server) -> None:
    async with _connected(postgres) as connection, _connected(postgres) as watcher:
        name = f"left_{os.getpid()}"
        await watcher.execute(f"CREATE TABLE {name} (number bigint)".encode())
        try:
            with trio.move_on_after(0.1) as scope:
                async with connection.transaction():
                    await connection.execute(f"INSERT INTO {name} VALUES (1)".encode())
                    await trio.sleep_forever()
            assert scope.cancelled_caught
            connection.discard_unless_idle()
            assert await _rows(watcher, f"SELECT count(*) FROM {name}") == [(0,)]
        finally:
            with trio.move_on_after(5, shield=True):
                await watcher.execute(f"DROP TABLE {name}".encode())


async def test_a_copy_out_that_is_cancelled_ends_on_the_server(postgres: Server) -> None:
    async with _connected(postgres) as connection, _connected(postgres) as watcher:
        with trio.move_on_after(0.1) as scope:
            query = "COPY (SELECT generate_series(1, 100000000)) TO STDOUT"
            async with connection.cursor() as cursor, cursor.copy(query) as copy:
                while await copy.read():
                    pass
        assert scope.cancelled_caught
        await _gone(watcher, "generate_series.1, 100000000")


async def test_a_second_task_on_a_connection_is_refused_and_the_first_goes_on(postgres: Server) -> None:
    async with _connected(postgres) as connection:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.execute, "SELECT pg_sleep(0.1)")
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(RuntimeError, match="serves one task at a time"):
                await connection.execute("SELECT 1")
            with pytest.raises(RuntimeError, match="serves one task at a time"):
                await connection.statement(b"SELECT 1")
        assert await _rows(connection, "SELECT 1") == [(1,)]


async def test_what_must_finish_is_given_time_in_a_cancelled_scope(postgres: Server) -> None:
    async with _connected(postgres) as connection:
        connection.finishing = True
        result = None
        with trio.move_on_after(0.05) as scope:
            result = await connection.statement(b"SELECT 7::int8, pg_sleep(0.3)")
        assert scope.cancel_called
        assert result is not None
        assert result.get_value(0, 0) == b"\0\0\0\0\0\0\0\7"


async def test_a_server_that_says_nothing_counts_as_lost(own_postgres: PostgresServer) -> None:
    async with _connected(own_postgres) as connection:
        connection.silence_seconds = 0.2
        pid = connection.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(psycopg.OperationalError, match=r"said nothing for 0\.2 s"):
                await connection.execute("SELECT 1")
            assert connection.closed
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_a_server_that_speaks_slowly_is_not_lost(postgres: Server) -> None:
    async with _connected(postgres) as connection:
        connection.silence_seconds = 1.0
        rows = await _rows(connection, "SELECT repeat('x', 20000), pg_sleep(0.25) FROM generate_series(1, 6)")
        assert len(rows) == 6


async def test_names_are_looked_up_and_each_address_is_tried(own_postgres: PostgresServer) -> None:
    parameters = parse_postgres_url(own_postgres.url("none")).parameters
    port = str(own_postgres.port)
    for hosts, ports in (("localhost", port), ("nobody.invalid,localhost", port), ("127.0.0.1,localhost", f"1,{port}")):
        connection = await connect({**parameters, "host": hosts, "port": ports})
        assert await _rows(connection, "SELECT 1") == [(1,)]
        connection.discard()
    with pytest.raises(psycopg.OperationalError, match=r"could not look up 'nobody\.invalid'"):
        await connect({**parameters, "host": "nobody.invalid"})


async def test_connecting_to_an_address_that_does_not_answer_ends_in_time(postgres: Server) -> None:
    parameters = parse_postgres_url(postgres.url("none")).parameters
    async with trio.open_nursery() as nursery:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        port = str(listener.socket.getsockname()[1])
        with pytest.raises(psycopg.OperationalError, match=r"no answer within 0\.2 s"):
            await connect({**parameters, "host": "127.0.0.1", "port": port}, seconds=0.2)
        await listener.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.skipif(sys.platform != "linux", reason="a full backlog is answered by silence on Linux")
async def test_a_server_that_refuses_after_a_while_is_told_as_one_that_refuses() -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    _, port = listener.getsockname()
    with listener, socket.create_connection(("127.0.0.1", port)):  # which fills the backlog
        async with trio.open_nursery() as nursery:

            async def refused() -> None:
                with pytest.raises(psycopg.OperationalError, match="Connection refused"):
                    await connect({"host": "127.0.0.1", "port": str(port), "user": "any"})

            nursery.start_soon(refused)
            await trio.testing.wait_all_tasks_blocked()
            listener.close()


@pytest.mark.deadline(300)
async def test_cancelling_at_random_instants_leaves_a_pool_that_serves(postgres: Server) -> None:
    pool = PostgresPool(parse_postgres_url(postgres.url("none")), size=2)
    queries = (
        "SELECT 1",
        "SELECT pg_sleep(0.002)",
        "SELECT repeat('x', 1000) FROM generate_series(1, 2000)",
        "SELECT 1 / (random() * 0)::int",
    )

    async def use(chance: random.Random) -> None:
        async def work(connection: TrioConnection) -> list[tuple[object, ...]]:
            return await _rows(connection, chance.choice(queries))

        for _ in range(10):
            with trio.move_on_after(chance.random() * 0.006), suppress(StoreError):
                await pool.run(work, patient=True)

    async def number(connection: TrioConnection) -> list[tuple[object, ...]]:
        return await _rows(connection, "SELECT 42")

    for seed in range(counts.FAULTS):
        async with trio.open_nursery() as nursery:
            for each in range(4):
                nursery.start_soon(use, random.Random(seed * 4 + each))
        for _ in range(3):
            assert await pool.run(number, patient=False) == [(42,)], f"seed {seed}"
    pool.close()
    with pytest.raises(StoreError, match="was closed"):
        await pool.run(number, patient=False)

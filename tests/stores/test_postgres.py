"""The Postgres driver beyond what every driver promises: lost servers, other people's schemas, leases, poolers."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
import trio.testing

from nanotrio import read_session
from nanotrio.errors import (
    FencedError,
    NewerStoreError,
    NotAStoreError,
    StoreDamagedError,
    StoreError,
    StoreOwnedError,
    UnknownAgentError,
)
from nanotrio.fact_form import encode_facts
from nanotrio.journal import Journal
from nanotrio.records import Head, MailArrived, Record
from nanotrio.stores.address import open_store, parse_url
from nanotrio.stores.owner import this_process
from nanotrio.stores.postgres import PostgresStore
from nanotrio.stores.postgres_connection import TrioConnection, connect
from nanotrio.stores.query import query
from nanotrio.stores.store import Batch, Owner, Tenure
from nanotrio.testing.check_store import CHECKS, OpenStore
from tests import counts
from tests.stores.postgres_server import PASSWORD, NamedServer, PostgresServer, new_swarm

Server = PostgresServer | NamedServer
PROCESS = this_process()


@pytest.mark.parametrize("kind", ["postgres", "postgres+rows"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.strip("_"))
async def test_keeps_every_promise_of_a_store(
    check: Callable[[OpenStore], Awaitable[None]], kind: str, postgres: Server
) -> None:
    swarm = new_swarm()
    await check(lambda name: open_store(postgres.url(f"{swarm}_{name}", kind=kind)))


def _records(first: int, count: int, facts: bytes = b"x" * 100) -> list[Record]:
    return [Record(seq, max(seq - 1, 0), 1, 0, facts) for seq in range(first, first + count)]


def _heads(agents: Iterable[int]) -> list[Head]:
    return [Head(agent, 0, agent, f"a.{agent}", "running", True, 0, 0) for agent in agents]


@asynccontextmanager
async def _store(url: str, *, lease_seconds: float = 30.0, owner: Owner = PROCESS) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(url, lease_seconds=lease_seconds)
    try:
        await store.acquire(owner)
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()


@asynccontextmanager
async def _watcher(url: str) -> AsyncIterator[TrioConnection]:
    address = parse_url(url).server
    assert address is not None
    connection = await connect(address.parameters)
    try:
        yield connection
    finally:
        connection.discard()


# Lost connections and servers.


@pytest.mark.deadline(300)
@pytest.mark.parametrize("kind", ["postgres", "postgres+rows"])
async def test_connections_ended_in_mid_commit_lose_nothing_double_nothing_and_are_told_of(
    kind: str, postgres: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    url = postgres.url(new_swarm(), kind=kind)
    mail = encode_facts((MailArrived("text", 0, "hello"),))
    troubles: list[str] = []
    async with _store(url) as store, _watcher(url) as watcher:
        journal = Journal(store, _tenure(store), _heads)
        ended = 0

        async def note_trouble() -> None:
            known = ""
            while True:
                known = await journal.wait_trouble_change(known)
                if known:
                    troubles.append(known)

        async def append() -> None:
            while True:
                journal.append_nowait(_records(journal.next_seq, 1000, facts=mail))
                await journal.durable(journal.next_seq - 1)

        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            nursery.start_soon(note_trouble)
            nursery.start_soon(append)
            while ended < counts.TERMINATIONS:
                row = await (
                    await watcher.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'active'"
                        " AND query ~ %s AND pid <> pg_backend_pid()",
                        (f"UPDATE .*{store.address.swarm}.*owner",),
                    )
                ).fetchone()
                if row:
                    ended += 1
                    done = journal.durable_seq
                    await journal.durable(min(done + 1, journal.next_seq - 1))
            last = journal.next_seq - 1
            await journal.durable(last)
            nursery.cancel_scope.cancel()
        found = await store.scan(0, limit=last + 10_000_000)
        assert [record.seq for record in found[:last]] == list(range(1, last + 1))
        assert len(found) >= last
    if kind == "postgres+rows":
        counted = await query(url, "SELECT count(*), count(DISTINCT seq), max(seq) FROM mail")
        assert (counted.rows, counted.behind) == ([(len(found),) * 3], 0)
    with capsys.disabled():
        told = f"{ended} connections ended in mid-commit, {len(troubles)} troubles told"
        sys.stderr.write(f"\n{kind}: {told}; {len(found)} records, none lost or doubled\n")
    assert len(troubles) >= counts.TERMINATIONS * 0.5
    assert any("stopping or starting" in text or "cannot be reached" in text for text in troubles), troubles


def _tenure(store: PostgresStore) -> Tenure:
    """The tenure of a store that was acquired just now, and is empty."""
    return Tenure(store._epoch, 0, 0, 0, None)


async def test_a_commit_whose_answer_was_lost_counts_once(postgres: Server) -> None:
    url = postgres.url(new_swarm())
    async with _store(url) as store, _watcher(url) as watcher:
        await store.commit(Batch(1, _records(1, 3)))
        blocker = await PostgresStore.open(url, read_only=True)
        # Our statement waits for the row until the connection is gone; then it is the former one that was made.
        await watcher.execute("BEGIN")
        await watcher.execute(f"SELECT * FROM {store._schema}.owner FOR UPDATE".encode())
        batch = Batch(2, _records(4, 3), [Head(1, 0, 1, "a.1", "idle", False, 6, 0)], 6)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.commit, batch)
            await trio.testing.wait_all_tasks_blocked(0.1)
            await watcher.execute("COMMIT")
        await store.commit(batch)
        assert store._writer is not None
        store._writer.discard()
        await store.commit(batch)
        assert len(await store.scan(0)) == 6
        await store.commit(Batch(3, _records(7, 1)))
        assert [head.last_seq for head in await blocker.heads()] == [6]
        await blocker.aclose()


async def test_reads_go_on_through_a_restart_and_commits_say_so_and_then_work(own_postgres: PostgresServer) -> None:
    async with _store(own_postgres.url(new_swarm())) as store:
        await store.commit(Batch(1, _records(1, 10)))
        assert len(await store.scan(0)) == 10
        await trio.to_thread.run_sync(own_postgres.stop)
        with pytest.raises(StoreError, match=r"cannot be reached|no Postgres listens|stopping or starting"):
            await store.commit(Batch(2, _records(11, 10)))
        with pytest.raises(StoreError, match=r"no Postgres listens at .*start it"):
            await store.commit(Batch(2, _records(11, 10)))
        async with trio.open_nursery() as nursery:
            found: list[Record] = []

            async def read() -> None:
                found.extend(await store.scan(0))

            nursery.start_soon(read)
            await trio.to_thread.run_sync(own_postgres.start)
        assert len(found) == 10
        await store.commit(Batch(2, _records(11, 10)))
        assert len(await store.scan(0)) == 20


@pytest.mark.parametrize("kind", ["postgres", "postgres+rows"])
async def test_a_restart_in_the_midst_of_commits_keeps_what_was_acknowledged(
    kind: str, own_postgres: PostgresServer
) -> None:
    url = own_postgres.url(new_swarm(), kind=kind)
    async with _store(url) as store:
        journal = Journal(store, _tenure(store), _heads)
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            for turn in range(3):
                for _ in range(20):
                    journal.append_nowait(_records(journal.next_seq, 100))
                    await journal.durable(journal.next_seq - 1)
                own_postgres.stop(signal.SIGINT if turn % 2 else signal.SIGQUIT)
                journal.append_nowait(_records(journal.next_seq, 100))
                await trio.to_thread.run_sync(own_postgres.start)
                await journal.durable(journal.next_seq - 1)
            nursery.cancel_scope.cancel()
        assert [record.seq for record in await store.scan(0, limit=100_000)] == list(range(1, journal.next_seq))
    if kind == "postgres+rows":
        assert (await query(url, "SELECT seq FROM rows_mark")).rows == [(journal.next_seq - 1,)]


@pytest.mark.deadline(300)
async def test_commits_and_reads_cancelled_at_random_instants_leave_a_store_that_works(postgres: Server) -> None:
    url = postgres.url(new_swarm())
    chance = random.Random(11)
    async with _store(url) as store:
        first = 1
        for number in range(1, counts.FAULTS * 5 + 1):
            batch = Batch(number, _records(first, chance.choice((1, 50, 2000))))
            with trio.move_on_after(chance.random() * 0.02):
                await store.commit(batch)
            with trio.move_on_after(chance.random() * 0.01):
                await store.load([(max(first - 1, 0), 0)])
            await store.commit(batch)
            first += len(batch.records)
        assert [record.seq for record in await store.scan(0, limit=first)] == list(range(1, first))
        async with _watcher(url) as watcher:
            rows = await (
                await watcher.execute(
                    "SELECT state FROM pg_stat_activity WHERE query ~ %s AND pid <> pg_backend_pid()",
                    (store.address.swarm,),
                )
            ).fetchall()
        assert not [state for (state,) in rows if state != "idle"]


# What is there, and what people are told.


async def test_nothing_is_made_before_the_store_is_acquired(postgres: Server) -> None:
    url = postgres.url(new_swarm())
    store = await PostgresStore.open(url)
    with pytest.raises(StoreError, match="there is no swarm"):
        await store.heads()
    with pytest.raises(StoreError, match="there is no swarm"):
        await PostgresStore.open(url, read_only=True)
    await store.acquire(PROCESS)
    assert await store.heads() == []
    await store.aclose()


async def test_many_that_make_the_same_store_at_once_make_it_once(postgres: Server) -> None:
    url = postgres.url(new_swarm())
    outcomes: list[str] = []

    async def take() -> None:
        store = await PostgresStore.open(url)
        try:
            await store.acquire(PROCESS)
            outcomes.append("taken")
            await trio.sleep(0.5)
        except StoreOwnedError:
            outcomes.append("refused")
        finally:
            await store.aclose()

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(take)
    assert sorted(outcomes) == ["refused"] * 5 + ["taken"]


async def test_schemas_that_are_not_ours_or_newer_are_refused_and_untouched(postgres: Server) -> None:
    swarm = new_swarm()
    url = postgres.url(swarm)
    schema = f"nanotrio_{swarm}"
    async with _watcher(url) as watcher:
        await watcher.execute(f"CREATE SCHEMA {schema}".encode())
        for read_only in (False, True):
            with pytest.raises(NotAStoreError, match="was not made by nanotrio"):
                await PostgresStore.open(url, read_only=read_only)
        await watcher.execute(f"CREATE TABLE {schema}.owner (name text)".encode())
        with pytest.raises(NotAStoreError, match="tables of another program"):
            await PostgresStore.open(url)
        await watcher.execute(f"DROP SCHEMA {schema} CASCADE".encode())
        async with _store(url):
            pass
        await watcher.execute(f"UPDATE {schema}.owner SET version = 99".encode())
        with pytest.raises(NewerStoreError, match=r"form 99.*upgrade nanotrio"):
            await PostgresStore.open(url)
        await watcher.execute(f"DELETE FROM {schema}.owner".encode())
        with pytest.raises(StoreDamagedError, match="lost its owner row"):
            await PostgresStore.open(url)


async def test_a_store_that_is_dropped_while_agents_run_is_told_of(postgres: Server) -> None:
    url = postgres.url(new_swarm())
    async with _store(url) as store, _watcher(url) as watcher:
        await store.commit(Batch(1, _records(1, 1)))
        await watcher.execute(f"DROP SCHEMA {store._schema} CASCADE".encode())
        with pytest.raises(StoreError, match="missing or changed"):
            await store.commit(Batch(2, _records(2, 1)))
        with pytest.raises(StoreError, match="missing or changed"):
            await store.scan(0)


async def test_records_of_another_hand_end_the_writing(postgres: Server) -> None:
    url = postgres.url(new_swarm())
    async with _store(url) as store, _watcher(url) as watcher:
        await watcher.execute(f"INSERT INTO {store._schema}.log VALUES (1, 0, 1, 0, '')".encode())
        with pytest.raises(StoreDamagedError, match="holds records that this process did not write"):
            await store.commit(Batch(1, _records(1, 1)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("@127.0.0.1", "@127.0.0.1:1"), "no Postgres listens at .*connection refused"),
        (("127.0.0.1", "nobody.invalid"), "could not look up"),
        (("/postgres?", "/absent?"), "there is no database 'absent' .*createdb"),
        (("of-the-tests", "of-the-rests"), "refuses the user or password"),
        (("//postgres:", "//stranger:"), "refuses the user or password"),
    ],
)
async def test_a_server_that_cannot_be_used_is_told_in_one_line_without_the_password(
    change: tuple[str, str], words: str, own_postgres: PostgresServer
) -> None:
    url = own_postgres.url("any")
    url = url.replace(*change).replace(f"1:1:{own_postgres.port}/", "1:1/")
    with pytest.raises(StoreError, match=words) as caught:
        await PostgresStore.open(url)
    assert "\n" not in str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("body", ["[1, 2]", "[1,0", "{}", ""])
async def test_a_head_of_another_form_is_told_of_also_where_roots_are_asked_for(postgres: Server, body: str) -> None:
    url = postgres.url(new_swarm())
    async with _store(url) as store, _watcher(url) as watcher:
        change = f"INSERT INTO {store._schema}.heads (agent, unfinished, body) VALUES (1, false, '{body}')"
        await watcher.execute(change.encode())
        with pytest.raises(StoreDamagedError, match=r"repair postgres://.* makes heads anew"):
            await store.heads(roots=True)


async def test_an_agent_that_is_not_there_is_told_without_the_password(postgres: Server) -> None:
    url = postgres.url(new_swarm())
    async with _store(url):
        with pytest.raises(UnknownAgentError, match=r"no agent 9 in postgres://.*swarm=") as caught:
            await read_session(url, 9)
    assert "s3cret" not in str(caught.value)


async def test_a_unix_socket_serves_and_a_missing_one_is_told_of(own_postgres: PostgresServer) -> None:
    swarm = new_swarm()
    async with _store(own_postgres.socket_url(swarm)) as store:
        await store.commit(Batch(1, _records(1, 3)))
    async with _store(own_postgres.url(swarm)) as store:
        assert len(await store.scan(0)) == 3
    with pytest.raises(StoreError, match="no Postgres listens at the Unix socket") as caught:
        await PostgresStore.open("postgres:///postgres?host=/nowhere&swarm=x")
    assert "\n" not in str(caught.value)


async def test_a_user_without_rights_is_told_which_to_grant(own_postgres: PostgresServer) -> None:
    own_postgres.execute("DROP ROLE IF EXISTS guest")
    own_postgres.execute("CREATE ROLE guest LOGIN")
    swarm = new_swarm()
    store = await PostgresStore.open(own_postgres.socket_url(swarm).replace("user=postgres", "user=guest"))
    with pytest.raises(StoreError, match="grant it CREATE on the database, or the schema"):
        await store.acquire(PROCESS)
    await store.aclose()
    async with _store(own_postgres.socket_url(swarm)):
        with pytest.raises(StoreError, match="permission denied"):
            await PostgresStore.open(own_postgres.socket_url(swarm).replace("user=postgres", "user=guest"))


# Owning.


ELSEWHERE = Owner("another boot", 77, 5, "another-machine")


async def test_an_owner_on_another_machine_keeps_the_store_while_its_lease_holds(postgres: Server) -> None:
    url = postgres.url(new_swarm())
    async with _store(url, lease_seconds=1.0, owner=ELSEWHERE) as away:
        await away.commit(Batch(1, _records(1, 2)))
        here = await PostgresStore.open(url)
        with pytest.raises(StoreOwnedError, match="process 77 on another-machine, whose lease holds") as caught:
            await here.acquire(PROCESS)
        assert (caught.value.pid, caught.value.state) == (77, "elsewhere")
        for number in (2, 3):
            await trio.sleep(0.6)
            await away.commit(Batch(number, ()))
        with pytest.raises(StoreOwnedError):
            await here.acquire(PROCESS)
        await trio.sleep(1.1)
        assert (await here.acquire(PROCESS)).last_seq == 2
        with pytest.raises(FencedError, match=r"took .* over"):
            await away.commit(Batch(4, _records(3, 1)))
        await here.aclose()


async def test_another_boot_or_container_is_judged_by_its_lease_too(postgres: Server) -> None:
    for owner in (
        msgspec.structs.replace(PROCESS, boot_id="before", pid=1),
        msgspec.structs.replace(PROCESS, host="container", pid=1),
    ):
        url = postgres.url(new_swarm())
        async with _store(url, lease_seconds=0.5, owner=owner):
            here = await PostgresStore.open(url)
            with pytest.raises(StoreOwnedError) as caught:
                await here.acquire(PROCESS)
            assert caught.value.state == "elsewhere"
            await trio.sleep(0.6)
            await here.acquire(PROCESS)
            await here.aclose()


async def test_a_reused_pid_is_not_taken_for_the_owner(postgres: Server) -> None:
    url = postgres.url(new_swarm())
    async with _store(url, owner=msgspec.structs.replace(PROCESS, started=PROCESS.started - 1)):
        here = await PostgresStore.open(url)
        await here.acquire(PROCESS)
        await here.aclose()


async def test_an_idle_owner_renews_its_lease_and_learns_of_a_takeover(postgres: Server) -> None:
    url = postgres.url(new_swarm())
    away = await PostgresStore.open(url, lease_seconds=0.6)
    journal = Journal(away, await away.acquire(ELSEWHERE), _heads)
    here = await PostgresStore.open(url)
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        await trio.sleep(1.5)
        with pytest.raises(StoreOwnedError):
            await here.acquire(PROCESS)
        await here.acquire(PROCESS, takeover=True)
        assert isinstance(await journal.wait_failed(), FencedError)
        nursery.cancel_scope.cancel()
    await here.aclose()
    await away.aclose()


async def test_a_store_can_be_looked_into_while_its_owner_runs(postgres: Server) -> None:
    url = postgres.url(new_swarm())
    async with _store(url) as store:
        await store.commit(Batch(1, _records(1, 3), [Head(1, 0, 1, "a.1", "idle", False, 3, 0)], 3))
        looker = await open_store(url, read_only=True)
        await store.commit(Batch(2, _records(4, 1)))
        assert len((await looker.load([(4, 0)]))[0]) == 4
        assert [head.name for head in await looker.heads()] == ["a.1"]
        statistics = await looker.statistics()
        assert (statistics.records, statistics.heads, statistics.heads_seq) == (4, 1, 3)
        assert statistics.owner == PROCESS
        assert "s3cret" not in statistics.url
        assert parse_url(statistics.url).url == statistics.url
        with pytest.raises(StoreError, match="opened for reading"):
            await looker.acquire(PROCESS)
        await looker.aclose()
    looker = await open_store(url, read_only=True)
    assert (await looker.statistics()).owner is None
    await looker.aclose()

"""The plain tables of row stores in Postgres: the same rows as in SQLite, in one statement, shared by all swarms."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from nanotrio.errors import StoreError, UsageError
from nanotrio.messages import Text, ToolCall
from nanotrio.records import (
    Closed,
    Fact,
    MailArrived,
    MailRead,
    MailReturned,
    MailTaken,
    Record,
    Replied,
    Settled,
    Spawned,
    ToolEnded,
    ToolIntended,
    TurnEnded,
    TurnStarted,
)
from nanotrio.stores import Batch, StoreCare, open_store, query, this_process
from nanotrio.stores.postgres_address import parse_postgres_url
from nanotrio.stores.postgres_connection import TrioConnection, connect
from nanotrio.stores.postgres_rows import TABLES
from tests import counts
from tests.stores.postgres_server import NamedServer, PostgresServer, new_swarm
from tests.stores.test_rows import EXPECTED, LOG, USED, record_with, write_log_to

Server = PostgresServer | NamedServer


@pytest.fixture
def url(postgres: Server) -> str:
    return postgres.url(new_swarm(), kind="postgres+rows")


def _without(url: str) -> str:
    return url.replace("postgres+rows:", "postgres:")


async def _check(url: str) -> None:
    for sql, expected in EXPECTED.items():
        answer = await query(url, sql)
        assert (answer.rows, answer.behind) == (expected, 0)


@pytest.mark.parametrize("sizes", [(1,), (3,), (7,), (100,), (2, 9, 1)])
async def test_every_fact_finds_its_place_however_batches_are_cut(sizes: tuple[int, ...], url: str) -> None:
    await write_log_to(url, LOG, sizes)
    await _check(url)


def _some_facts(chance: random.Random, seq: int, agent: int) -> list[Fact]:
    call_id = f"c{chance.randrange(3)}"
    mail = chance.randrange(seq + 1)
    choices: list[Fact] = [
        MailArrived(chance.choice(("prompt", "text", "steer")), 0, f"mail {seq}"),
        TurnStarted(seq, mail),
        MailRead(mail),
        MailTaken((mail, max(0, mail - 1))),
        MailReturned(mail),
        Replied("m", (Text("hm"), ToolCall(call_id, "bash", "{}"), ToolCall("c0", "ls", "{}")), "end", USED, 5),
        ToolIntended(call_id, chance.choice((0, agent))),
        ToolEnded(call_id, f"result {seq}", chance.random() < 0.3),
        TurnEnded("failed", f"reason {seq}", "", ""),
        Settled(),
        Closed("by hand"),
    ]
    return chance.choices(choices, k=chance.choice((1, 1, 2, 3)))


def _some_log(chance: random.Random, count: int) -> list[Record]:
    """Return a log of a few agents to which anything happens in any order, as no swarm would write it."""
    records = [record_with(1, 1, Spawned(0, 1, 0, "a.1", 0))]
    agents = 1
    for seq in range(2, count):
        if agents < 4 and chance.random() < 0.1:
            agents += 1
            records.append(record_with(seq, agents, Spawned(1, 1, 1, f"a.{agents}", 0), *_some_facts(chance, seq, 1)))
        else:
            agent = chance.randint(1, agents)
            records.append(record_with(seq, agent, *_some_facts(chance, seq, agent)))
    return records


@pytest.mark.deadline(600)
async def test_whatever_happens_in_any_order_the_rows_are_those_of_sqlite(postgres: Server, tmp_path: Path) -> None:
    for seed in range(counts.FAULTS // 2):
        chance = random.Random(seed)
        log = _some_log(chance, 120)
        one = f"sqlite+rows:{tmp_path}/{seed}.db"
        other = postgres.url(new_swarm(), kind="postgres+rows")
        await write_log_to(one, log, (chance.choice((1, 4, 200)),))
        await write_log_to(other, log, [chance.choice((1, 3, 10, 60)) for _ in range(9)])
        for table, columns in TABLES.items():
            sql = f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1, 2"
            assert (await query(other, sql)).rows == (await query(one, sql)).rows, f"seed {seed}, {table}"


async def test_a_swarm_may_have_any_name_that_an_address_takes(postgres: Server) -> None:
    odd = postgres.url(f"{new_swarm()}.A-b_", kind="postgres+rows")
    await write_log_to(odd, LOG, (6,))
    await _check(odd)
    assert not (await StoreCare(odd).repair()).is_new
    await _check(odd)


async def test_what_was_written_without_rows_is_made_up_for(url: str) -> None:
    await write_log_to(_without(url), LOG[:5], (2,))
    for each in (url, _without(url)):
        with pytest.raises(UsageError, match=r"has no tables; opened once as postgres\+rows:"):
            await query(each, "SELECT 1")
    await write_log_to(url, LOG[:9], (3,))
    await write_log_to(_without(url), LOG[:12], (3,))
    assert (await query(_without(url), "SELECT count(*) FROM agents")).behind == 3
    await write_log_to(url, LOG, (3,))
    await _check(url)


async def test_a_long_log_is_made_up_for_in_parts_and_a_large_batch_in_a_thread(url: str) -> None:
    log = [LOG[0], *LOG[1:3]]
    log += [record_with(seq, 1, MailArrived("text", 0, f"mail {seq}")) for seq in range(4, 9_001)]
    await write_log_to(_without(url), log, (1_000,))
    await write_log_to(url, [*log, record_with(9_001, 1, MailRead(9_000))], (1,))
    found = await query(
        url, "SELECT count(*), count(DISTINCT seq), min(fate), count(fate) FROM mail WHERE kind = 'text'"
    )
    assert found.rows == [(8_997, 8_997, None, 0)]
    more = [record_with(seq, 1, MailTaken((seq - 5_000,))) for seq in range(9_002, 12_001)]
    store = await open_store(url)
    await store.acquire(this_process())
    await store.commit(Batch(1, more))
    await store.aclose()
    assert (await query(url, "SELECT count(*) FROM mail WHERE fate = 'taken'")).rows == [(2_999,)]


async def test_a_record_that_nobody_understands_is_in_the_log_and_counted(url: str) -> None:
    odd = [Record(1, 0, 1, 0, b"\xff"), record_with(2, 1, MailArrived("text", 7, "of an agent that is not there"))]
    await write_log_to(url, odd, (2,))
    assert (await query(url, "SELECT seq, unread FROM rows_mark")).rows == [(2, 1)]
    assert (await query(url, "SELECT sender FROM mail")).rows == [(7,)]


async def test_a_batch_whose_answer_was_lost_puts_its_rows_in_once(url: str) -> None:
    store = await open_store(url)
    await store.acquire(this_process())
    for number, at in enumerate(range(0, len(LOG), 5), 1):
        for _ in range(2):
            await store.commit(Batch(number, LOG[at : at + 5]))
    await store.aclose()
    await _check(url)


async def test_a_commit_fails_with_its_rows_and_heals(url: str, postgres: Server) -> None:
    await write_log_to(url, LOG[:4], (100,))
    store = await open_store(url)
    await store.acquire(this_process())
    swarm = parse_postgres_url(url).swarm
    number = postgres.execute("SELECT id FROM nanotrio.swarms WHERE name = %s", swarm)[0][0]
    postgres.execute(f"ALTER TABLE nanotrio.usage ADD CONSTRAINT no_{number} CHECK (swarm <> {number}) NOT VALID")
    with pytest.raises(StoreError, match="violates check constraint"):
        await store.commit(Batch(1, LOG[4:]))
    assert len(await store.scan(0)) == 4
    postgres.execute(f"ALTER TABLE nanotrio.usage DROP CONSTRAINT no_{number}")
    await store.commit(Batch(1, LOG[4:]))
    await store.aclose()
    await _check(url)


async def test_swarms_share_tables_and_each_sees_its_own_rows(url: str, postgres: Server) -> None:
    other = postgres.url(new_swarm(), kind="postgres+rows")
    await write_log_to(url, LOG, (6,))
    await write_log_to(other, LOG[:4], (100,))
    assert (await query(url, "SELECT count(*) FROM agents")).rows == [(2,)]
    assert (await query(other, "SELECT count(*) FROM agents")).rows == [(1,)]
    names = [parse_postgres_url(each).swarm for each in (url, other)]
    across = await query(
        url,
        "SELECT s.name, count(*) FROM nanotrio.swarms s JOIN nanotrio.agents a ON a.swarm = s.id"
        f" WHERE s.name IN ('{names[0]}', '{names[1]}') GROUP BY 1 ORDER BY 1",
    )
    assert across.rows == sorted([(names[0], 2), (names[1], 1)])


async def test_a_swarm_that_was_dropped_and_begun_again_has_none_of_the_old_rows(url: str, postgres: Server) -> None:
    await write_log_to(url, LOG, (6,))
    postgres.execute(f"DROP SCHEMA nanotrio_{parse_postgres_url(url).swarm} CASCADE")
    await write_log_to(url, LOG[:4], (6,))
    assert (await query(url, "SELECT count(*) FROM agents")).rows == [(1,)]
    assert (await query(url, "SELECT count(*) FROM mail")).rows == [(1,)]


async def test_tables_that_are_lost_or_wrong_are_made_anew(url: str, postgres: Server) -> None:
    swarm = parse_postgres_url(url).swarm
    await write_log_to(url, LOG, (6,))
    postgres.execute(
        "UPDATE nanotrio.agents SET status = 'wrong' WHERE swarm IN (SELECT id FROM nanotrio.swarms WHERE name = %s)",
        swarm,
    )
    assert not (await StoreCare(url).repair()).is_new
    await _check(url)
    postgres.execute(f"DROP VIEW nanotrio_{swarm}.usage")
    with pytest.raises(UsageError, match="does not exist"):
        await query(url, "SELECT model FROM usage")
    await write_log_to(url, LOG, (6,))
    await _check(url)


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM nobody", "does not exist"),
        ("DELETE FROM agents", "syntax error"),
        ("WITH gone AS (DELETE FROM nanotrio.agents RETURNING 1) SELECT * FROM gone", "data-modifying"),
        ("SELECT * FROM nanotrio.agents FOR UPDATE", "more than read"),
        ("SELECT set_config('transaction_read_only', 'off', false)", "read-write mode"),
        ("SELECT nextval('nanotrio.swarms_id_seq')", "more than read"),
        ("SELECT 1; DROP TABLE nanotrio.agents", "several statements; ask one at a time"),
        ("SELECT 1 / (SELECT 0)", "division by zero"),
    ],
)
async def test_a_query_that_is_wrong_or_would_write_is_refused_in_one_line(sql: str, words: str, url: str) -> None:
    await write_log_to(url, LOG, (100,))
    with pytest.raises(UsageError, match=words) as caught:
        await query(url, sql)
    assert "\n" not in str(caught.value)


async def test_an_answer_is_cut_at_the_limit_and_its_values_are_plain(url: str) -> None:
    await write_log_to(url, LOG, (100,))
    answer = await query(url, "SELECT seq FROM mail ORDER BY seq", limit=2)
    assert (answer.columns, answer.rows, answer.is_cut) == (("seq",), [(2,), (5,)], True)
    sql = "SELECT sum(input), avg(input), 1.5::float8, true,"
    sql += " '\\x0aff'::bytea, NULL, to_timestamp(0)::date AS d FROM usage"
    answer = await query(url, sql)
    assert (answer.rows, answer.columns[-1]) == ([(305, 76.25, 1.5, 1, b"\n\xff", None, "1970-01-01")], "d")
    assert (await query(url, "SELECT seq FROM mail WHERE false")).columns == ("seq",)


async def test_a_store_that_is_not_there_is_named(url: str) -> None:
    with pytest.raises(UsageError, match="there is no swarm"):
        await query(url, "SELECT 1")


@pytest.mark.parametrize("how", ["cancelled", "too long"])
async def test_a_query_that_would_run_for_ever_ends_here_and_on_the_server(how: str, url: str) -> None:
    await write_log_to(url, LOG, (100,))
    endless = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*), '{url[-9:]}' FROM n"
    if how == "cancelled":
        with trio.move_on_after(0.2) as scope:
            await query(url, endless)
        assert scope.cancelled_caught
    else:
        with pytest.raises(UsageError, match=r"ran for more than 0\.2 s"):
            await query(url, endless, seconds=0.2)
    watcher = await connect(parse_postgres_url(url).parameters)
    with trio.fail_after(5):
        while await _runs(watcher, url[-9:]):
            pass
    watcher.discard()


async def _runs(watcher: TrioConnection, text: str) -> Sequence[object]:
    cursor = await watcher.execute(
        "SELECT 1 FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid() AND query ~ %s", (text,)
    )
    return await cursor.fetchall()


async def test_a_database_that_cannot_hold_every_text_is_refused_with_what_to_do(own_postgres: PostgresServer) -> None:
    name = new_swarm()
    own_postgres.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    store = await open_store(own_postgres.url("x", database=name, kind="postgres+rows"))
    with pytest.raises(
        StoreError, match=r"has the encoding LATIN1.*createdb -E UTF8, or leave the tables out: postgres:"
    ):
        await store.acquire(this_process())
    await store.aclose()
    await write_log_to(own_postgres.url("x", database=name), LOG, (100,))
    own_postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")

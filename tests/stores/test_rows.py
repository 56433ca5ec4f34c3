"""The plain tables of a row store: what a record puts there, and that they always agree with the log."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import apsw
import pytest
import trio

import nanotrio
from nanotrio.errors import StoreError, UsageError
from nanotrio.fact_form import encode_facts
from nanotrio.messages import Text, Thinking, ToolCall, Usage
from nanotrio.models import ScriptedModel, reply_calls, reply_text
from nanotrio.records import (
    AttemptFailed,
    ChildEnded,
    Closed,
    Content,
    Fact,
    MailArrived,
    MailRead,
    MailReturned,
    MailTaken,
    Record,
    Replied,
    Settled,
    Spawned,
    Submitted,
    ToolEnded,
    ToolIntended,
    TurnEnded,
    TurnStarted,
)
from nanotrio.stores.address import open_store
from nanotrio.stores.owner import this_process
from nanotrio.stores.query import query
from nanotrio.stores.rows import AgentChange, AgentRow, MailRow, MessageRow, changes_in_rounds, project
from nanotrio.stores.sqlite import SqliteStore
from nanotrio.stores.store import Batch
from nanotrio.testing.check_store import CHECKS, OpenStore

USED = Usage(100, 20, 3000, 4)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.strip("_"))
async def test_a_row_store_keeps_every_promise_of_a_store(
    check: Callable[[OpenStore], Awaitable[None]], tmp_path: Path
) -> None:
    await check(lambda name: SqliteStore.open(tmp_path / f"{name}.db", rows=True))


def record_with(seq: int, agent: int, *facts: Fact) -> Record:
    return Record(seq, 0, agent, seq * 1000, encode_facts(facts))


def _call(call_id: str, name: str = "bash", arguments: str = "{}") -> ToolCall:
    return ToolCall(call_id, name, arguments)


def _reply(*parts: Text | Thinking | ToolCall, cost_nano: int | None = 500) -> Replied:
    return Replied("scripted/x", parts, "end", USED, cost_nano)


LOG = [
    record_with(1, 0, Content(b"d" * 16, b"body")),
    record_with(2, 1, Spawned(0, 1, 0, "root.1", 1, "a-uuid"), MailArrived("prompt", 0, "do\0it")),
    record_with(3, 1, TurnStarted(1, 2)),
    record_with(
        4, 1, _reply(Thinking("hm"), Text("I start."), _call("c1", "spawn_agent"), _call("c2", "bash", '{"a":1}'))
    ),
    record_with(5, 2, Spawned(1, 1, 1, "w.2", 1), MailArrived("prompt", 1, "part", "root.1")),
    record_with(6, 1, ToolIntended("c1", 2), ToolIntended("c2")),
    record_with(7, 1, ToolEnded("c2", "no\0such file", True, "bash: it failed")),
    record_with(8, 2, TurnStarted(1, 5), AttemptFailed("transient", "cut", Usage(5), None, 70)),
    record_with(
        9, 2, _reply(Text("done"), cost_nano=None), Submitted('"yes"'), TurnEnded("completed", "", '"yes"', "done")
    ),
    record_with(10, 2, Settled()),
    record_with(11, 1, ChildEnded(2, "w.2", 1, "completed", "", '"yes"', "done", USED, 500)),
    record_with(12, 1, MailTaken((11,)), ToolEnded("c1", "completed")),
    record_with(13, 1, MailArrived("text", 2, "psst", "w.2")),
    record_with(14, 1, MailArrived("steer", 0, "faster")),
    record_with(15, 1, MailRead(14)),
    # The same id again, as some servers give it, and two of them in a row.
    record_with(16, 1, _reply(_call("c2", "read"))),
    record_with(17, 1, ToolIntended("c2")),
    record_with(18, 1, ToolEnded("c2", "second")),
    record_with(19, 1, TurnEnded("failed", "no money", "", "I start."), Closed("by hand")),
    record_with(20, 1, MailReturned(19), Settled()),
]

EXPECTED = {
    "SELECT agent, parent, root, depth, name, uuid, created_us, status, turns, outcome, reason, result FROM agents"
    " ORDER BY agent": [
        (1, None, 1, 0, "root.1", "a-uuid", 2000, "closed", 1, "failed", "no money", ""),
        (2, 1, 1, 1, "w.2", "", 5000, "idle", 1, "completed", "", '"yes"'),
    ],
    "SELECT last_text, ended_us FROM agents ORDER BY agent": [("I start.", 19000), ("done", 9000)],
    "SELECT seq, agent, role, kind, text, model FROM messages ORDER BY seq, position": [
        (2, 1, "user", "text", "do\ufffdit", ""),
        (4, 1, "assistant", "thinking", "hm", "scripted/x"),
        (4, 1, "assistant", "text", "I start.", "scripted/x"),
        (5, 2, "user", "text", "part", ""),
        (9, 2, "assistant", "text", "done", "scripted/x"),
    ],
    "SELECT seq, call_id, name, arguments, asked_us, dispatched_us, child, ended_us, result, is_error, mistake"
    " FROM tool_calls ORDER BY seq, position": [
        (4, "c1", "spawn_agent", "{}", 4000, 6000, 2, 12000, "completed", 0, ""),
        (4, "c2", "bash", '{"a":1}', 4000, 6000, None, 7000, "no\ufffdsuch file", 1, "bash: it failed"),
        (16, "c2", "read", "{}", 16000, 17000, None, 18000, "second", 0, ""),
    ],
    "SELECT seq, recipient, sender, sender_name, kind, text, fate, fate_seq FROM mail ORDER BY seq": [
        (2, 1, None, "", "prompt", "do\ufffdit", "read", 3),
        (5, 2, 1, "root.1", "prompt", "part", "read", 8),
        (11, 1, 2, "w.2", "child", 'completed: "yes"', "taken", 12),
        (13, 1, 2, "w.2", "text", "psst", "returned", 20),
        (14, 1, None, "", "steer", "faster", "read", 15),
    ],
    "SELECT agent, model, input, output, cache_read, cache_write, cost_nano, uncertain_nano, error FROM usage"
    " ORDER BY seq, position": [
        (1, "scripted/x", 100, 20, 3000, 4, 500, 0, ""),
        (2, "", 5, 0, 0, 0, None, 70, "transient: cut"),
        (2, "scripted/x", 100, 20, 3000, 4, None, 0, ""),
        (1, "scripted/x", 100, 20, 3000, 4, 500, 0, ""),
    ],
}


async def write_log(path: Path, records: Sequence[Record], sizes: Sequence[int], *, rows: bool = True) -> None:
    await write_log_to(f"sqlite{'+rows' * rows}:{path}", records, sizes)


async def write_log_to(url: str, records: Sequence[Record], sizes: Sequence[int]) -> None:
    store = await open_store(url)
    tenure = await store.acquire(this_process())
    at, number = tenure.last_seq, 0
    while at < len(records):
        size = sizes[number % len(sizes)]
        number += 1
        await store.commit(Batch(number, records[at : at + size]))
        at += size
    await store.aclose()


@pytest.mark.parametrize("sizes", [(1,), (3,), (7,), (100,), (2, 9, 1)])
async def test_every_fact_finds_its_place_however_batches_are_cut(sizes: tuple[int, ...], tmp_path: Path) -> None:
    await write_log(tmp_path / "rows.db", LOG, sizes)
    for sql, expected in EXPECTED.items():
        assert (await query(f"sqlite+rows:{tmp_path}/rows.db", sql)).rows == expected


async def test_what_was_written_without_rows_is_made_up_for(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    await write_log(path, LOG[:5], (2,), rows=False)
    with pytest.raises(UsageError, match=r"has no tables; opened once as sqlite\+rows:"):
        await query(f"sqlite:{path}", "SELECT 1")
    await write_log(path, LOG[:9], (3,))
    await write_log(path, LOG[:12], (3,), rows=False)
    assert (await query(f"sqlite:{path}", "SELECT count(*) FROM agents")).behind == 3
    await write_log(path, LOG, (3,))
    for sql, expected in EXPECTED.items():
        answer = await query(f"sqlite:{path}", sql)
        assert (answer.rows, answer.behind) == (expected, 0)


async def test_a_record_that_nobody_understands_is_in_the_log_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    odd = [Record(1, 0, 1, 0, b"\xff"), record_with(2, 1, Spawned(0, 1, 0, "root.1", 0))]
    await write_log(path, odd, (2,))
    assert (await query(f"sqlite:{path}", "SELECT seq, unread FROM rows_mark")).rows == [(2, 1)]
    assert (await query(f"sqlite:{path}", "SELECT name FROM agents")).rows == [("root.1",)]


def test_projecting_needs_nothing_but_the_record() -> None:
    assert project(LOG[1]) == [
        AgentRow(1, None, 1, 0, "root.1", "a-uuid", 1, 2000),
        MessageRow(2, 1, 1, 2000, "user", "text", "do\ufffdit", ""),
        MailRow(2, 1, None, "", "prompt", "do\ufffdit", 2000),
    ]
    assert project(LOG[0]) == []
    assert project(LOG[9]) == [AgentChange(2, "settled")]


def test_changes_of_one_row_stay_in_order_and_part_ways() -> None:
    chance = random.Random(5)
    changes = [AgentChange(chance.randrange(10), turns=number) for number in range(100)]
    parts = list(changes_in_rounds(changes, lambda change: change.agent))
    assert all(len({change.agent for change in part}) == len(part) for part in parts)
    for agent in range(10):
        mine = [change.turns for part in parts for change in part if change.agent == agent]
        assert mine == [change.turns for change in changes if change.agent == agent]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM nobody", "no such table"),
        ("DELETE FROM agents", "more than read"),
        ("CREATE TABLE x (y)", "more than read"),
        ("PRAGMA journal_mode = delete", "more than read"),
        ("ATTACH '/tmp/x.db' AS x", "more than read"),
        ("SELECT 1; DROP TABLE agents", "several statements; ask one at a time"),
        ("SELECT 1; SELECT 2", "several statements; ask one at a time"),
        ("SELECT seq FROM mail; /* more */ nonsense /* follows */", "several statements; ask one at a time"),
        ("SELECT 1;\0", "null character"),
    ],
)
async def test_a_query_that_is_wrong_or_would_write_is_refused_in_one_line(
    sql: str, words: str, tmp_path: Path
) -> None:
    await write_log(tmp_path / "rows.db", LOG, (100,))
    with pytest.raises(UsageError, match=words):
        await query(f"sqlite+rows:{tmp_path}/rows.db", sql)


@pytest.mark.parametrize("end", [";", " ; ", ";;\n", "; -- done", " -- done;", "; /* done; */ -- now", ";/* open"])
async def test_what_follows_a_statement_and_is_none_is_passed_over(end: str, tmp_path: Path) -> None:
    await write_log(tmp_path / "rows.db", LOG, (100,))
    answer = await query(f"sqlite+rows:{tmp_path}/rows.db", f"SELECT 'a;b' AS x{end}")
    assert (answer.columns, answer.rows) == (("x",), [("a;b",)])


async def test_a_store_that_has_no_tables_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nanotrio store copy jsonl:x sqlite\+rows:PATH"):
        await query("jsonl:x", "SELECT 1")
    with pytest.raises(UsageError, match="there is no store at"):
        await query(f"sqlite+rows:{tmp_path}/absent", "SELECT 1")


async def test_an_answer_is_cut_at_the_limit_and_says_so(tmp_path: Path) -> None:
    await write_log(tmp_path / "rows.db", LOG, (100,))
    answer = await query(f"sqlite+rows:{tmp_path}/rows.db", "SELECT seq FROM mail ORDER BY seq", limit=2)
    assert (answer.columns, answer.rows, answer.is_cut) == (("seq",), [(2,), (5,)], True)


async def test_a_query_that_would_run_for_ever_ends_when_cancelled(tmp_path: Path) -> None:
    await write_log(tmp_path / "rows.db", LOG, (100,))
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with trio.move_on_after(0.2) as scope:
        await query(f"sqlite+rows:{tmp_path}/rows.db", endless)
    assert scope.cancelled_caught
    store = await SqliteStore.open(tmp_path / "rows.db", rows=True)
    await store.acquire(this_process())
    await store.aclose()


async def test_the_tables_of_a_real_swarm_answer_real_questions(tmp_path: Path) -> None:
    url = f"sqlite+rows:{tmp_path}/swarm.db"

    def script(conversation: nanotrio.models.Conversation) -> nanotrio.models.Reply:
        if conversation.task.startswith("child"):
            return reply_text(f"{conversation.task} is done")
        if conversation.steps == 0:
            calls = [("spawn_agent", {"name": "w", "prompt": f"child {n}", "background": False}) for n in range(3)]
            return reply_calls(*calls)
        return reply_text("all done")

    async with nanotrio.open_swarm(store=url, model=ScriptedModel(script)) as swarm:
        outcome = await (await swarm.spawn("root")).wait()
        assert outcome.status == "completed", outcome.reason
    answer = await query(
        url,
        """
        WITH RECURSIVE subtree(agent, top) AS (
          SELECT agent, agent FROM agents WHERE parent IS NULL
          UNION ALL SELECT a.agent, s.top FROM agents a JOIN subtree s ON a.parent = s.agent)
        SELECT top, count(DISTINCT s.agent), sum(u.output) > 0 FROM subtree s JOIN usage u USING (agent) GROUP BY top
        """,
    )
    assert answer.rows == [(1, 4, 1)]
    assert (await query(url, "SELECT status, outcome, count(*) FROM agents GROUP BY 1, 2")).rows == [
        ("idle", "completed", 4)
    ]
    slowest = "SELECT name, ended_us - dispatched_us AS us FROM tool_calls ORDER BY us DESC LIMIT 1"
    assert (await query(url, slowest)).rows[0][0] == "spawn_agent"
    assert (await query(url, "SELECT count(*) FROM tool_calls WHERE ended_us IS NULL")).rows == [(0,)]


def test_foreign_keys_hold_in_a_log_that_a_swarm_wrote(tmp_path: Path) -> None:
    trio.run(write_log, tmp_path / "rows.db", LOG, (100,))
    connection = apsw.Connection(str(tmp_path / "rows.db"))
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    assert connection.execute("PRAGMA integrity_check").get == "ok"
    connection.close()


async def test_a_full_transaction_fails_with_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    await write_log(path, LOG[:4], (100,))
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TRIGGER no BEFORE INSERT ON usage BEGIN SELECT raise(ABORT, 'not today'); END")
    store = await SqliteStore.open(path, rows=True)
    await store.acquire(this_process())
    with pytest.raises(StoreError, match="not today"):
        await store.commit(Batch(1, LOG[4:]))
    assert len(await store.scan(0)) == 4
    connection.execute("DROP TRIGGER no")
    connection.close()
    await store.commit(Batch(1, LOG[4:]))
    await store.aclose()
    for sql, expected in EXPECTED.items():
        assert (await query(f"sqlite:{path}", sql)).rows == expected

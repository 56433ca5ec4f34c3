"""``nanotrio store``, ``export`` and ``sql``, each in a process of its own."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.cli.test_headless import wait_for_shell
from tests.invocation import COMMAND
from tests.stores.postgres_server import NamedServer, PostgresServer, new_swarm
from tests.terminal import open_terminal

SKIP = "--dangerously-skip-permissions"
STORE = "sqlite+rows:rows.db"


def _said(command: Command, *arguments: str, code: int = 0) -> str:
    done = command.run(*arguments)
    assert done.returncode == code, done.stderr
    return done.stdout.decode()


def _refusal(command: Command, *arguments: str, code: int = 1) -> str:
    done = command.run(*arguments)
    assert (done.returncode, done.stdout) == (code, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("nanotrio: ")
    return line


def test_a_store_is_checked_copied_pruned_and_counted(command: Command) -> None:
    command.ask("hello", "--store", STORE)
    assert _said(command, "store", "check", STORE) == "whole: 5 records of 1 agent\n"
    assert json.loads(_said(command, "store", "check", STORE, "--json"))["problem_count"] == 0
    assert _said(command, "store", "copy", STORE, "jsonl:copy.jsonl").startswith("copied 5 records and 1 head to ")
    assert "name a new store" in _refusal(command, "store", "copy", STORE, "jsonl:copy.jsonl")
    command.ask("again", "--store", "jsonl:copy.jsonl")
    pruned = json.loads(_said(command, "store", "prune", "jsonl:copy.jsonl", "--older-than", "1d", "--json"))
    assert (pruned["roots"], pruned["kept_roots"]) == (0, 2)
    assert _said(command, "store", "check", "jsonl:copy.jsonl.pruned").startswith("whole: ")
    counted = _said(command, "store", "stats", "jsonl:copy.jsonl").splitlines()
    assert ["sessions", "2"] in [line.split() for line in counted]
    assert json.loads(_said(command, "store", "stats", STORE, "--json"))["roots"] == 1
    assert _said(command, "store", "repair", STORE).startswith("the log is whole (5 records)")
    for words in (("copy", STORE, STORE), ("prune", STORE, "--older-than", "1d", "--into", "sqlite:rows.db")):
        assert "the new store and the one it is made from are the same" in _refusal(command, "store", *words)


def test_damage_is_told_line_by_line_and_what_can_be_read_is_saved(command: Command) -> None:
    for text in ("one", "two"):
        command.ask(text, "--store", "jsonl:log.jsonl")
    path = command.directory / "log.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[-2] = lines[-2].replace(b"a", b"b", 1)
    path.write_bytes(b"".join(lines))

    told = _said(command, "store", "check", "jsonl:log.jsonl", code=1)

    assert told.splitlines()[-1] == f"1 problem; save what can be by: nanotrio store repair jsonl:{path}"
    assert _said(command, "store", "repair", "jsonl:log.jsonl").startswith("saved ")
    assert _said(command, "store", "check", "jsonl:log.jsonl.repaired").startswith("whole: ")


@pytest.mark.parametrize("action", ["check", "repair", "stats"])
def test_what_is_no_store_is_refused_in_one_line(command: Command, action: str) -> None:
    Path(command.directory / "other").write_text("something else, of some length " * 50)

    assert "nowhere" in _refusal(command, "store", action, "sqlite:nowhere.db") or action == "repair"
    assert "other" in _refusal(command, "store", action, "sqlite:other")
    assert "no kind" in _refusal(command, "store", action, "other", code=2)


def test_a_question_is_answered_in_csv_in_json_or_as_a_table(command: Command) -> None:
    command.ask('say "a, b"', "--store", STORE)
    sql = ("sql", "SELECT name, result, last_text, x'0aff' AS blob FROM agents", "--store", STORE)

    assert list(csv.reader(io.StringIO(_said(command, *sql)))) == [
        ["name", "result", "last_text", "blob"],
        ["agent.1", "", 'you said: say "a, b"', "0aff"],
    ]
    (row,) = _said(command, *sql, "--json").splitlines()
    assert json.loads(row)["last_text"] == 'you said: say "a, b"'
    with open_terminal(
        [*COMMAND, *sql], cwd=command.directory, environment=command.environment, rows=20, columns=100
    ) as terminal:
        assert terminal.wait_ended() == 0
        head, line = [line for line in terminal.text().splitlines() if line.strip() and not line.startswith("[")]
    assert head.split() == ["name", "result", "last_text", "blob"]
    assert line.split()[0] == "agent.1"


def test_a_row_store_in_postgres_is_asked_cared_for_and_never_shows_its_password(
    command: Command, postgres: PostgresServer | NamedServer
) -> None:
    store = postgres.url(new_swarm(), kind="postgres+rows")
    command.ask('say "a, b"', "--store", store)
    sql = ("sql", "SELECT name, last_text, '\\x0aff'::bytea AS blob, true AS yes FROM agents", "--store", store)
    assert list(csv.reader(io.StringIO(_said(command, *sql)))) == [
        ["name", "last_text", "blob", "yes"],
        ["agent.1", 'you said: say "a, b"', "0aff", "1"],
    ]
    with open_terminal(
        [*COMMAND, *sql], cwd=command.directory, environment=command.environment, rows=20, columns=100
    ) as terminal:
        assert terminal.wait_ended() == 0
        head, line = [line for line in terminal.text().splitlines() if line.strip() and not line.startswith("[")]
    assert (head.split()[0], line.split()[0]) == ("name", "agent.1")
    assert "syntax" in _refusal(command, "sql", "DELETE FROM agents", "--store", store)
    told = _said(command, "store", "check", store) + _said(command, "store", "stats", store)
    told += _said(command, "store", "repair", store) + _said(command, "store", "copy", store, "sqlite+rows:copy.db")
    assert "whole: 5 records of 1 agent" in told
    assert "postgres+rows://" in told
    assert "s3cret" not in told


def test_what_is_printed_of_a_store_never_shows_its_password(
    command: Command, postgres: PostgresServer | NamedServer
) -> None:
    at = ("--store", postgres.url(new_swarm()))
    session = command.ask("hello", *at)["session_id"]

    told = [_said(command, *words, *at) for words in (("ls", "--json"), ("show",), ("show", "--json", session))]
    told += [_said(command, *words, *at) for words in (("tree", "--json"), ("export",), ("export", "--tree"))]

    assert all("?swarm=" in text for text in told)
    assert not any("s3cret" in text for text in told)


def test_a_question_that_writes_is_wrong_or_has_no_tables_is_refused(command: Command) -> None:
    command.ask("hello", "--store", STORE)
    command.ask("hello", "--store", "sqlite:plain.db")

    assert "more than read" in _refusal(command, "sql", "DELETE FROM agents", "--store", STORE)
    assert "syntax" in _refusal(command, "sql", "SELECT FROM", "--store", STORE)
    assert "no tables" in _refusal(command, "sql", "SELECT 1", "--store", "sqlite:plain.db")
    assert "there is no store" in _refusal(command, "sql", "SELECT 1", "--store", "sqlite:nowhere.db")
    assert not (command.directory / "nowhere.db").exists()
    done = command.run("sql", "SELECT value FROM json_each('[1,2,3]')", "--store", STORE, "--limit", "2")
    assert (done.returncode, done.stdout) == (0, b"value\n1\n2\n")
    assert b"there are more than 2 rows; --limit N shows more" in done.stderr


def test_a_session_is_exported_whole_for_machines(command: Command) -> None:
    session = command.ask("family", SKIP, "--max-wait-seconds", "1.5")["session_id"]

    records = [json.loads(line) for line in _said(command, "export", session, "--tree").splitlines()]

    assert [each["name"] for each in records if each["type"] == "agent"] == ["agent.1", "kid.2", "kid.3"]
    assert [each["agent"] for each in records if each["type"] == "outcome"] == ["agent.1", "kid.2"]
    assert records[-1]["content"][0]["input"] == {"command": "sleep 600"}
    alone = [json.loads(line) for line in _said(command, "export", f"{session}/kid.2").splitlines()]
    assert [each["type"] for each in alone] == ["agent", "user", "assistant", "outcome"]
    assert "no agent answers" in _refusal(command, "export", "ffffffff")


def test_markdown_fences_what_tools_said(command: Command) -> None:
    command.ask("run printf '````\\nx'", SKIP)

    text = _said(command, "export", "--format", "markdown")

    assert text.startswith("# agent.1\n\n- session: ")
    assert "## User\n\nrun printf" in text
    assert "**bash**\n\n`````json\n" in text
    assert "**result**\n\n`````\n````\nx\n`````\n" in text


def test_a_store_that_runs_is_not_pruned_and_can_be_copied(command: Command) -> None:
    with command.start("-p", "run sleep 600", SKIP, "--store", STORE) as owner:
        wait_for_shell(command, "sleep 600")
        assert str(owner.pid) in _refusal(command, "store", "prune", STORE, "--older-than", "1d")
        assert _said(command, "store", "copy", STORE, "sqlite:copy.db").startswith("copied ")
        owner.terminate()
        owner.communicate(timeout=20)

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing

import pytest
import trio

import nanotrio
from nanotrio.models import ScriptedModel, reply_text
from tests.cli.conftest import Command
from tests.invocation import COMMAND
from tests.terminal import open_terminal

SKIP = "--dangerously-skip-permissions"


def test_without_a_terminal_a_list_is_a_row_a_line(command: Command) -> None:
    session = command.ask("hello")["session_id"]

    (line,) = command.run("ls").stdout.decode().splitlines()

    cells = line.split("\t")
    assert cells[0] == session
    assert cells[2:] == ["1", "completed", "$0.0000", "hello"]


def test_with_a_terminal_a_list_is_a_table_that_shows_every_column_however_narrow(command: Command) -> None:
    session = command.ask("hello " * 40)["session_id"]

    with open_terminal(
        [*COMMAND, "ls"], cwd=command.directory, environment=command.environment, rows=20, columns=80
    ) as terminal:
        assert terminal.wait_ended() == 0
        lines = terminal.text().splitlines()
    (at,) = [index for index, line in enumerate(lines) if line.startswith("session")]
    header, row, after = lines[at : at + 3]
    assert header.split() == ["session", "when", "agents", "status", "cost", "task"]
    name, _, _, agents, status, cost, *task = row.split()
    assert (name, agents, status, cost) == (session[:8], "1", "completed", "$0.0000")
    assert task[:2] == ["hello", "hello"]
    assert "hello" not in after
    assert command.run("show", name).returncode == 0


def test_nothing_yet_is_nothing(command: Command) -> None:
    done = command.run("ls")

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert not command.data.exists()


def test_of_many_sessions_the_first_are_listed_and_the_others_counted(command: Command) -> None:
    url = f"sqlite:{command.directory}/many.db"

    async def fill() -> None:
        model = ScriptedModel(lambda _: reply_text("ok"))
        async with nanotrio.open_swarm(store=url, model=model, environment={}) as swarm:
            agents = [await swarm.spawn("hello") for _ in range(203)]
            await agents[0].spawn_many(["child"] * 2)
            for agent in agents:
                await agent.wait()

    trio.run(fill)
    done = command.run("ls", "--store", url)
    assert len(done.stdout.splitlines()) == 200
    assert done.stderr.decode() == "nanotrio: and 3 completed more; --json lists all 203\n"
    assert len(command.run("ls", "--store", url, "--json").stdout.splitlines()) == 203
    assert "all 205" in command.run("ls", "--all", "--store", url).stderr.decode()
    sizes = [line.split("\t")[2] for line in done.stdout.decode().splitlines()]
    assert set(sizes) - {"3"} == {"1"}


def test_one_bad_file_does_not_hide_the_others(command: Command) -> None:
    session = command.ask("hello")["session_id"]
    (command.data / "runs" / "bad.db").write_text("something else")

    done = command.run("ls")

    assert done.returncode == 0
    assert session.encode() in done.stdout
    assert b"bad.db" in done.stderr
    assert command.run("ls", "--store", f"sqlite:{command.data}/runs/bad.db").returncode == 1


def test_one_store_of_another_form_does_not_hide_the_others(command: Command) -> None:
    command.run("-p", "hello")
    (bad,) = (command.data / "runs").glob("*.db")
    with closing(sqlite3.connect(bad)) as store, store:
        store.execute("UPDATE log SET body = CAST(replace(body, x'666d616e75616c', x'466d616e75616c') AS BLOB)")
    command.run("-p", "again")

    done = command.run("ls")

    assert b"again" in done.stdout
    (line,) = done.stderr.decode().splitlines()
    assert bad.name in line
    said = "record 2 is a profile of another form; open the store with the nanotrio that wrote it, or move it away"
    assert line == f"nanotrio: sqlite:{bad}: {said}"


def test_many_stores_that_cannot_be_read_are_one_line_and_none_where_what_is_asked_for_is_found(
    command: Command,
) -> None:
    session = "11111111-1111-4111-8111-111111111111"
    command.run("-p", "hello", "--session-id", session)
    for name in ("bad", "worse", "worst"):
        (command.data / "runs" / f"{name}.db").write_bytes(b"no store at all")

    listed, shown, missed = command.run("ls"), command.run("show", session), command.run("show", "22222222")

    assert session.encode() in listed.stdout
    (line,) = listed.stderr.decode().splitlines()
    assert line.startswith("nanotrio: 3 stores cannot be read; the first: ")
    assert "is not a nanotrio store" in line
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert missed.stderr.decode().splitlines() == [
        line,
        "nanotrio: no agent answers to '22222222'; nanotrio ls lists the sessions",
    ]


OF_ANOTHER_FORM = {
    "UPDATE heads SET body = '[1, 2]'": "sqlite:{bad} has a head that this version cannot read (Expected `array` of at "
    "least length 8, got 2); `nanotrio store repair sqlite:{bad}` makes heads anew",
    "DROP TABLE heads": "{bad} has not the tables of this version (no such table: heads); open it with the nanotrio "
    "that wrote it, or move it away",
    "UPDATE heads SET body = json_set(body, '$[21]', 3)": "sqlite:{bad}: record 3 should hold content and does not; "
    "put a copy of the store back",
    "UPDATE mark SET heads_seq = 0; DELETE FROM heads; UPDATE log SET body = CAST(replace(body, x'6773706177', "
    "x'6773706100') AS BLOB)": "sqlite:{bad}: a record holds a fact of the kind 'spa\\x00ned', which this version does "
    "not know; open the store with the nanotrio that wrote it",
}
"""What is done to a store, and what is said of it."""


@pytest.mark.parametrize("change", OF_ANOTHER_FORM, ids=["head", "table", "content", "fact"])
def test_a_store_that_cannot_be_read_is_told_in_one_line_with_its_place_and_what_to_do(
    command: Command, change: str
) -> None:
    command.run("-p", "hello")
    (bad,) = (command.data / "runs").glob("*.db")
    with closing(sqlite3.connect(bad)) as store:
        store.executescript(change)
    there = ("--store", f"sqlite:{bad}")
    for arguments in (("ls",), ("ls", "--all"), ("ls", *there), ("show", "1", *there)):
        (line,) = command.run(*arguments).stderr.decode().splitlines()
        assert line == "nanotrio: " + OF_ANOTHER_FORM[change].format(bad=bad)


def test_agents_are_named_by_session_and_name(command: Command) -> None:
    store = "sqlite:family.db"
    command.run("-p", "family", SKIP, "--store", store, "--max-wait-seconds", "1.5")
    root, one, two = command.listed("--all", "--store", store)
    assert [each["name"] for each in (root, one, two)] == ["agent.1", "kid.2", "kid.3"]
    assert one["parent"] == root["id"]

    for name in ("kid.2", "2", f"{root['session_id']}/kid.2", f"{root['session_id'][:8]}/kid.2"):
        done = command.run("show", name, "--store", store)
        assert done.stdout.startswith(b"kid.2  completed"), name
    assert command.run("tree", "kid.3", "--store", store).stdout.startswith(b"kid.3  interrupted")
    done = command.run("show", "kid.9", "--store", store)
    assert done.returncode == 1
    assert b"kid.9" in done.stderr


def test_a_name_that_fits_several_sessions_is_refused_with_the_choice(command: Command) -> None:
    sessions = [command.ask("hello")["session_id"] for _ in range(2)]

    done = command.run("show", "agent.1")

    assert done.returncode == 1
    for session in sessions:
        assert f"{session}/agent.1".encode() in done.stderr


def test_a_conversation_for_machines_is_one_object_a_line(command: Command) -> None:
    command.ask("run printf hi", SKIP)

    lines = [json.loads(line) for line in command.run("show", "--json").stdout.splitlines()]

    assert [line["type"] for line in lines] == ["agent", "user", "assistant", "user", "assistant"]
    assert lines[0]["directory"] == str(command.directory)
    assert lines[2]["content"][0]["name"] == "bash"
    assert lines[3]["content"][0]["content"] == "hi"


def test_what_is_shown_cannot_write_on_the_terminal(command: Command) -> None:
    command.ask("odd")

    assert b"\x1b" not in command.run("show").stdout


def test_reading_leaves_a_store_as_it_was(command: Command) -> None:
    command.ask("hello")
    (store,) = command.stores()
    before = store.read_bytes()

    command.run("ls")
    command.run("show")
    command.run("tree", "--json")

    assert store.read_bytes() == before


def test_a_store_nobody_may_read_is_told(command: Command) -> None:
    done = command.run("tree", "--store", "sqlite:nowhere.db")

    assert done.returncode == 1
    assert b"nowhere.db" in done.stderr
    assert not os.path.exists(command.directory / "nowhere.db")  # noqa: PTH110

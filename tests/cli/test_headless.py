from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.conftest import Command, wait_for_shell
from tests.invocation import processes_below

SKIP = "--dangerously-skip-permissions"


def gone(command: Command, line: str) -> bool:
    return line not in processes_below(command.directory)


def test_text_is_the_result_and_nothing_else(command: Command) -> None:
    done = command.run("-p", "hello")

    assert (done.returncode, done.stdout, done.stderr) == (0, b"you said: hello\n", b"")


def test_json_has_every_field_of_the_contract(command: Command) -> None:
    record = command.ask("run printf hi", SKIP)

    assert list(record)[:13] == [
        "type",
        "subtype",
        "is_error",
        "result",
        "session_id",
        "num_turns",
        "duration_ms",
        "total_cost_usd",
        "usage",
        "model_usage",
        "structured_output",
        "permission_denials",
        "errors",
    ]
    assert record["subtype"] == "success"
    assert record["result"] == "the tool said: hi"
    assert record["num_turns"] == 2
    assert record["usage"]["input_tokens"] > 0
    (used,) = record["model_usage"].values()
    assert used["input_tokens"] == record["usage"]["input_tokens"]
    assert [record["structured_output"], record["permission_denials"], record["errors"]] == [None, [], []]


def test_the_stream_tells_what_happens_one_object_a_line(command: Command) -> None:
    done = command.run("-p", "run printf hi", SKIP, "--output-format", "stream-json", "--include-partial-messages")

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["type"] for line in lines if line["type"] in ("assistant", "user", "result")] == [
        "assistant",
        "user",
        "assistant",
        "result",
    ]
    opening, result = lines[0], lines[-1]
    assert (opening["type"], opening["subtype"], opening["cwd"]) == ("system", "init", str(command.directory))
    assert "bash" in opening["tools"]
    call = next(line for line in lines if line["type"] == "assistant")["message"]["content"][0]
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "bash", {"command": "printf hi"})
    answer = next(line for line in lines if line["type"] == "user")["message"]["content"][0]
    assert (answer["tool_use_id"], answer["content"]) == (call["id"], "hi")
    pieces = [line["event"]["delta"] for line in lines if line["type"] == "stream_event"]
    assert "".join(piece.get("text", "") for piece in pieces) == "the tool said: hi"
    assert {line["session_id"] for line in lines} == {result["session_id"]}


def test_a_line_stays_a_line_and_utf_8_whatever_the_locale_says(command: Command) -> None:
    command.environment |= {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    done = command.run("-p", "odd \u00e9", "--output-format", "stream-json", "--include-partial-messages")

    lines = done.stdout.decode("utf-8").splitlines()
    assert lines == done.stdout.decode("utf-8").split("\n")[:-1], "no other line end is in it"
    assert json.loads(lines[-1])["result"] == "a\u2028b \u202e\x1b]0;title\x07 tea\u00e9"


def test_standard_input_is_added_to_the_prompt(command: Command) -> None:
    assert command.run("-p", "hello", text=b"tea\xe9\n").stdout == "you said: hello\n\ntea\ufffd\n".encode()
    assert command.run("-p", text=b"from the pipe\n").stdout == b"you said: from the pipe\n"


def test_an_input_that_says_nothing_does_not_matter_beside_a_prompt(command: Command) -> None:
    with Path(os.devnull).open("wb") as unreadable:
        assert command.run("-p", "hello", stdin=unreadable).returncode == 0
    closed = command.run("-p", "hello", stdin=None, preexec_fn=lambda: os.close(0))
    assert closed.stdout == b"you said: hello\n"
    ours, its = socket.socketpair()
    with ours, its:
        silent = command.run("-p", "hello", stdin=its.fileno())
    assert silent.stdout == b"you said: hello\n"
    assert b"standard input said nothing" in silent.stderr


@pytest.mark.parametrize("arguments", [("-p",), ("-p", " \n"), ("-c", "-p", "")])
def test_an_empty_prompt_is_refused(command: Command, arguments: tuple[str, ...]) -> None:
    done = command.run(*arguments, text=b" \n")

    assert done.returncode == 2
    assert done.stderr.startswith(b"nanotrio: the prompt is empty")
    assert not command.data.exists(), "nothing was written"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--model", "nope/x"), 1, "nope"),
        (("--model", "scripted/nope"), 1, "scripted/nope"),
        (("--model", "anthropic/claude-sonnet-4-5"), 1, "ANTHROPIC_API_KEY"),
        (("--model", "scripted:nowhere.json"), 1, "nowhere.json"),
        (("--allowedTools", "Bosh"), 1, "Bosh"),
        (("--store", "sqlite:not-a-store.db"), 1, "not-a-store.db"),
        (("--store", "sqlite:/proc/x.db"), 1, "/proc/x.db"),
        (("--store", "swarm.db"), 2, "sqlite:swarm.db"),
        (("--json-schema", "{"), 2, "--json-schema"),
        (("--json-schema", '{"type": 7}'), 2, "--json-schema"),
        (("--json-schema", '{"$schema": []}'), 2, "--json-schema"),
        (("--json-schema", '{"$ref": "#/none"}'), 2, "refers to '#/none'"),
        (("--json-schema", "nowhere.json"), 2, "nowhere.json"),
        (("-c",), 1, "no session"),
        (("-r", "abcdef"), 1, "abcdef"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_writes_nothing(
    command: Command, arguments: tuple[str, ...], code: int, told: str
) -> None:
    (command.directory / "not-a-store.db").write_text("something else")

    done = command.run("-p", "hello", *arguments)

    assert done.returncode == code, done.stderr
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("nanotrio: ")
    assert told in line
    assert command.stores() == []
    assert (command.directory / "not-a-store.db").read_text() == "something else"


def test_without_a_key_it_says_what_to_set(command: Command) -> None:
    del command.environment["NANOTRIO_MODEL"]

    done = command.run("-p", "hello")

    assert done.returncode == 1
    assert b"ANTHROPIC_API_KEY" in done.stderr
    assert b"OPENAI_API_KEY" in done.stderr
    assert b"NANOTRIO_MODEL" in done.stderr


def test_without_a_home_it_says_so_and_runs_without_a_session(command: Command) -> None:
    del command.environment["NANOTRIO_DATA"]
    command.environment["HOME"] = ""

    done = command.run("-p", "hello")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"NANOTRIO_DATA" in done.stderr
    assert command.run("-p", "hello", "--no-session").stdout == b"you said: hello\n"


def test_a_failed_turn_is_told_in_both_forms(command: Command) -> None:
    done = command.run("-p", "broken")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"no such thing" in done.stderr

    record = command.ask("broken")
    assert (record["subtype"], record["result"]) == ("error_during_execution", None)
    assert "no such thing" in record["errors"][0]


def test_the_bound_on_turns_is_on_steps(command: Command) -> None:
    record = command.ask("endless", "--max-turns", "3")

    assert (record["subtype"], record["num_turns"]) == ("error_max_turns", 3)


def test_the_cap_on_money_holds(command: Command) -> None:
    script = command.data.parent / "dear.json"
    prices = {"input": 10**6, "output": 10**6, "cache_read": 10**6, "cache_write": 10**6}
    script.write_text(json.dumps({"rules": [{"reply": "dear"}], "price": prices}))

    record = command.ask("x", "--model", f"scripted:{script}", "--max-budget-usd", "0.01")

    assert (record["subtype"], record["total_cost_usd"]) == ("error_max_budget_usd", 0.0)
    dear = command.ask("x", "--model", f"scripted:{script}")
    (used,) = dear["model_usage"].values()
    assert dear["total_cost_usd"] == used["cost_usd"] > 0


def test_a_structured_result_is_held_to_its_schema(command: Command) -> None:
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}

    record = command.ask("submit", "--json-schema", json.dumps(schema))

    assert record["structured_output"] == {"answer": 42}
    assert json.loads(record["result"]) == {"answer": 42}


def test_without_a_terminal_manual_mode_denies_and_says_so(command: Command) -> None:
    record = command.ask("write it")

    (denial,) = record["permission_denials"]
    assert (denial["tool_name"], denial["agent"]) == ("write", "agent.1")
    assert denial["tool_input"] == {"path": "made.txt", "content": "made"}
    assert "nobody is there to ask" in record["result"]
    assert not (command.directory / "made.txt").exists()


@pytest.mark.parametrize(
    "arguments", [(SKIP,), ("--allowedTools", "Write"), ("--permission-mode", "acceptEdits")], ids=str
)
def test_what_is_allowed_runs(command: Command, arguments: tuple[str, ...]) -> None:
    assert command.ask("write it", *arguments)["permission_denials"] == []
    assert (command.directory / "made.txt").read_text() == "made"


def test_a_later_run_may_loosen_the_rules_and_not_tighten_them(command: Command) -> None:
    session = command.ask("write it")["session_id"]

    command.ask("write it", "-r", session, "--allowedTools", "write")
    assert (command.directory / "made.txt").exists()
    done = command.run("-c", "-p", "x", "--permission-mode", "plan")
    assert done.returncode == 2
    assert b"manual" in done.stderr


def test_c_goes_on_with_the_newest_session_of_the_folder(command: Command, tmp_path: Path) -> None:
    first = command.ask("first")["session_id"]
    second = command.ask("second")["session_id"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    third = command.ask("third", cwd=elsewhere)["session_id"]
    assert len({first, second, third}) == 3
    assert command.listed()[0]["session_id"] == third, "looking does not change what is newest"

    assert command.ask("again", "-c")["session_id"] == second
    assert command.ask("back", "-r", first[:8])["session_id"] == first
    assert command.ask("and", "-c")["session_id"] == first
    said = command.run("show", first).stdout.decode()
    assert [line for line in said.splitlines() if line.startswith(">")] == ["> first", "> back", "> and"]


def test_a_fork_is_a_new_session_and_its_source_stays(command: Command) -> None:
    first = command.ask("first")
    fork = command.ask("second", "-c", "--fork-session")
    own = "11111111-2222-3333-4444-555555555555"
    assert command.ask("third", "-r", first["session_id"], "--fork-session", "--session-id", own)["session_id"] == own

    assert fork["session_id"] != first["session_id"]
    assert (fork["num_turns"], fork["is_error"]) == (1, False)
    assert 0 < fork["usage"]["output_tokens"] < 2 * first["usage"]["output_tokens"]
    assert len(command.listed()) == 3
    assert len(command.stores()) == 1
    for session, asked in [(first["session_id"], "first"), (fork["session_id"], "second"), (own, "third")]:
        said = command.run("show", session).stdout.decode()
        prompts = [line[2:] for line in said.splitlines() if line.startswith(">")]
        assert prompts == ["first"] + [asked] * (asked != "first")
    other = command.ask("other")["session_id"]  # in a store of its own, where -r would find it first
    for known in (own, other):
        taken = command.run("-p", "x", "-r", first["session_id"], "--fork-session", "--session-id", known)
        assert (taken.returncode, b"already" in taken.stderr) == (1, True)


def test_a_child_is_forked_into_a_session_of_its_own(command: Command) -> None:
    session = command.ask("family", SKIP, "--max-wait-seconds", "1.5")["session_id"]

    refused = command.run("-p", "x", "-r", f"{session}/kid.2")
    fork = command.ask("and you?", "-r", f"{session}/kid.2", "--fork-session")

    assert (refused.returncode, b"not a root" in refused.stderr) == (1, True)
    assert fork["result"] == "you said: and you?"
    assert [each["status"] for each in command.listed("--all")] == ["interrupted", "idle", "interrupted", "idle"]


def test_a_run_counts_only_what_it_spent_itself(command: Command) -> None:
    one = command.ask("hello")
    two = command.ask("hello", "-c")

    assert two["num_turns"] == 1
    assert 0 < two["usage"]["output_tokens"] <= one["usage"]["output_tokens"]
    (listed,) = command.listed()
    both = one["usage"]["output_tokens"] + two["usage"]["output_tokens"]
    assert listed["usage"]["output_tokens"] == both


def test_a_session_may_be_given_its_id(command: Command) -> None:
    session = "11111111-2222-3333-4444-555555555555"

    assert command.ask("hello", "--session-id", session)["session_id"] == session
    done = command.run("-p", "hello", "--session-id", session)
    assert done.returncode == 1
    assert b"already" in done.stderr


@pytest.mark.parametrize("where", [(), ("--store", "sqlite:one.db")], ids=["own store", "given store"])
def test_an_id_that_a_session_has_is_refused(command: Command, where: tuple[str, ...]) -> None:
    given = ("--session-id", "01234567-89ab-cdef-0123-456789abcdef", *where)
    assert command.ask("first", *given)["session_id"] == given[1]

    done = command.run("-p", "second", *given)

    assert (done.returncode, done.stdout) == (1, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"nanotrio: there is a session {given[1]} already")
    assert line.endswith(f"; resume it (nanotrio -r {given[1]}), or choose another id")
    assert len(command.listed(*where)) == 1


def test_an_id_that_an_unfinished_session_has_is_refused(command: Command) -> None:
    given = ("--session-id", "01234567-89ab-cdef-0123-456789abcdef", "--store", "sqlite:one.db")
    command.ask("family", SKIP, "--max-wait-seconds", "1.5", *given)
    before = command.listed("--all", *given[2:])

    done = command.run("-p", "second", *given)

    assert (done.returncode, b"already (agent.1)" in done.stderr) == (1, True)
    assert command.listed("--all", *given[2:]) == before


def test_two_shells_at_once_do_not_collide(command: Command) -> None:
    runs = [command.start("-p", f"run sleep 0.3; echo {n}", SKIP) for n in range(4)]
    outputs = [run.communicate(timeout=60) for run in runs]

    assert [(output, errors) for output, errors in outputs] == [
        (f"the tool said: {n}\n".encode(), b"") for n in range(4)
    ]
    assert len({each["store"] for each in command.listed()}) == 4


def test_a_store_that_runs_is_refused_with_its_owner_and_can_be_looked_at(command: Command) -> None:
    with command.start("-p", "run sleep 600", SKIP) as owner:
        wait_for_shell(command, "sleep 600")
        done = command.run("-c", "-p", "continue")
        assert done.returncode == 1
        assert str(owner.pid).encode() in done.stderr
        assert command.listed()[0]["status"] == "running"
        assert command.run("tree").stdout.startswith(b"agent.1  running")
        owner.terminate()
        owner.communicate(timeout=20)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_in_good_order_and_the_work_goes_on_later(command: Command, number: int, code: int) -> None:
    with command.start("-p", "run sleep 600", SKIP, "--output-format", "stream-json") as run:
        wait_for_shell(command, "sleep 600")
        run.send_signal(number)
        output, errors = run.communicate(timeout=20)

    assert run.returncode == code
    assert gone(command, "sleep 600")
    record = json.loads(output.splitlines()[-1])
    assert (record["type"], record["subtype"], record["is_error"]) == ("result", "error_during_execution", True)
    assert signal.Signals(number).name in record["errors"][0]
    (line,) = errors.decode().splitlines()
    assert f"-r {record['session_id']}" in line
    assert command.listed()[0]["status"] == "interrupted"
    assert command.ask("continue", "-c")["session_id"] == record["session_id"]


def test_what_runs_for_an_owner_that_lives_is_not_called_left_by_a_killed_one(command: Command) -> None:
    sleeps = " & ".join(f"sleep 60{n}" for n in range(7))
    with command.start("-p", f"run {sleeps} & wait", SKIP, "--store", "sqlite:taken.db") as run:
        for n in range(7):
            wait_for_shell(command, f"sleep 60{n}")
        done = command.run("-c", "-p", "continue", "--store", "sqlite:taken.db", "--takeover")
        assert (done.returncode, done.stdout) == (0, b"you said: continue\n")
        *named, more, end = done.stderr.decode().splitlines()
        assert len(named) == 5
        assert all(line.startswith("nanotrio: running since a former run: ") for line in named)
        pids = end.rpartition("kill ")[2].split()
        assert more == f"nanotrio: and {len(pids) - 5} more"
        assert end.startswith(f"nanotrio: process {run.pid}, from which the store was taken, ends its own as it next ")
        for pid in pids:
            with suppress(ProcessLookupError):  # the former owner ends them too, as it learns of the takeover
                os.kill(int(pid), signal.SIGKILL)
        _, errors = run.communicate(timeout=20)
    assert run.returncode == 1
    assert b"took" in errors


def test_a_kill_leaves_what_the_next_run_needs(command: Command) -> None:
    with command.start("-p", "run sleep 600", SKIP) as run:
        wait_for_shell(command, "sleep 600")
        run.kill()
        run.communicate()
    assert command.listed()[0]["status"] == "interrupted"

    done = command.run("-c", "-p", "continue")

    assert (done.returncode, done.stdout) == (0, b"you said: continue\n")
    assert b"left running" in done.stderr
    pids = done.stderr.decode().rpartition("kill ")[2].split()
    for pid in pids:
        os.kill(int(pid), signal.SIGKILL)
    assert "outcome unknown" in command.run("show").stdout.decode()


def test_a_root_that_ends_at_once_is_woken_until_its_children_have_settled(command: Command) -> None:
    record = command.ask("pair", SKIP)

    assert "[kid.3 completed: the tool said: late" in record["result"]
    assert [each["outcome"] for each in command.listed("--all")] == ["completed"] * 3


def test_at_the_ceiling_it_names_who_was_cut_off_and_how_to_go_on(command: Command) -> None:
    done = command.run("-p", "family", SKIP, "--max-wait-seconds", "1.5")

    assert (done.returncode, done.stdout) == (1, b"")
    line = done.stderr.decode()
    assert "--max-wait-seconds" in line
    assert "cut off: kid.3;" in line
    assert "-r " in line
    assert gone(command, "sleep 600")
    tree = command.run("tree").stdout.decode().splitlines()
    assert [each.split()[-6 if "sleep" in each else -1] for each in tree[:1]] == ["family"]
    assert any("kid.2  completed" in each for each in tree)
    assert any("kid.3  interrupted" in each for each in tree)


def test_a_reader_that_leaves_ends_it_quietly(command: Command) -> None:
    shell = "python -m nanotrio_cli -p 'run sleep 600' --dangerously-skip-permissions --output-format stream-json"

    done = subprocess.run(
        ["bash", "-c", f"{shell} | head -1"],
        cwd=command.directory,
        env=command.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=True,
    )

    assert json.loads(done.stdout)["subtype"] == "init"
    assert done.stderr == b""
    assert gone(command, "sleep 600")


def test_an_output_that_takes_nothing_is_told(command: Command) -> None:
    with Path("/dev/full").open("wb") as full:
        done = command.run("-p", "hello", stdout=full)
    assert done.returncode == 1
    assert b"standard output cannot be written" in done.stderr

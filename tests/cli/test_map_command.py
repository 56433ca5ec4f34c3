"""``nanotrio map`` in a process of its own: what it reads, what it writes, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest

from tests import counts
from tests.cli.conftest import Command
from tests.cli.maps import lines_of, put, told
from tests.invocation import COMMAND
from tests.terminal import open_terminal

SCORE = '{"type": "object", "properties": {"score": {"type": "string", "maxLength": 1}}, "required": ["score"]}'


def test_each_line_is_an_item_and_a_result_is_a_line(mapped: Command) -> None:
    items = put(mapped, "items.txt", "one\r\n\n two \n\ufefffail\n")

    done = mapped.run("map", items, "--prompt", "say {item}", "--retries", "1")

    assert done.returncode == 1
    first, second, third = lines_of(done)
    assert list(first) == [
        "index",
        "item",
        "status",
        "result",
        "error",
        "cost_usd",
        "usage",
        "attempts",
        "agent",
    ]
    assert (first["index"], first["item"], first["status"], first["result"]) == (
        0,
        "one",
        "completed",
        "you said: say one",
    )
    assert (first["error"], first["attempts"]) == (None, 1)
    assert first["cost_usd"] > 0
    assert second["item"] == " two "
    assert (third["status"], third["result"], third["error"], third["attempts"]) == ("failed", None, "no such thing", 2)
    (summary,) = told(done)
    assert summary.startswith("3 items: 2 completed, 1 failed; $0.0")
    assert summary.endswith("; the first failure is items.txt:4: no such thing")
    for line in (first, second, third):
        shown = mapped.run("show", f"{mapped.listed()[0]['session_id']}/{line['agent']}")
        assert shown.returncode == 0
        assert f"say {line['item']}".split()[-1].encode() in shown.stdout


def test_rows_of_csv_have_columns(mapped: Command) -> None:
    items = put(mapped, "items.csv", '\ufeffFirst name,note\nAda,"two\nlines, a ""quote"""\nBob,\n')

    done = mapped.run("map", items, "--prompt", "{First name}: {note} {{kept}}")

    assert done.returncode == 0, done.stderr
    first, second = lines_of(done)
    assert first["columns"] == {"First name": "Ada", "note": 'two\nlines, a "quote"'}
    assert first["result"] == 'you said: Ada: two\nlines, a "quote" {kept}'
    assert second["result"] == "you said: Bob:  {kept}"


def test_a_quote_within_a_csv_field_is_a_quote(mapped: Command) -> None:
    items = put(mapped, "items.csv", 'size,note\n5" pipe,"on\ntwo ""lines"""\n7" pipe,short\n9,""\n')
    rows = [line["columns"] for line in lines_of(mapped.run("map", items, "--prompt", "{size}"))]
    assert [row["size"] for row in rows] == ['5" pipe', '7" pipe', "9"]
    assert [row["note"] for row in rows] == ['on\ntwo "lines"', "short", ""]


def test_a_quote_that_is_never_closed_is_told_at_once_also_in_a_long_file(mapped: Command) -> None:
    items = put(mapped, "items.csv", 'a,b\n"' + "x,y\n" * 1_000_000)
    done = mapped.run("map", items, "--prompt", "{a}")
    assert told(done)[0] == "items.csv:2: a quote is never closed"


def test_rows_of_json_have_fields_and_other_values_are_items(mapped: Command) -> None:
    items = put(mapped, "items.jsonl", '{"n": 1, "tags": ["a", 2]}\n\n{"tags": "x", "n": null}\n')

    done = mapped.run("map", items, "--prompt", "{n} {tags}")

    assert [line["result"] for line in lines_of(done)] == ['you said: 1 ["a",2]', "you said: null x"]
    assert lines_of(done)[0]["columns"] == {"n": 1, "tags": ["a", 2]}
    values = put(mapped, "values", '3\n"text"\n[1]\n')
    done = mapped.run("map", values, "--format", "jsonl", "--prompt", "see {item}")
    assert [(line["item"], line["result"]) for line in lines_of(done)] == [
        (3, "you said: see 3"),
        ("text", "you said: see text"),
        ([1], "you said: see [1]"),
    ]


def test_files_of_a_pattern_are_items(mapped: Command) -> None:
    (mapped.directory / "notes").mkdir()
    put(mapped, "notes/b.md", "the second")
    put(mapped, "notes/a.md", "the first")
    put(mapped, "notes/c.bin", b"\xff")

    done = mapped.run("map", "notes/*.md", "--prompt", "{item}: {text}")
    assert [(line["item"], line["result"]) for line in lines_of(done)] == [
        ("notes/a.md", "you said: notes/a.md: the first"),
        ("notes/b.md", "you said: notes/b.md: the second"),
    ]
    done = mapped.run("map", "notes/*", "--prompt", "{text}")
    assert (done.returncode, done.stdout) == (1, b"")
    assert told(done)[0] == "notes/c.bin: byte 0xff at place 1 is not UTF-8"
    done = mapped.run("map", "notes/*", "--prompt", "look at {item}")
    assert [line["status"] for line in lines_of(done)] == ["completed"] * 3
    put(mapped, "notes/a.md", "another first")
    again = mapped.run("map", "notes/*", "--prompt", "look at {item}")
    assert "2 were done before" in told(again)[0], "a file whose content changed is another item"


def test_a_file_of_a_pattern_may_begin_with_a_mark_and_be_long_where_its_text_is_not_wanted(mapped: Command) -> None:
    put(mapped, "a.md", "\ufefffirst")
    (mapped.directory / "long.bin").write_bytes(b"\xff" * 11_000_000)
    assert lines_of(mapped.run("map", "*.md", "--prompt", "{text}"))[0]["result"] == "you said: first"
    assert mapped.run("map", "*", "--prompt", "{item}").returncode == 0
    assert "long.bin: it is longer than 10,000,000 bytes" in told(mapped.run("map", "*", "--prompt", "{text}"))


def test_no_items_on_standard_input_are_told_as_those_of_a_file_are(mapped: Command) -> None:
    done = mapped.run("map", "-", "--prompt", "{item}")
    assert (done.returncode, told(done)) == (1, ["standard input: there is no item in it; nothing was run"])


def test_a_column_that_standard_input_lacks_is_a_mistake_of_the_command_line(mapped: Command) -> None:
    with (mapped.directory / put(mapped, "i.csv", "a\n1\n")).open("rb") as items:
        done = mapped.run("map", "-", "--format", "csv", "--prompt", "{b}", "--output", "-", stdin=items)
    assert done.returncode == 2
    assert told(done)[0].startswith("--prompt asks for {b}, and standard input:2 has {item}, {a}")


def test_standard_input_is_read_as_it_comes(mapped: Command) -> None:
    with mapped.start("map", "-", "--prompt", "say {item}", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for word in ("one", "two"):
            process.stdin.write(f"{word}\n".encode())
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["result"] == f"you said: say {word}"
        process.stdin.write(b"\xff\xfe\nlast")
        process.stdin.close()
        bad, last = [json.loads(line) for line in process.stdout]
        assert process.wait(20) == 1
        assert process.stderr is not None
        said = "; the first failure is standard input:3: byte 0xff at place 1 is not UTF-8\n"
        assert process.stderr.read().decode().endswith(said)
    assert bad["error"] == "item 2 has no prompt: standard input:3: byte 0xff at place 1 is not UTF-8"
    assert (bad["status"], bad["attempts"], bad["agent"]) == ("failed", 0, None)
    assert last["result"] == "you said: say last"


def test_a_bad_row_of_standard_input_is_told_in_its_result(mapped: Command) -> None:
    text = b'a,b\n1,2\n3\n"open\n'
    done = mapped.run("map", "-", "--format", "csv", "--prompt", "{a}", text=text)
    assert [(line["status"], line["error"]) for line in lines_of(done)] == [
        ("completed", None),
        ("failed", "item 1 has no prompt: standard input:3: it has 1 field, and the header has 2"),
        ("failed", "item 2 has no prompt: standard input:4: a quote is never closed"),
    ]


@pytest.mark.parametrize(
    ("name", "text", "prompt", "code", "said"),
    [
        ("i.csv", "title,body\n1,2\n", "{titles}", 2,
         "--prompt asks for {titles}, and i.csv:2 has {item}, {title}, {body}; did you mean {title}"),
        ("i.txt", "a\n", "{name}", 2,
         "--prompt asks for {name}, and there is {item}; a brace of the text itself is written {{ or }}"),
        ("i.jsonl", '{"a": 1}\n', "{b}", 2, "--prompt asks for {b}, and i.jsonl:1 has {item}, {a}; a brace of"),
        ("i.jsonl", '{"a": 1}\n{"b": 1}\n', "{a}", 1, "i.jsonl:2: the template asks for {a}, and there is item, b"),
        ("i.jsonl", '{"a": 1}\nnot\n', "{a}", 1, "i.jsonl:2: it is not JSON: "),
        ("i.csv", 'a,b\n"x\ny",1\n1\n', "{a}", 1, "i.csv:4: it has 1 field, and the header has 2"),
        ("i.csv", 'a,b\n"x"y,1\n', "{a}", 1, "i.csv:2: it is not CSV: "),
        ("i.csv", "a,a\n1,2\n", "{a}", 1, "i.csv:1: 2 columns are called 'a' in the header"),
        ("i.csv", 'a\n1\n"2\n3\n', "{a}", 1, "i.csv:3: a quote is never closed"),
        ("i.txt", b"fine\n\xff\n", "{item}", 1, "i.txt:2: byte 0xff at place 1 is not UTF-8"),
        ("i.csv", "a,b\n1, \n", "{b}", 1, "i.csv:2: its prompt is empty"),
        ("i.txt", "", "{item}", 1, "i.txt: there is no item in it; nothing was run"),
        ("i.csv", "item\n1\n", "{name}", 2, "--prompt asks for {name}, and i.csv:2 has {item}; a brace"),
        ("i.csv", "a,b\n".encode("utf-16"), "{a}", 1, "i.csv:1: the header cannot be read: byte 0xff at place 1"),
        ("i.csv", "a,b\r1,2\r", "{a}", 1, "i.csv:1: the header cannot be read: it is not CSV: new-line character seen"),
        ("i.csv", '"a,b\n1,2\n', "{a}", 1, "i.csv:1: the header cannot be read: a quote is never closed"),
        ("i.csv", "a,b\n", "{a}", 1, "i.csv: there is no item in it; nothing was run"),
        ("i.txt", "a\n", "do { it", 2, "--prompt: the template has a '{' at character 4 that names nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_told_with_its_line_before_anything_is_run(
    mapped: Command, name: str, text: str | bytes, prompt: str, code: int, said: str
) -> None:
    done = mapped.run("map", put(mapped, name, text), "--prompt", prompt)
    assert (done.returncode, done.stdout) == (code, b""), done.stderr
    assert told(done)[0].startswith(said)
    assert not mapped.stores()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.txt"], "the items 'nowhere.txt' cannot be read: No such file or directory"),
        (["."], "the items '.' are a folder; give a pattern in quotes"),
        (["i.txt", "--output", "other.txt"], "--output other.txt is there already and holds no results of a map"),
        (["i.txt", "--output", "i.txt"], "--output i.txt is the file that the items 'i.txt' are read from"),
        (["i.txt", "--output", "no/where"], "--output no/where cannot be written: No such file"),
        (["-", "--dry-run"], "--dry-run reads all items first"),
        (["i.txt", "--retries", "-1"], "argument --retries: '-1' is not a whole number"),
        (["i.txt", "--json-schema", "{"], "--json-schema is not a JSON object"),
        (["i.txt", "--permission-mode", "plan", "--dangerously-skip-permissions"], "--dangerously-skip-permissions"),
    ],
)  # fmt: skip
def test_a_command_line_that_cannot_be_used_is_told(mapped: Command, arguments: list[str], said: str) -> None:
    put(mapped, "i.txt", "a\n")
    put(mapped, "other.txt", "mine\n")
    done = mapped.run("map", *arguments, "--prompt", "{item}")
    assert (done.returncode, done.stdout) == (2, b"")
    assert told(done)[0].startswith(said), done.stderr
    assert (mapped.directory / "i.txt").read_text() == "a\n"


def test_a_duplicate_is_told_once_with_both_lines(mapped: Command) -> None:
    items = put(mapped, "items.txt", "a\nb\na\nb\nc\n")
    arguments = ["map", items, "--prompt", "say {item}", "--duplicates"]

    kept, skipped, refused = (mapped.run(*arguments, policy) for policy in ("keep", "skip", "error"))

    assert (
        told(kept)[0]
        == "items.txt:3 is the same as line 1: done as well, as all such are; --duplicates skip leaves them out"
    )
    assert len(told(kept)) == 2
    assert [line["item"] for line in lines_of(kept)] == ["a", "b", "a", "b", "c"]
    assert told(skipped)[0] == "items.txt:3 is the same as line 1: left out, as all such are"
    assert [(line["index"], line["item"]) for line in lines_of(skipped)] == [(0, "a"), (1, "b"), (2, "c")]
    assert refused.returncode == 1
    assert told(refused)[:2] == [
        "items.txt:3: it is the same as line 1 (--duplicates keep or skip takes it)",
        "items.txt:4: it is the same as line 2 (--duplicates keep or skip takes it)",
    ]
    assert told(refused)[2] == "2 of 5 items in items.txt cannot be used; nothing was run"


def test_a_dry_run_shows_the_first_prompts_and_runs_nothing(mapped: Command) -> None:
    items = put(mapped, "items.csv", "n\n1\n2\n3\n4\n")
    done = mapped.run("map", items, "--prompt", "rate {n}", "--dry-run")
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith("4 items for scripted:")
    assert lines[1:] == [
        *("", "--- items.csv:2", "rate 1", "", "--- items.csv:3", "rate 2", "", "--- items.csv:4", "rate 3"),
        *("", "--- and 1 more"),
    ]
    assert not mapped.stores()


def test_a_dry_run_needs_no_model(mapped: Command) -> None:
    del mapped.environment["NANOTRIO_MODEL"]
    items = put(mapped, "items.txt", "one\n")
    done = mapped.run("map", items, "--prompt", "rate {item}", "--dry-run")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert lines == ["1 item; no model is chosen yet", "", "--- items.txt:1", "rate one"]
    assert mapped.run("map", items, "--prompt", "rate {item}").returncode == 1


def test_results_fit_the_schema_or_are_tried_again(mapped: Command) -> None:
    items = put(mapped, "items.txt", "1\n22\n")
    done = mapped.run("map", items, "--prompt", "rate {item}", "--json-schema", SCORE, "--retries", "1")
    first, second = lines_of(done)
    assert (first["status"], first["result"]) == ("completed", {"score": "1"})
    assert (second["status"], second["result"], second["attempts"]) == ("failed", None, 2)
    assert "submit_result" in second["error"]


def test_a_budget_holds_the_job_and_a_larger_one_goes_on(mapped: Command) -> None:
    items = put(mapped, "items.txt", "".join(f"{n}\n" for n in range(20)))
    arguments = ["map", items, "--prompt", "say {item}", "--concurrency", "1"]

    done = mapped.run(*arguments, "--max-budget-usd", "0.03")
    statuses = [line["status"] for line in lines_of(done)]
    completed = statuses.count("completed")
    assert done.returncode == 1
    assert 0 < completed < 20
    assert statuses == ["completed"] * completed + ["budget_exceeded"] * (20 - completed)
    again = mapped.run(*arguments, "--max-budget-usd", "1")
    assert again.returncode == 0
    assert lines_of(again)[:completed] == lines_of(done)[:completed]
    assert f"{completed} were done before" in told(again)[0]
    small = mapped.run(*arguments, "--item-budget-usd", "0.001", "--append-system-prompt", "x")
    assert {line["status"] for line in lines_of(small)} == {"budget_exceeded"}


def test_calls_that_nobody_can_allow_are_counted(mapped: Command) -> None:
    items = put(mapped, "items.txt", "a\n")
    denied = mapped.run("map", items, "--prompt", "run {item}")
    assert told(denied)[0].startswith("1 tool call was denied, as nobody is there to ask")
    allowed = mapped.run("map", items, "--prompt", "run {item}", "--allowedTools", "bash")
    assert len(told(allowed)) == 1


def test_many_items_are_mapped_and_mapped_again_from_the_store(mapped: Command) -> None:
    number = counts.MAP_ITEMS
    items = put(mapped, "items.txt", "".join(f"{n}\n" for n in range(number)))
    arguments = ["map", items, "--prompt", "say {item}", "--output", "out.jsonl", "--no-progress"]
    limit = 60 + number / 200
    with mapped.start(*arguments) as process:
        _, errors = process.communicate(timeout=limit)
    assert process.returncode == 0, errors
    output = mapped.directory / "out.jsonl"
    with output.open() as file:
        for index, line in enumerate(file):
            found = json.loads(line)
            assert (found["index"], found["item"], found["result"]) == (index, str(index), f"you said: say {index}")
    assert index == number - 1
    before = output.read_bytes()
    written = output.stat().st_mtime_ns
    with mapped.start(*arguments) as process:
        _, errors = process.communicate(timeout=limit)
    assert f"; {number:,} were done before;".encode() in errors
    assert output.read_bytes() == before
    assert output.stat().st_mtime_ns == written, "what stands there is not written again"


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("i.csv", 'a,b\n"one\ntwo",1\n\nfail,2\n', "i.csv:5"),
        ("i.jsonl", '\n{"a": "one"}\n\n{"a": "fail"}\n', "i.jsonl:4"),
        ("*.md", "fail", "kept.md"),
    ],
)
def test_the_first_failure_is_told_by_its_line_or_file(mapped: Command, name: str, text: str, where: str) -> None:
    put(mapped, name.replace("*", "kept"), text)
    prompt = "{text}" if "*" in name else "{a}"
    for _ in range(2):  # the second time from the store
        assert told(mapped.run("map", name, "--prompt", prompt))[-1].endswith(
            f"; the first failure is {where}: no such thing"
        )


def test_a_failed_item_stays_failed_until_it_is_asked_for(mapped: Command) -> None:
    items = put(mapped, "items.txt", "a\nfail\n")
    arguments = ["map", items, "--prompt", "say {item}"]
    assert [line["attempts"] for line in lines_of(mapped.run(*arguments))] == [1, 1]
    assert [line["attempts"] for line in lines_of(mapped.run(*arguments))] == [1, 1]
    assert [line["attempts"] for line in lines_of(mapped.run(*arguments, "--retry-failed"))] == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_and_the_same_command_goes_on(mapped: Command, number: signal.Signals) -> None:
    items = put(mapped, "items.txt", "".join(f"{n}\n" for n in range(40)))
    arguments = ["map", items, "--prompt", "slow {item}", "--concurrency", "8"]
    with mapped.start(*arguments) as process:
        assert process.stdout is not None
        head = [process.stdout.readline() for _ in range(3)]
        process.send_signal(number)
        rest, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert f"interrupted by {number.name}; ".encode() in errors
    assert errors.endswith(b"of 40 items are done; the same command goes on\n")
    done = mapped.run(*arguments)
    assert done.returncode == 0
    assert [line["result"] for line in lines_of(done)] == [f"you said: slow {n}" for n in range(40)]
    assert done.stdout.startswith(b"".join(head) + rest)


def test_a_list_of_sessions_shows_what_a_job_is_about_and_whether_it_is_done(mapped: Command) -> None:
    def listed() -> list[str]:
        (line,) = mapped.run("ls").stdout.decode().splitlines()
        _, _, agents, status, _, task = line.split("\t")
        return [agents, status, task]

    arguments = ["map", put(mapped, "items.txt", "one\nlong\n"), "--prompt", "{item}", "--concurrency", "2"]
    with mapped.start(*arguments) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["item"] == "one"
        assert listed() == ["3", "running", "map: one"]
        process.kill()
    assert listed() == ["3", "interrupted", "map: one"]
    assert mapped.run(*arguments).returncode == 0
    assert listed() == ["3", "idle", "map: one"]


def test_inputs_of_one_command_are_one_job_and_each_item_has_its_own_result(mapped: Command) -> None:
    def results(text: bytes, *more: str) -> tuple[list[tuple[Any, ...]], str]:
        done = mapped.run("map", "-", "--prompt", "say {item}", *more, text=text)
        return [(line["item"], line["result"], line["agent"].partition(".")[2]) for line in lines_of(done)], told(done)[
            -1
        ]

    first, _ = results(b"a\nb\nc\n")
    second, said = results(b"x\nb\n")
    assert first == [("a", "you said: say a", "2"), ("b", "you said: say b", "3"), ("c", "you said: say c", "4")]
    assert second == [("x", "you said: say x", "5"), first[1]]
    assert "1 was done before" in said
    again, said = results(b"a\nb\nc\n")
    assert (again, "3 were done before" in said) == (first, True)
    assert len(mapped.listed()) == 1
    apart, said = results(b"x\nb\n", "--store", "sqlite:apart.db")
    assert ([agent for *_, agent in apart], "before" in said) == (["2", "3"], False)


def test_a_signal_ends_it_while_standard_input_says_nothing(mapped: Command) -> None:
    with mapped.start("map", "-", "--prompt", "say {item}", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["item"] == "one"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


def test_a_reader_that_goes_away_ends_it_quietly(mapped: Command) -> None:
    items = put(mapped, "items.txt", "one\n" + "for ever\n" * 3)
    with mapped.start("map", items, "--prompt", "{item}", "--duplicates", "keep", "--no-progress") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["item"] == "one"
        process.stdout.close()
        assert process.wait(20) == 1
        assert len(process.stderr.read().splitlines()) == 1


def test_a_bar_moves_on_a_terminal_and_one_line_stays(mapped: Command) -> None:
    put(mapped, "items.txt", "".join(f"{n}\n" for n in range(12)))
    arguments = ["map", "items.txt", "--prompt", "slow {item}", "--concurrency", "3", "--output", "out.jsonl"]
    with open_terminal(
        [*COMMAND, *arguments], cwd=mapped.directory, environment=mapped.environment, columns=120
    ) as terminal:
        terminal.wait_for("[the shell waits]")
        terminal.press("enter")
        terminal.wait_until(lambda: "/12 done" in terminal.text() and "s left" in terminal.text(), "the bar")
        terminal.wait_for("nanotrio: 12 items: 12 completed, 0 failed; $")
        assert terminal.wait_ended() == 0
        assert "done · " not in terminal.text()


def test_a_job_is_no_session_to_talk_to(mapped: Command) -> None:
    assert mapped.ask("hello")["result"] == "you said: hello"
    items = put(mapped, "items.txt", "a\n")
    mapped.run("map", items, "--prompt", "say {item}")
    job = mapped.listed()[0]["session_id"]

    assert mapped.ask("-c", "more")["result"] == "you said: more"
    refused = mapped.run("-p", "more", "-r", job)
    assert (refused.returncode, told(refused)) == (
        1,
        [f"{job} is the job of a map; it goes on by the command that began it"],
    )
    assert mapped.run("map", items, "--prompt", "say {item}").returncode == 0

"""``nanotrio map --output``: whose file it is, pipes, full disks, and what stands there already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.cli.maps import put, told


def test_the_output_of_a_map_is_none_of_its_items(mapped: Command) -> None:
    put(mapped, "b.txt", "one")
    for _ in range(2):  # in the second run the pattern finds the first one's results
        done = mapped.run("map", "*", "--prompt", "{item}", "--output", "a.jsonl")
        assert told(done)[0].startswith("1 item: 1 completed, 0 failed"), done.stderr
    before = (mapped.directory / "a.jsonl").read_bytes()

    done = mapped.run("map", "a.jsonl", "--prompt", "{index}", "--output", "./a.jsonl")
    assert (done.returncode, told(done)) == (
        2, ["--output ./a.jsonl is the file that the items 'a.jsonl' are read from; name another file"]
    )  # fmt: skip
    with (mapped.directory / "a.jsonl").open("rb") as items:
        assert mapped.run("map", "-", "--prompt", "{item}", "--output", "a.jsonl", stdin=items).returncode == 2
    assert (mapped.directory / "a.jsonl").read_bytes() == before


def wait_for_content(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not (path.exists() and path.stat().st_size):
        assert time.monotonic() < deadline, f"nothing was written to {path}"
        time.sleep(0.02)


def test_two_jobs_do_not_write_one_output_at_once(mapped: Command) -> None:
    items = put(mapped, "items.txt", "one\nfor ever\n")
    output = mapped.directory / "out.jsonl"
    with mapped.start("map", items, "--prompt", "{item}", "--output", "out.jsonl") as process:
        wait_for_content(output)
        before = output.read_bytes()
        done = mapped.run("map", items, "--prompt", "other {item}", "--output", "out.jsonl")
        assert done.returncode == 1
        assert "--output out.jsonl is being written by another process" in told(done)[0]
        assert output.read_bytes() == before
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


def test_an_output_that_is_a_pipe_ends_it_with_its_reader(mapped: Command) -> None:
    items = put(mapped, "items.txt", "one\nfor ever\n")
    os.mkfifo(mapped.directory / "pipe")
    with mapped.start("map", items, "--prompt", "{item}", "--output", "pipe") as process:
        with (mapped.directory / "pipe").open() as pipe:
            assert json.loads(pipe.readline())["item"] == "one"
        assert process.wait(20) == 1


def test_a_signal_ends_it_while_the_reader_of_a_pipe_does_not_read(mapped: Command) -> None:
    items = put(mapped, "items.txt", "".join(f"{n}\n" for n in range(1_000)))
    os.mkfifo(mapped.directory / "pipe")
    with (
        mapped.start("map", items, "--prompt", "{item}", "--output", "pipe") as process,
        (mapped.directory / "pipe").open() as pipe,
    ):
        pipe.read(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143


def test_a_full_disk_is_told_with_what_was_done(mapped: Command) -> None:
    items = put(mapped, "items.txt", "one\ntwo\n")
    done = mapped.run("map", items, "--prompt", "{item}", "--output", "/dev/full")
    assert done.returncode == 1
    assert told(done) == [
        "--output /dev/full cannot be written: No space left on device; 2 of 2 items are done; the same command goes on"
    ]


def test_a_torn_or_foreign_end_of_the_output_is_written_anew(mapped: Command) -> None:
    items = put(mapped, "items.txt", "".join(f"{n}\n" for n in range(10)))
    arguments = ["map", items, "--prompt", "say {item}", "--output", "out.jsonl"]
    assert mapped.run(*arguments).returncode == 0
    output = mapped.directory / "out.jsonl"
    whole = output.read_bytes()
    for damaged in (whole[:-7], whole[: len(whole) // 2], whole.replace(b"say 4", b"say 9"), whole + b'{"index', b""):
        output.write_bytes(damaged)
        assert mapped.run(*arguments).returncode == 0
        assert output.read_bytes() == whole


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        ([], b"", 1),
        ([], b"\n \n", 1),
        (["--format", "csv"], b"item\n", 1),
        (["--format", "csv"], b"a,a\n1,2\n", 1),
        (["--format", "csv", "--prompt", "say {b}"], b"a\n1\n", 2),
    ],
)
def test_an_output_stays_as_it_is_where_nothing_is_run(
    mapped: Command, arguments: list[str], text: bytes, code: int
) -> None:
    asked = ["map", "-", "--prompt", "say {item}", "--output", "out.jsonl"]
    assert mapped.run(*asked, text=b"one\ntwo\n").returncode == 0
    output = mapped.directory / "out.jsonl"
    before = output.read_bytes()
    done = mapped.run(*asked, *arguments, text=text)
    assert done.returncode == code, done.stderr
    assert output.read_bytes() == before


def test_no_items_end_with_the_same_code_wherever_they_come_from(mapped: Command) -> None:
    empty = put(mapped, "empty.txt", "")
    named = mapped.run("map", empty, "--prompt", "say {item}")
    piped = mapped.run("map", "-", "--prompt", "say {item}", text=b"")
    assert (named.returncode, piped.returncode) == (1, 1)
    assert told(named) == ["empty.txt: there is no item in it; nothing was run"]
    assert told(piped) == ["standard input: there is no item in it; nothing was run"]


def test_an_input_without_items_ends_nothing_of_a_former_run(mapped: Command) -> None:
    asked = ["map", "-", "--prompt", "{item}", "--output", "out.jsonl"]
    with mapped.start(*asked, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\nlong\n")
        process.stdin.close()
        wait_for_content(mapped.directory / "out.jsonl")
        process.kill()
    assert mapped.run(*asked, text=b"").returncode == 1
    assert mapped.run(*asked, text=b"one\nlong\n").returncode == 0
    lines = (mapped.directory / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["attempts"] for line in lines] == [1, 1]


@pytest.mark.parametrize(
    "mine", ['{"index":0,"label":"mine"}\n', '{"index":0,"label":"mi', '{"index":0,"item":1}\n', "x"]
)
def test_a_file_of_somebody_elses_is_never_written_over(mapped: Command, mine: str) -> None:
    put(mapped, "i.txt", "a\n")
    (mapped.directory / "mine.jsonl").write_text(mine)
    done = mapped.run("map", "i.txt", "--prompt", "{item}", "--output", "mine.jsonl")
    assert done.returncode == 2
    assert "holds no results of a map" in told(done)[-1]
    assert (mapped.directory / "mine.jsonl").read_text() == mine


def test_results_of_another_job_that_are_replaced_are_told_of(mapped: Command) -> None:
    items = put(mapped, "items.txt", "one\ntwo\nfail\n")
    asked = ["map", items, "--output", "out.jsonl", "--prompt"]
    said = "they are replaced, and stay in the store of the job that wrote them"

    def told_of(*arguments: str) -> list[str]:
        return [line for line in told(mapped.run(*asked, *arguments)) if line.endswith(said)]

    assert told_of("say {item}") == []
    assert told_of("say {item}", "--retry-failed") == [], "the same items of the same job"
    assert told_of("tell {item}") == [
        f"--output out.jsonl held results of another job, or of other items, from line 1 on: {said}"
    ]
    assert told_of("tell {item}", "--append-system-prompt", "Be brief.") != []
    put(mapped, "items.txt", "one\nthree\nfail\n")
    assert told_of("tell {item}", "--append-system-prompt", "Be brief.") == [
        f"--output out.jsonl held results of another job, or of other items, from line 2 on: {said}"
    ]

"""The programs of the documentation, each run as it is printed, with a script in the place of a model."""

from __future__ import annotations

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from nanotrio.messages import ToolResult
from nanotrio.models import open_model
from nanotrio.swarm import read_session
from nanotrio.testing import CRASH_POINTS
from tests.documents import EXAMPLES, blocks
from tests.invocation import ROOT, environment_in, run_command

INTERRUPTED = (
    r"  call_0_0: interrupted; outcome unknown: the process ended before the result was stored\. "
    r"Check before doing it again\.\n  call_0_1: one\n"
)

OUTPUTS = {
    "durable": "the prompt is on disk: True\nread: a poem\nrecords in memory alone: 0\n",
    "told": r"killed before-intent, then resumed:\n  call_0_0: posted: Dear Ada\n  call_0_1: one\n"
    rf"killed after-intent, then resumed:\n{INTERRUPTED}killed after-effect, then resumed:\n{INTERRUPTED}",
    "first_agent": "completed\nrain.txt holds a haiku of 14 words.\n3 model calls, 0.01.. USD\n",
    "watching": r'\[bash {"command":"echo Tuesday"}\]\nIt is Tuesday\.\n',
    "own_tools": r"{'nut': 50} No item is called washer\.\n",
    "children": "Tides, moths and salt were looked into.\neditor.1 completed Let one agent each .*\n"
    "  tides.2 completed Look into tides.\n  moths.3 completed Look into moths.\n  salt.4 failed Look into salt.\n",
    "money": r"75 % of the budget of press.1 is spent: 0.075 USD of 0.1 USD, 0.025 USD left\n"
    r"completed Five pages are written\.\nspent 0.090 of 0.200, 0.110 left in press.1\n",
    "typed": "One leak 12\nthe same mistake 3 times in a row: no result by submit_result that fits the schema\n"
    r"it said: I looked, and it seems fine to me\.\n",
    "family": r"cancelled\nreporter.2 completed It rains\.\nreporter.3 completed A long report on snow\.\n"
    r"I have read what they found\.\n",
    "budget": r"rich.1 completed 0.00..\n  Grey, and older than it looks.\npoor.2 budget_exceeded 0.0000\n"
    r"  the budget of poor.2 \(0.01 USD\) has 0.01 USD left, and the next call of poor.2 may cost 0.02\d+ USD\n",
    "map": r"lamp completed Rating\(stars=5, why='bright'\)\nkettle completed Rating\(stars=1, why='wet'\)\n"
    r"rug failed the model refuses this text\n2 completed, 1 failed, 0 from the store\n",
}
"""What each program prints, as a regular expression."""

ELSEWHERE = {"readme", "survive", "test_librarian", "test_orders"}
"""Run by tests of their own."""


def environment(home: Path, name: str) -> dict[str, str]:
    return environment_in(home, {"NANOTRIO_MODEL": f"scripted:{EXAMPLES / name}.json"})


def start(folder: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")],
        cwd=folder,
        env=environment(folder / "home", name),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_every_program_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*OUTPUTS, *ELSEWHERE}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_program_prints_what_the_page_says(tmp_path: Path, name: str) -> None:
    printed, errors = start(tmp_path, name).communicate(timeout=30)
    assert errors == ""
    assert re.fullmatch(OUTPUTS[name], printed), printed


def test_a_map_that_is_run_again_asks_nothing(tmp_path: Path) -> None:
    first, again = (start(tmp_path, "map").communicate(timeout=30)[0] for _ in range(2))
    assert again == first.replace("0 from the store", "3 from the store")
    page = (ROOT / "docs" / "guides" / "map.md").read_text()
    assert all(f"\n    {line}\n" in page for line in first.splitlines()), "the page shows what the program prints"


def test_a_killed_program_goes_on_and_the_model_is_told(tmp_path: Path) -> None:
    build = tmp_path / "build.sh"
    build.write_text("#!/bin/sh\ntest -e go || { echo began > began; sleep 600; }\necho built | tee built\n")
    build.chmod(0o700)
    os.mkfifo(tmp_path / "began")
    first = start(tmp_path, "survive")
    assert first.stdout is not None
    assert first.stdout.readline() == "beginning\n"
    assert (tmp_path / "began").read_text() == "began\n"
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=10)

    (tmp_path / "go").touch()
    printed, errors = start(tmp_path, "survive").communicate(timeout=30)
    assert errors == ""
    *left, going_on, ended = printed.splitlines()
    assert all(line.startswith("ended, since it was still running: ") for line in left)
    assert (going_on, ended) == ("going on", "completed The project is built.")
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    for line in ("beginning", *left, going_on, ended):
        assert f"\n    {line}\n" in tutorial, "the page shows what the program prints"
    session = trio.run(read_session, f"sqlite:{tmp_path}/survive.db", 1)
    results = [part for message in session.messages for part in message.parts if isinstance(part, ToolResult)]
    assert results[0].content.startswith("interrupted; outcome unknown: ")
    assert "interrupted; outcome unknown: the process ended before" in " ".join(
        (ROOT / "docs" / "tutorial.md").read_text().split()
    )


@pytest.mark.parametrize(("name", "passed"), [("test_librarian", 2), ("test_orders", len(CRASH_POINTS))])
def test_an_example_of_a_test_passes(tmp_path: Path, name: str, passed: int) -> None:
    plugins = ["no:cacheprovider"]
    if not any(entry.name == "nanotrio" for entry in importlib.metadata.entry_points(group="pytest11")):
        plugins.append("nanotrio.testing.pytest_plugin")  # else it is found by itself
    options = [word for plugin in plugins for word in ("-p", plugin)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        env=environment_in(tmp_path / "home", {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{passed} passed" in done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.json")), ids=lambda path: path.stem)
def test_a_script_is_one(path: Path) -> None:
    assert open_model(f"scripted:{path}", environment={}, client=None).name == f"scripted:{path}"


def test_the_script_of_the_page_does_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "guide.md").touch()
    flags = ["--model", f"scripted:{EXAMPLES}/script.json", "--allowedTools", "bash"]
    env = environment_in(tmp_path / "home", {})
    for prompt, answer in [
        ("list docs", "There is:\nguide.md\n"),
        ("list lost", "There is no such folder.\n"),
        ("good day", "Hello, you said: good day\n"),
    ]:
        done = run_command(["-p", prompt, *flags], cwd=tmp_path, environment=env)
        assert (done.returncode, done.stdout) == (0, answer), done.stderr


def test_each_script_file_is_named_on_a_page() -> None:
    text = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    shown = {block.file for page in (ROOT / "docs").glob("*.md") for block in blocks(page)}
    assert "docs/examples/script.json" in shown
    assert "docs/examples/first_agent.json" in text

"""Headless runs on a machine that does not play along."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, python_modules_after, wait_for_shell

SKIP = "--dangerously-skip-permissions"


def test_no_file_of_ours_gets_the_number_of_a_closed_stream(command: Command) -> None:
    def close_all() -> None:
        for descriptor in (0, 1, 2):
            os.close(descriptor)

    with command.start("-p", "hello", stdin=None, stdout=None, stderr=None, preexec_fn=close_all) as run:
        assert run.wait(timeout=30) == 0
    assert command.listed()[0]["outcome"] == "completed"


def test_a_folder_that_is_gone_is_told(command: Command, tmp_path: Path) -> None:
    gone_folder = tmp_path / "gone"
    gone_folder.mkdir()
    shell = 'rmdir "$PWD" && python -m nanotrio_cli -p hello'

    done = subprocess.run(
        ["bash", "-c", shell],
        cwd=gone_folder,
        env=command.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert b"no longer exists" in done.stderr


def test_progress_goes_to_standard_error_where_it_is_wanted(command: Command) -> None:
    done = command.run("-p", "run printf hi", SKIP, "--verbose")

    assert done.stdout == b"the tool said: hi\n"
    assert "• bash printf hi" in done.stderr.decode()


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("--nope",), ("-p", "a", "b"), ("ls", "--nope")])
def test_help_and_mistakes_are_answered_without_the_library(command: Command, arguments: tuple[str, ...]) -> None:
    modules = python_modules_after(arguments, command)

    assert "nanotrio_cli.main" in modules
    assert not modules & {"trio", "nanotrio", "asyncio", "prompt_toolkit", "rich", "httpx"}


def test_a_fault_of_its_own_is_a_line_and_a_report_without_keys(command: Command) -> None:
    source = (
        "import sys, nanotrio_cli.prompt_input as p\n"
        "def broken(_): raise RuntimeError('sk-very-secret-key and more')\n"
        "p.read_prompt = broken\n"
        "from nanotrio_cli.main import main\nsys.exit(main(['-p', 'x']))"
    )
    environment = {**command.environment, "SOME_API_KEY": "sk-very-secret-key"}

    done = subprocess.run(
        ["python", "-c", source], cwd=command.directory, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "RuntimeError: [SOME_API_KEY] and more" in line
    (report,) = (command.data / "logs").iterdir()
    assert report.name in line
    text = report.read_text()
    assert "Traceback" in text
    assert "sk-very-secret-key" not in text
    assert report.stat().st_mode & 0o777 == 0o600


def test_what_it_keeps_is_for_its_owner_alone(command: Command) -> None:
    command.run("-p", "hello")

    (store,) = command.stores()
    assert store.stat().st_mode & 0o777 == 0o600
    assert store.parent.stat().st_mode & 0o777 == 0o700


def spending_of(record: dict[str, Any]) -> int:
    return int(sum(record["usage"].values()))


def test_a_tree_is_paid_for_whole(command: Command) -> None:
    with command.start("-p", "family", SKIP, "--output-format", "json", "--max-wait-seconds", "1.5") as run:
        record = json.loads(run.communicate(timeout=30)[0])

    root = next(each for each in command.listed("--all") if each["parent"] is None)
    assert spending_of(record) >= sum(root["usage"].values())


def test_a_text_in_place_of_a_structured_result_is_refused(command: Command) -> None:
    done = command.run("-p", "hello", "--json-schema", '{"type": "object"}', "--output-format", "json")

    assert done.returncode == 1
    record = json.loads(done.stdout)
    assert record["subtype"] == "error_max_structured_output_retries"
    assert (record["structured_output"], record["num_turns"]) == (None, 3)
    assert record["last_text"].startswith("you said: "), "the prose is not lost"


def test_who_lost_the_store_says_so_in_one_line(command: Command) -> None:
    store = f"sqlite:{command.directory}/one.db"
    with command.start("-p", "run sleep 600", SKIP, "--store", store) as owner:
        wait_for_shell(command, "sleep 600")
        assert command.run("-p", "hello", "--takeover", "--store", store).returncode == 0
        _, errors = owner.communicate(timeout=30)
    (line,) = errors.decode().splitlines()
    assert line.startswith("nanotrio: process ")
    assert owner.returncode == 1


def test_a_budget_that_is_nearly_spent_is_told_while_it_runs(command: Command) -> None:
    script = command.directory / "dear.json"
    rules = [
        {"step": 0, "calls": [{"name": "list_agents"}], "usage": {"output": 8000}},
        {"reply": "done", "usage": {"output": 0}},
    ]
    price = {"input": 1000, "output": 100_000, "cache_read": 0, "cache_write": 0}
    script.write_text(json.dumps({"rules": rules, "price": price}))
    flags = ["--model", f"scripted:{script}", "--max-budget-usd", "1.0"]
    line = "80 % of the budget of agent.1 is spent: 0.8 USD of 1 USD, 0.2 USD left"

    done = command.run("-p", "go", *flags)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (0, b"done\n", f"nanotrio: {line}\n")

    done = command.run("-p", "go", *flags, "--output-format", "stream-json")
    records = [json.loads(each) for each in done.stdout.splitlines()]
    (warned,) = [record for record in records if record.get("subtype") == "budget_warned"]
    assert (warned["message"], warned["spent_usd"], warned["budget_usd"]) == (line, 0.8, 1.0)

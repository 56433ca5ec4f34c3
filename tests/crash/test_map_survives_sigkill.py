"""``nanotrio map``, killed at random instants: the same command ends with what an undisturbed run writes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from nanotrio import read_store
from tests import counts
from tests.invocation import COMMAND, environment_in

SEED = int(os.environ.get("NANOTRIO_SEED", "20"))
ITEMS = 300
RULES = [
    {"text": "item \\d*7$", "error": {"kind": "rejected", "message": "no sevens"}},
    {"step": 0, "calls": [{"name": "read", "arguments": {"path": "items.txt", "limit": 1}}]},
    {"reply": "${task}: ${last}"},
]


class Job:
    """The command, with an output and a store of its own in the one folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        (folder / "items.txt").write_text("".join(f"{number}\n" for number in range(ITEMS)))
        script = folder / "script.json"
        script.write_text(json.dumps({"rules": RULES, "latency_seconds": 0.02}))
        self.environment = environment_in(folder / "home", {"NANOTRIO_MODEL": f"scripted:{script}"})
        self.output = folder / f"{name}.jsonl"
        self.store = f"sqlite:{folder}/{name}.db"

    def start(self) -> subprocess.Popen[bytes]:
        arguments = ["map", "items.txt", "--prompt", "look at item {item}", "--retries", "1", "--concurrency", "16"]
        arguments += ["--output", str(self.output), "--store", self.store, "--no-progress"]
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.environment,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )

    def finish(self) -> bytes:
        with self.start() as process:
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 1, errors
        assert f"{ITEMS} items: {ITEMS - 30} completed, 30 failed".encode() in errors
        return errors

    def lines(self) -> list[str]:
        """Return the output without the agents' numbers: which one a second try gets is a matter of time."""
        found = []
        for line in self.output.read_text().splitlines():
            value = json.loads(line)
            value["agent"] = value["agent"].rpartition(".")[0]
            found.append(json.dumps(value))
        return found


def test_a_map_killed_at_random_instants_writes_what_an_undisturbed_one_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    whole = Job(tmp_path, "whole")
    began = time.monotonic()
    whole.finish()
    seconds = time.monotonic() - began
    expected = whole.lines()
    assert len(expected) == ITEMS

    kills = 0
    for trial in range(counts.MAP_KILLS // 2):
        job = Job(tmp_path, f"killed-{trial}")
        for _ in range(2):
            with job.start() as process:
                try:
                    process.wait(chance.uniform(0.3, 0.9) * seconds)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    kills += 1
                process.communicate(timeout=20)
            if job.output.exists():
                text = job.output.read_text()
                assert "".join(whole_lines(text)) == text[: text.rfind("\n") + 1]
        job.finish()
        assert job.lines() == expected
        views = trio.run(read_store, job.store)
        assert len(views) == 1 + ITEMS + 30, "an agent an item, and one more for each second try"
        assert len({view.name for view in views}) == len(views)
    with capsys.disabled():
        sys.stderr.write(f"\nmap under SIGKILL: seed {SEED}, {kills} kills\n")
    assert kills


def whole_lines(text: str) -> list[str]:
    return [f"{line}\n" for line in text.split("\n")[:-1] if json.loads(line)]

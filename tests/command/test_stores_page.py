"""The commands on the page on stores, in the order in which they stand there."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.invocation import ROOT, environment_in, run_command

PAGE = (ROOT / "docs" / "guides" / "stores.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    env = environment_in(tmp_path / "home", {"NANOTRIO_MODEL": "scripted/echo"})
    begun = run_command(["-p", "hello", "--store", "sqlite:swarm.db"], cwd=tmp_path, environment=env)
    assert begun.returncode == 0, begun.stderr
    lines = [line.strip().removeprefix("$ ") for line in PAGE.splitlines() if line.startswith("    ")]
    commands = [line for line in lines if line.startswith("nanotrio ")]
    assert len(commands) >= 9
    for line in commands:
        words = shlex.split(line.partition("  ")[0])[1:]
        words = ["sqlite:swarm.db" if word == "URL" else "1" if word == "ID" else word for word in words]
        if words[0] != "store":
            words += ["--store", "sqlite:swarm.db"]
        done = run_command(words, cwd=tmp_path, environment=env)
        assert (done.returncode, done.stderr) == (0, ""), line
    assert "    whole: 5 records of 1 agent\n" in PAGE
    made = {path.name for path in tmp_path.iterdir()}
    assert {"swarm.db.pruned", "swarm.jsonl", "swarm-rows.db"} <= made

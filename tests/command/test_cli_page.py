"""What docs/cli.md says of flags and of the final record is what the command has."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.documents import EXAMPLES
from tests.invocation import ROOT, environment_in, run_command

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
JSON = ("--output-format", "json")
STREAM = ("--output-format", "stream-json", "--include-partial-messages")
FLAG = re.compile(r"(?<![\w-])--[a-z][A-Za-z-]*")


def test_every_flag_is_on_the_page_and_no_other(tmp_path: Path) -> None:
    env = environment_in(tmp_path / "home", {})
    offered = set()
    actions = [["store", action] for action in ("check", "repair", "prune", "copy", "stats")]
    for command in ([], ["ls"], ["show"], ["tree"], ["demo"], ["map"], ["export"], ["sql"], *actions):
        done = run_command([*command, "--help"], cwd=tmp_path, environment=env)
        assert done.returncode == 0, done.stderr
        offered |= set(FLAG.findall(done.stdout))
    spelled_otherwise = {"--allowed-tools", "--disallowed-tools"}
    assert set(FLAG.findall(PAGE)) == offered - spelled_otherwise


def test_the_final_record_has_the_fields_of_the_page(tmp_path: Path) -> None:
    shown = json.loads(re.findall(r"^```json\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0])
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "guide.md").touch()
    done = run_command(
        ["-p", "list docs", "--model", f"scripted:{EXAMPLES}/script.json", "--allowedTools=Bash", *JSON],
        cwd=tmp_path,
        environment=environment_in(tmp_path / "home", {}),
    )
    record = json.loads(done.stdout)
    assert list(record) == list(shown)
    assert record["usage"].keys() == shown["usage"].keys()
    (used,), (example,) = record["model_usage"].values(), shown["model_usage"].values()
    assert used.keys() == example.keys()
    for name in ("type", "subtype", "is_error", "result", "num_turns", "errors", "permission_denials"):
        assert record[name] == shown[name]


def test_a_stream_has_the_kinds_of_the_page(tmp_path: Path) -> None:
    done = run_command(
        ["-p", "Let one agent each look", "--model", f"scripted:{EXAMPLES}/children.json", *STREAM],
        cwd=tmp_path,
        environment=environment_in(tmp_path / "home", {}),
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for word in {line["type"] for line in lines} | {line["subtype"] for line in lines if line["type"] == "system"}:
        assert f"`{word}`" in PAGE
    assert (lines[0]["subtype"], lines[-1]["type"]) == ("init", "result")

"""The command in a process of its own, with a data folder of its own and a scripted model."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.invocation import COMMAND, environment_in, processes_below

RULES = [
    {"text": "^run (?P<what>.+)", "calls": [{"name": "bash", "arguments": {"command": "${what}"}}]},
    {"text": "^write", "calls": [{"name": "write", "arguments": {"path": "made.txt", "content": "made"}}]},
    {
        "text": "^family",
        "calls": [
            {"name": "spawn_agent", "arguments": {"name": "kid", "prompt": "say one"}},
            {"name": "spawn_agent", "arguments": {"name": "kid", "prompt": "run sleep 600"}},
        ],
    },
    {
        "text": "^pair",
        "calls": [
            {"name": "spawn_agent", "arguments": {"name": "kid", "prompt": "run sleep 0.2; echo early"}},
            {"name": "spawn_agent", "arguments": {"name": "kid", "prompt": "run sleep 2; echo late"}},
        ],
    },
    {"text": "^submit", "calls": [{"name": "submit_result", "arguments": {"result": {"answer": 42}}}]},
    {"text": "^endless", "calls": [{"name": "list_agents", "arguments": {}}]},
    {"task": "^endless", "calls": [{"name": "list_agents", "arguments": {}}]},
    {"text": "^odd", "reply": "a\u2028b \u202e\x1b]0;title\x07 tea\u00e9"},
    {"text": "kid.3 cancelled", "reply": "too late", "latency_seconds": 30},
    {"text": "^broken", "error": {"kind": "rejected", "message": "no such thing"}},
    {"result": ".", "reply": "the tool said: ${last}"},
    {"reply": "you said: ${last}"},
]


class Command:
    """Runs ``nanotrio`` in ``directory``; what it prints is bytes."""

    def __init__(self, home: Path, directory: Path) -> None:
        self.directory = directory
        script = home / "script.json"
        self.environment = environment_in(home, {})
        self.environment |= {"NANOTRIO_DATA": str(home / "data"), "NANOTRIO_MODEL": f"scripted:{script}"}
        script.write_text(json.dumps({"rules": RULES}))
        self.data = home / "data"

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        given: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "cwd": self.directory,
            "env": self.environment,
            "bufsize": 0,  # else communicate() misses what readline() left in the buffer
            **options,
        }
        return subprocess.Popen([*COMMAND, *arguments], **given)

    def run(self, *arguments: str, text: bytes | None = None, **options: Any) -> subprocess.CompletedProcess[bytes]:
        """Run to the end."""
        if text is not None:
            options["stdin"] = subprocess.PIPE
        with self.start(*arguments, **options) as process:
            output, errors = process.communicate(text, timeout=60)
        assert b"Traceback" not in errors, errors.decode()
        return subprocess.CompletedProcess(process.args, process.returncode, output or b"", errors or b"")

    def ask(self, *arguments: str, **options: Any) -> dict[str, Any]:
        """Run ``-p`` with JSON output and return the final record."""
        done = self.run("-p", "--output-format", "json", *arguments, **options)
        record: dict[str, Any] = json.loads(done.stdout)
        assert record["is_error"] is (done.returncode != 0), done.stderr
        return record

    def listed(self, *arguments: str) -> list[dict[str, Any]]:
        """Return what ``ls --json`` prints."""
        done = self.run("ls", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def stores(self) -> list[Path]:
        """Return the files of runs."""
        return sorted((self.data / "runs").glob("*.db"))


@pytest.fixture
def command(tmp_path: Path) -> Command:
    directory = tmp_path / "work"
    directory.mkdir()
    return Command(tmp_path / "home", directory)


def python_modules_after(arguments: Sequence[str], command: Command) -> set[str]:
    """Return the modules that a run of the command has imported by its end."""
    source = (
        "import sys; from nanotrio_cli.main import main; code = main(sys.argv[1:]); "
        "sys.stderr.write('\\n'.join(sys.modules)); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", source, *arguments],
        cwd=command.directory,
        env=command.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return set(done.stderr.splitlines())


def wait_for_shell(command: Command, line: str) -> None:
    """Wait until a process of that command line runs below the folder."""
    deadline = time.monotonic() + 20
    while line not in processes_below(command.directory):
        assert time.monotonic() < deadline, f"{line} never ran"
        time.sleep(0.02)


MAP_RULES = [
    {"text": "fail", "error": {"kind": "rejected", "message": "no such thing"}},
    {"text": "^rate (?P<n>\\d+)", "calls": [{"name": "submit_result", "arguments": {"result": {"score": "${n}"}}}]},
    {"text": "^run", "calls": [{"name": "bash", "arguments": {"command": "true"}}]},
    {"text": "^slow", "reply": "you said: ${last}", "latency_seconds": 0.3},
    {"text": "^long", "reply": "at last", "latency_seconds": 2},
    {"text": "^for ever", "reply": "never", "latency_seconds": 600},
    {"reply": "you said: ${last}"},
]


@pytest.fixture
def mapped(command: Command) -> Command:
    """A command whose model is scripted for maps."""
    script = Path(command.environment["NANOTRIO_MODEL"].removeprefix("scripted:"))
    script.write_text(json.dumps({"rules": MAP_RULES, "price": {"input": 1000, "output": 1000}}))
    return command

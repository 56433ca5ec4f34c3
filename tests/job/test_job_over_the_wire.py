"""The real job through the command, over each real wire format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.invocation import environment_in, processes_below, run_command
from tests.job.brain import SUMMARY
from tests.job.repository import PROMPT, make_repository
from tests.servers.request_log import changed_results, prefix_breaks
from tests.servers.server_process import server_process


@pytest.mark.parametrize("model", ["anthropic/claude-sonnet-4-5", "openai-chat/gpt-4.1"])
def test_the_tests_pass_and_only_the_intended_lines_changed(tmp_path: Path, model: str) -> None:
    repository = make_repository(tmp_path)
    assert not repository.tests_pass()
    with server_process("job", tmp_path / "requests.jsonl") as server:
        done = run_command(
            [
                "-p",
                PROMPT,
                "--model",
                model,
                "--store",
                f"sqlite:{tmp_path / 'swarm.db'}",
                "--dangerously-skip-permissions",
                "--output-format",
                "json",
            ],
            cwd=repository.path,
            environment=environment_in(tmp_path / "home", server.environment()),
        )
        requests = server.requests()

    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["type"], last["is_error"], last["result"]) == ("result", False, SUMMARY)
    assert repository.problems() == []
    assert not [seen.problem for seen in requests if seen.problem]
    assert prefix_breaks(requests) == []
    assert changed_results(requests) == {}
    children = [seen for seen in requests if "Check the file" in json.dumps(seen.decoded()["messages"][:2])]
    assert len(children) == 6, "two children, each with a read, a step and a result"
    assert processes_below(tmp_path) == []

"""The command against a model server that others wrote, over both wire formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.invocation import environment_in, run_command

MODELS = ("anthropic/claude-sonnet-4-6", "openai-chat/gpt-4o")


def _run(tmp_path: Path, llmock: Any, model: str, prompt: str, *flags: str) -> list[dict[str, Any]]:
    done = run_command(
        ["-p", prompt, "--model", model, "--dangerously-skip-permissions", "--output-format", "stream-json", *flags],
        cwd=tmp_path,
        environment=environment_in(tmp_path / "home", llmock.env()),
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("model", MODELS)
def test_streams_a_text(tmp_path: Path, llmock: Any, model: str) -> None:
    llmock.reply("Seven swans a-swimming in the morning.")

    lines = _run(tmp_path, llmock, model, "How many swans?", "--include-partial-messages")

    assert lines[-1]["type"] == "result"
    assert lines[-1]["result"] == "Seven swans a-swimming in the morning."
    assert len(lines) > 3, "it streamed in pieces"
    assert len(llmock.requests) == 1


@pytest.mark.parametrize("model", MODELS)
def test_runs_a_tool_loop(tmp_path: Path, llmock: Any, model: str) -> None:
    llmock.call_tool("bash", {"command": "echo ran > proof.txt; cat proof.txt"})
    llmock.reply("It ran.")

    lines = _run(tmp_path, llmock, model, "Run it.")

    assert (tmp_path / "proof.txt").read_text() == "ran\n"
    assert lines[-1]["result"] == "It ran."
    assert lines[-1]["num_turns"] == 2
    assert "ran" in json.dumps(llmock.requests[-1].body["messages"][-1])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fault", ["disconnect", "truncate", "corrupt"])
def test_a_broken_stream_is_tried_again(tmp_path: Path, llmock: Any, model: str, fault: str) -> None:
    getattr(llmock, fault)(after_chunks=2)
    llmock.reply("Whole after all.", times=2)

    assert _run(tmp_path, llmock, model, "Speak.")[-1]["result"] == "Whole after all."
    assert len(llmock.requests) == 2
    llmock.assert_resilient()


@pytest.mark.parametrize("model", MODELS)
def test_a_rate_limit_is_waited_out(tmp_path: Path, llmock: Any, model: str) -> None:
    llmock.rate_limit(times=2, retry_after=0.3)
    llmock.reply("In good time.")

    assert _run(tmp_path, llmock, model, "Speak.")[-1]["result"] == "In good time."
    llmock.assert_resilient()

"""Contexts for calls, and a call as the swarm makes it."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import trio

from nanotrio.limits import Limits
from nanotrio.tools import AgentProcesses, Tool, ToolContext, ToolOutput, reap_all

TOKEN = f"test{os.getpid()}"
_numbers = itertools.count(1_000)


def make_context(
    directory: Path, agent: int = 0, *, environment: dict[str, str] | None = None, **bounds: Any
) -> ToolContext:
    agent = agent or next(_numbers)
    plain = {"PATH": os.environ["PATH"], "HOME": str(directory), "LANG": "C.UTF-8"}
    return ToolContext(
        agent=agent,
        call_id="call_1",
        directory=directory,
        environment=plain | (environment or {}),
        limits=Limits(**bounds),
        output_directory=directory / ".outputs",
        processes=AgentProcesses(TOKEN, agent),
        idempotency_key="key",
        state={},
    )


async def call(tool: Tool, context: ToolContext, **arguments: Any) -> ToolOutput:
    output = tool.run(context, tool.parse(json.dumps(arguments)))
    assert not isinstance(output, ToolOutput)
    return await output


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until something another process does has come true."""
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - the other process has no Event
            await trio.sleep(0.02)


async def reap(*contexts: ToolContext, max_seconds: float = 5) -> list[tuple[str, ...]]:
    """End the processes of the contexts and return, for each, what remains."""
    return await reap_all((processes_of(context) for context in contexts), max_seconds)


def processes_of(context: ToolContext) -> AgentProcesses:
    assert isinstance(context.processes, AgentProcesses)
    return context.processes


def marked(context: ToolContext) -> list[int]:
    """The living processes that carry the context's mark, found in another way than the code under test does."""
    mark = f"NANOTRIO_AGENT={TOKEN}:{context.agent}".encode()
    return [pid for pid, environment in environments() if mark in environment.split(b"\0")]


def environments() -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), (entry / "environ").read_bytes()
            except OSError:
                continue

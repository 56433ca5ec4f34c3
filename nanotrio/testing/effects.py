"""A file that says what tools did, line by line, written by the processes that may be killed while they do it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..tools import Tool, ToolContext, ToolOutput, tool

__all__ = ["EffectsLog", "log_effects", "read_effects"]


class EffectsLog(msgspec.Struct, frozen=True):
    """How often each call began and ended, by agent and id of the call."""

    begun: dict[tuple[int, str], int]
    ended: dict[tuple[int, str], int]


def log_effects(of: Tool | Callable[..., Any], path: str | Path) -> Tool:
    """Return a tool that does the same and notes each run in the file at ``path``, before and after.

    A line is ``begin AGENT CALL`` or ``end AGENT CALL``, appended by one write, so a kill leaves whole lines and
    several processes may share the file. A run that was killed, cancelled, or raised has a beginning and no end.
    """
    made = of if isinstance(of, Tool) else tool(of)
    place = str(path)

    async def run(context: ToolContext, arguments: dict[str, Any]) -> ToolOutput:
        _append(place, f"begin {context.agent} {context.call_id}\n")
        output: ToolOutput = await made.run(context, arguments)
        _append(place, f"end {context.agent} {context.call_id}\n")
        return output

    return msgspec.structs.replace(made, run=run)


def read_effects(path: str | Path) -> EffectsLog:
    """Return what the file holds; nothing where there is no file yet."""
    begun: Counter[tuple[int, str]] = Counter()
    ended: Counter[tuple[int, str]] = Counter()
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        lines = []
    for line in lines:
        what, agent, call_id = line.split(" ", 2)
        (begun if what == "begin" else ended)[int(agent), call_id] += 1
    return EffectsLog(dict(begun), dict(ended))


def _append(path: str, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)

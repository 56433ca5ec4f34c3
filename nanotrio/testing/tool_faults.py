"""A tool that fails, loses its result and dawdles, by a seed, around a real one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import trio

from ..errors import ToolError
from ..tools import Tool, ToolContext, ToolOutput, tool

__all__ = ["unreliable_tool"]


def unreliable_tool(
    of: Tool | Callable[..., Any], seed: int, *, fail: float = 0.0, lose: float = 0.0, delay_seconds: float = 0.0
) -> Tool:
    """Return a tool of the same name that fails in some of its runs. Which ones depends on the seed and their order.

    Args:
        of: the tool, or a function as one.
        seed: what is drawn from.
        fail: the share of runs that raise ``ToolError`` and do nothing.
        lose: the share that do what they do, and then raise something unforeseen in place of their result.
        delay_seconds: each run waits for up to so long before, on Trio's clock.
    """
    made = of if isinstance(of, Tool) else tool(of)
    chance = random.Random(seed)  # noqa: S311 - the same faults again are the point

    async def run(context: ToolContext, arguments: dict[str, Any]) -> ToolOutput:
        luck, delay = chance.random(), chance.random() * delay_seconds
        await trio.sleep(delay)
        if luck < fail:
            raise ToolError(f"{made.spec.name} failed on purpose and did nothing")
        output: ToolOutput = await made.run(context, arguments)
        if luck < fail + lose:
            raise ConnectionResetError(f"the result of {made.spec.name} was lost on purpose")
        return output

    return msgspec.structs.replace(made, run=run)

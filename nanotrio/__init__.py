"""An agent harness for swarms, on Trio.

One process holds a tree of agents. A running agent is a task in its parent's nursery, so cancellation and budgets run
down the lineage; every agent's session is a chain of records in a store that survives a SIGKILL.

::

    async with nanotrio.open_swarm(store="sqlite:swarm.db", model="anthropic/claude-sonnet-4-5") as swarm:
        agent = await swarm.spawn("Which file is longest?", tools=[word_count], budget_usd=0.50)
        outcome = await agent.wait()
        print(outcome.status, outcome.result, outcome.cost_usd)
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .limits import Limits
    from .swarm import (
        Agent,
        AgentView,
        Approval,
        BudgetView,
        MapResult,
        Outcome,
        Swarm,
        open_swarm,
        read_session,
        read_store,
    )
    from .tools import Tool, ToolContext, ToolOutput, tool

__all__ = [
    "Agent",
    "AgentView",
    "Approval",
    "BudgetView",
    "Limits",
    "MapResult",
    "Outcome",
    "Swarm",
    "Tool",
    "ToolContext",
    "ToolOutput",
    "open_swarm",
    "read_session",
    "read_store",
    "tool",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for: the whole takes a quarter of a second, which a pytest that has the plugin would pay."""
    if name in __all__:
        home = (
            "limits"
            if name == "Limits"
            else "tools"
            if name in ("Tool", "ToolContext", "ToolOutput", "tool")
            else "swarm"
        )
        value = globals()[name] = getattr(importlib.import_module(f".{home}", __name__), name)
        return value
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

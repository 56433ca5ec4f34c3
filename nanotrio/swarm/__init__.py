"""The Trio runtime: a swarm, its agents, and what can be seen of them."""

from .agent import Agent
from .caps import BudgetView
from .entering import load_sessions
from .map_values import MapOptions, MapResult, MapStatistics
from .mapping import MapResults
from .opening import open_swarm
from .outcome import AgentView, Outcome
from .reading import read_session, read_store
from .runtime import Approval, Approver
from .swarm import Swarm, SwarmStatistics
from .template import Template

__all__ = [
    "Agent",
    "AgentView",
    "Approval",
    "Approver",
    "BudgetView",
    "MapOptions",
    "MapResult",
    "MapResults",
    "MapStatistics",
    "Outcome",
    "Swarm",
    "SwarmStatistics",
    "Template",
    "load_sessions",
    "open_swarm",
    "read_session",
    "read_store",
]

"""The Trio runtime: a swarm, its agents, and what can be seen of them."""

from .agent import Agent
from .entering import load_sessions
from .opening import open_swarm
from .outcome import AgentView, Outcome
from .reading import read_session, read_store
from .runtime import Approval, Approver
from .swarm import Swarm, SwarmStatistics

__all__ = [
    "Agent",
    "AgentView",
    "Approval",
    "Approver",
    "Outcome",
    "Swarm",
    "SwarmStatistics",
    "load_sessions",
    "open_swarm",
    "read_session",
    "read_store",
]

"""Refusing the wait that would close a ring of agents who wait for each other."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ToolError
from ..tools import WaitFor
from .node import Node
from .runtime import Runtime

__all__ = ["enter_wait"]

_MAX_NAMED = 8


def enter_wait(runtime: Runtime, node: Node, wait: WaitFor) -> None:
    """Let others know that ``node`` waits, as it is about to, for agents that are not below it.

    A wait with a time limit ends by itself, so it closes no ring; it is refused only where it could not end before.

    Raises:
        ToolError: the wait would never end; names those on the ring.
    """
    nodes = runtime.nodes
    found = [nodes[agent] for agent in wait.agents if agent in nodes]
    targets = [each for each in found if each.is_counted]
    for each in targets:
        if each.parent is not node:
            break
    else:
        return  # its own children, as nearly always: they are no news to the graph
    lineage = [each.id for each in node.lineage()]
    if wait.mode == "any":
        untold = {mail.sender for mail in node.session.unread if mail.kind == "child"}
        if any(each.is_below(node) for each in targets) or any(
            each.id in untold for each in found if not each.is_counted
        ):
            return
        agents = [each.id for each in targets]
    else:
        agents = [each.id for each in targets if not each.is_below(node)]
    if wait.timeout_seconds is not None:
        above = [agent for agent in agents if agent in lineage]
        if above and (wait.mode == "all" or len(above) == len(agents)):
            raise _refusal(runtime, [] if above[0] == node.id else above[:1])
        return
    if agents:
        ring = runtime.waits.ring(lineage, agents, wait.mode)
        if ring is not None:
            raise _refusal(runtime, ring)
        runtime.waits.add(lineage, agents, wait.mode)


def _refusal(runtime: Runtime, ring: Sequence[int]) -> ToolError:
    names = [runtime.nodes[agent].name if agent in runtime.nodes else f"agent {agent}" for agent in ring[:_MAX_NAMED]]
    if len(ring) > _MAX_NAMED:
        names[-1] = f"{len(ring) - _MAX_NAMED + 1} more"
    told = ", which waits for ".join([*names, "you"]) if names else "yourself"
    return ToolError(f"you would wait for {told}, and that would never end; go on without it, or end your turn")

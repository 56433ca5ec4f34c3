"""What a waiting call is told: how each agent ended, without telling it again in a notice."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from ..errors import ToolError
from ..tools import ToolOutput, WaitFor
from .mailroom import wait_for
from .node import Node
from .rings import enter_wait
from .runtime import Runtime

__all__ = ["answer_wait", "status_of"]

_SLICE = 256


async def answer_wait(runtime: Runtime, node: Node, pending: WaitFor) -> tuple[ToolOutput, tuple[int, ...]]:
    """Wait as asked; return one paragraph an agent, and the numbers of the notices that say the same.

    These are to be taken with the result in one group, or a crash between the two would lose them.
    """
    agents = pending.agents
    if len(agents) <= _SLICE:
        await runtime.residence.bring_in(agents)
    try:
        enter_wait(runtime, node, pending)  # again: one who had ended since the call was made may work once more
    except ToolError as refused:
        return ToolOutput(str(refused), True), ()
    await _wait(runtime, node, pending)
    if node.sealed is not None:  # those below it were ended first, and its own cancel is on the way
        await trio.sleep_forever()
    open_agents = [agent for agent in agents if _is_open(runtime, agent)]
    ids = set(agents).difference(open_agents)
    told = tuple([mail.seq for mail in node.session.unread if mail.kind == "child" and mail.sender in ids])
    lines = []
    finished = [agent for agent in agents if agent in ids]
    for start in range(0, len(finished), _SLICE):
        lines += [_told(each) for each in await _brought_in(runtime, finished[start : start + _SLICE])]
    lines += _unended(runtime, open_agents)
    return ToolOutput("\n".join(lines)), told


async def _wait(runtime: Runtime, node: Node, pending: WaitFor) -> None:
    agents = pending.agents
    awaited = [agent for agent in agents if _is_open(runtime, agent)]
    finished = len(agents) - len(awaited)
    if pending.mode == "any" and awaited:
        # The first that the agent was not told of yet: else one that ended long ago would answer every such call.
        untold = {mail.sender for mail in node.session.unread if mail.kind == "child"}
        finished = len(untold.intersection(agents).difference(awaited))
    nodes = [runtime.nodes[agent] for agent in awaited if agent in runtime.nodes]
    rows = [agent for agent in awaited if agent not in runtime.nodes]
    mode = pending.mode
    if mode == "any" and finished:
        nodes, rows = [], []
    await wait_for(runtime, nodes, mode, pending.timeout_seconds, rows)


def _is_open(runtime: Runtime, agent: int) -> bool:
    """Whether an agent, in memory or not, is unfinished."""
    node = runtime.nodes.get(agent)
    return node.is_counted if node is not None else runtime.residence.is_row(agent)


async def _brought_in(runtime: Runtime, agents: Sequence[int]) -> list[Node]:
    await runtime.residence.bring_in(agents)
    return [runtime.nodes[agent] for agent in agents if agent in runtime.nodes]


def _unended(runtime: Runtime, agents: Sequence[int]) -> list[str]:
    nodes = [runtime.nodes[agent] for agent in agents if agent in runtime.nodes]
    lines = [f"{each.name} has not ended: {status_of(each)}" for each in nodes]
    more = len(agents) - len(nodes)
    return [*lines, f"and {more} more that wait to be started"] if more else lines


def status_of(node: Node) -> str:
    """Return the node's status as people read it."""
    ended = node.session.ended
    status = node.session.status
    if status in ("idle", "closed") and ended is not None:
        return ended.fact.status if status == "idle" else f"{ended.fact.status}, closed"
    return f"{status}, waiting for {node.waiting_for}" if node.waiting_for else status


def _told(node: Node) -> str:
    ended = node.session.ended
    if ended is None:
        return f"{node.name} has done nothing yet"
    fact = ended.fact
    if fact.status == "completed":
        return f"{node.name} completed: {fact.result or fact.last_text}"
    last = f"; its last text: {fact.last_text}" if fact.last_text else ""
    return f"{node.name} {fact.status}: {fact.reason}{last}"

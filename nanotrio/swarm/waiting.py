"""What a waiting call is told: how each agent ended, without telling it again in a notice."""

from __future__ import annotations

import trio

from ..errors import ToolError
from ..records import MailTaken
from ..tools import ToolOutput, WaitFor
from .mailroom import wait_for
from .node import Node
from .rings import enter_wait
from .runtime import Runtime

__all__ = ["answer_wait", "status_of"]


async def answer_wait(runtime: Runtime, node: Node, pending: WaitFor) -> ToolOutput:
    """Wait as asked and return one paragraph an agent."""
    try:
        enter_wait(runtime, node, pending)  # again: one who had ended since the call was made may work once more
    except ToolError as refused:
        return ToolOutput(str(refused), True)
    nodes = [runtime.nodes[agent] for agent in pending.agents if agent in runtime.nodes]
    awaited = nodes
    if pending.mode == "any" and any(each.is_counted for each in nodes):
        # The first that the agent was not told of yet: else one that ended long ago would answer every such call.
        untold = {mail.sender for mail in node.session.unread if mail.kind == "child"}
        awaited = [each for each in nodes if each.is_counted or each.id in untold]
    await wait_for(runtime, awaited, pending.mode, pending.timeout_seconds)
    if node.sealed is not None:  # those below it were ended first, and its own cancel is on the way
        await trio.sleep_forever()
    finished = [each for each in nodes if not each.is_counted]
    ids = {each.id for each in finished}
    told = tuple([mail.seq for mail in node.session.unread if mail.kind == "child" and mail.sender in ids])
    if told:
        runtime.record(node, (MailTaken(told),))
    lines = [_told(each) for each in finished]
    lines += [f"{each.name} has not ended: {status_of(each)}" for each in nodes if each.is_counted]
    return ToolOutput("\n".join(lines))


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

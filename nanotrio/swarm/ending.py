"""Ending subtrees: seal from the top, cancel from the bottom, a slice at a time, and see their processes gone.

Theory of operation
-------------------
A subtree is first *sealed*, from the top down: from then on none of its agents spawns, is admitted, is woken or is told
anything, so nothing new appears behind the canceller's back. Each node carries the cause. Then the agents' own scopes
are cancelled, deepest first, ``SLICE`` a pass, so that the loop never stalls; agents without a task are closed by the
canceller itself. It returns when every task of the subtree is gone and so are its processes, or after
``max_reap_seconds``, naming what remains.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from ..tools import reap_all
from .mailroom import wait_for
from .node import Cause, Node
from .pump import QUOTA
from .runtime import Runtime
from .settling import end_sealed, give_up

__all__ = ["end_children", "end_trees", "names_of_unfinished"]

SLICE = QUOTA
_MAX_NAMES = 20


def names_of_unfinished(node: Node) -> tuple[str, ...]:
    """Return the names of the unfinished agents below ``node``, the first few and a count of the rest."""
    if not node.unfinished_children:
        return ()
    names = [each.name for each in node.subtree()[1:] if each.is_counted]
    if len(names) > _MAX_NAMES:
        return (*names[:_MAX_NAMES], f"and {len(names) - _MAX_NAMES} more")
    return tuple(names)


async def end_children(runtime: Runtime, node: Node, reason: str) -> tuple[str, ...]:
    """End all unfinished descendants of ``node`` as cancelled; return what remains. Their ends are no mail to it."""
    children = [child for child in node.children or () if child.is_counted]
    for child in children:
        child.is_told = True
    return await end_trees(runtime, children, "cancelled", reason)


async def end_trees(runtime: Runtime, tops: Sequence[Node], cause: Cause, reason: str) -> tuple[str, ...]:
    """Seal and end the subtrees of ``tops``; return the names of tasks and processes that would not go, and why.

    Safe to call for a subtree that is being ended already: it then waits for it. Checkpoints. Cancelling the caller
    does not undo it: whoever was sealed stays sealed, and is still told to end.
    """
    nodes: list[Node] = []
    for top in tops:
        for node in top.subtree():
            if node.sealed is None:
                node.sealed = cause
                if node.stop is None:
                    node.stop = ("cancelled", reason)
            nodes.append(node)
    if not nodes:
        await trio.lowlevel.checkpoint()
        return ()
    seconds = max(node.limits.max_reap_seconds for node in tops)
    with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds):
        await _cancel(runtime, nodes)
        await wait_for(runtime, nodes, "all", None)
    remaining = [f"{node.name} (its task does not end)" for node in nodes if node.has_task]
    give_up(runtime, nodes)
    processes = [node.processes for node in nodes if node.processes is not None]
    if processes:
        with trio.CancelScope(shield=True):
            for lines in await reap_all(processes, seconds):
                remaining += lines
    runtime.append()
    return tuple(remaining)


async def _cancel(runtime: Runtime, nodes: list[Node]) -> None:
    """Cancel or close each node, those that were spawned last first: a child is always younger than its parent."""
    nodes.sort(key=lambda node: node.session.depth)
    for index, node in enumerate(reversed(nodes), 1):
        if node.scope is not None:
            node.scope.cancel()
        if not node.has_task and not node.unfinished_children:
            end_sealed(runtime, node)
        if index % SLICE == 0:
            runtime.append()
            await trio.lowlevel.checkpoint()
    runtime.append()

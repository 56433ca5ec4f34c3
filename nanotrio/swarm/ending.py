"""Ending subtrees: seal from the top, cancel from the bottom, a slice at a time, and see their processes gone.

Theory of operation
-------------------
A subtree is first *sealed*, from the top down: from then on none of its agents spawns, is admitted, is woken or is told
anything, so nothing new appears behind the canceller's back. Each node carries the cause. Then the agents' own scopes
are cancelled, deepest first, ``SLICE`` a pass, so that the loop never stalls; agents without a task are closed by the
canceller itself. Pending agents that are not in memory are ended by the residence, a slice at a time too. It returns
when every task of the subtree is gone and so are its processes. Only this last wait is bounded, by
``max_reap_seconds``: what has to be written is written; what then remains is named.
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

SLICE = QUOTA // 2
"""Cancelled in one pass: each then unwinds, and writes down its end."""
_SEAL_SLICE = 4_096
_MAX_NAMES = 20


def names_of_unfinished(node: Node) -> tuple[str, ...]:
    """Return the names of the unfinished agents below ``node``, the first few and a count of the rest."""
    if not node.unfinished_children:
        return ()
    subtree = node.subtree()
    names = [each.name for each in subtree if each.is_counted and each is not node]
    more = sum([each.rows for each in subtree]) + max(0, len(names) - _MAX_NAMES)
    return (*names[:_MAX_NAMES], f"and {more} more") if more else tuple(names)


async def end_children(runtime: Runtime, node: Node, reason: str) -> tuple[str, ...]:
    """End all unfinished descendants of ``node`` as cancelled; return what remains. Their ends are no mail to it."""
    children = [child for child in (node.children or {}).values() if child.is_counted]
    for child in children:
        child.is_told = True
    runtime.residence.end_rows(node, reason, is_told=True)
    remaining = await end_trees(runtime, children, "cancelled", reason)
    await runtime.residence.rows_gone(node)
    return remaining


async def end_trees(runtime: Runtime, tops: Sequence[Node], cause: Cause, reason: str) -> tuple[str, ...]:
    """Seal and end the subtrees of ``tops``; return the names of tasks and processes that would not go, and why.

    Safe to call for a subtree that is being ended already: it then waits for it. Checkpoints. Cancelling the caller
    does not undo it: whoever was sealed stays sealed, and is still told to end.
    """
    if not tops:
        await trio.lowlevel.checkpoint()
        return ()
    seconds = max(node.limits.max_reap_seconds for node in tops)
    with trio.CancelScope(shield=True):
        nodes = await _seal(runtime, tops, cause, reason)
        with_rows = [node for node in nodes if node.rows]
        await _cancel(runtime, nodes)
        for node in with_rows:
            await runtime.residence.rows_gone(node)
    with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds):
        await wait_for(runtime, nodes, "all", None)
    remaining = [f"{node.name} (its task does not end)" for node in nodes if node.has_task]
    give_up(runtime, nodes)
    processes = [each for node in nodes for each in node.all_processes()]
    if processes:
        with trio.CancelScope(shield=True):
            for lines in await reap_all(processes, seconds):
                remaining += lines
    runtime.append()
    return tuple(remaining)


async def _seal(runtime: Runtime, tops: Sequence[Node], cause: Cause, reason: str) -> list[Node]:
    """Seal the subtrees from the top down and return their nodes; what is sealed already gets no further children."""
    nodes = list(tops)
    for index, node in enumerate(nodes, 1):
        if node.sealed is None:
            node.sealed = cause
            if node.stop is None:
                node.stop = ("cancelled", reason)
        if node.children:
            nodes.extend(node.children.values())
        if node.rows and cause == "cancelled":
            runtime.residence.end_rows(node, reason)
        if index % _SEAL_SLICE == 0:
            await trio.lowlevel.checkpoint()
    return nodes


async def _cancel(runtime: Runtime, nodes: list[Node]) -> None:
    """Cancel or close each node, those that were spawned last first: a child is always younger than its parent.

    Who has no task and unfinished children is closed as the last of them is.
    """
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

"""The end of an agent's work, as it is written down and told.

All of it happens without an await: from the fact that says the agent has nothing left to do, to the parent's notice and
the waiters that are let go. Where a subtree is *interrupted* nothing is written, so that it can be resumed.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import crash
from ..records import ChildEnded, Closed, Fact, Settled, TurnStarted
from ..turn import Stop
from .events import TurnFinished
from .mailroom import notify, return_unread
from .node import Node
from .outcome import outcome_of
from .runtime import Runtime

__all__ = ["close", "close_unstarted", "end_sealed", "give_up", "report", "settle", "tell_stopped"]


def settle(runtime: Runtime, node: Node) -> None:
    """The agent has nothing left to do: write it down, tell the parent, give everything back. No await."""
    if crash.here is not None:
        crash.here("before-settle", node.id)
    report(runtime, node, (Settled(),))
    _leave(runtime, node)
    if crash.here is not None:
        crash.here("after-settle", node.id)


def report(runtime: Runtime, node: Node, facts: tuple[Fact, ...]) -> None:
    """Record ``facts`` and tell the parent of the end of the last turn, and of what was spent since it was told."""
    session = node.session
    usage, spent, uncertain, unpriced = session.report()
    runtime.record(node, facts)
    ended = session.ended
    if node.parent is not None and ended is not None:
        fact = ended.fact
        result = fact.result or (fact.last_text if fact.status == "completed" else "")
        last_text = "" if result == fact.last_text else fact.last_text
        told = ChildEnded(
            node.id,
            node.name,
            ended.turn,
            fact.status,
            fact.reason,
            result,
            last_text,
            usage,
            spent,
            uncertain,
            unpriced,
            node.is_told or ended.turn == node.told_turn,  # then only what was spent below it since is news
        )
        node.told_turn = ended.turn
        runtime.record(node.parent, (told,))


def _leave(runtime: Runtime, node: Node) -> None:
    """Give the task's things back; whoever waits for the agent is told."""
    if node.has_task:
        node.has_task = False
        runtime.live -= 1
    node.nursery = None
    node.scope = None
    node.encoded = []
    tell_stopped(node)
    if node.sealed is None:
        node.stop = None  # the turn it was meant for ended in the same moment
    runtime.slots.release(node)
    if runtime.watchers.count and node.is_counted and node.session.ended is not None:
        runtime.emit(node, TurnFinished(node.id, node.name, outcome_of(node.session)))
    waiters, node.waiters = node.waiters, None
    runtime.uncount(node)
    runtime.residence.rest(node)
    if waiters:
        notify(waiters)


def close(runtime: Runtime, node: Node) -> None:
    """Write down that the agent's turn was cancelled and that it takes no more mail."""
    session = node.session
    if session.status == "closed":
        return
    if crash.here is not None:
        crash.here("before-cancel", node.id)
    reason = node.stop[1] if node.stop else "cancelled"
    if session.turn is None and session.turns == 0:
        runtime.record(node, (TurnStarted(1, session.last_seq),))
    if session.turn is not None:
        runtime.absorb(node, Stop("cancelled", reason))
    return_unread(runtime, node)
    runtime.record(node, (Closed(reason),))
    if crash.here is not None:
        crash.here("after-cancel", node.id)


def end_sealed(runtime: Runtime, node: Node) -> None:
    """The last act of a task whose subtree was sealed; its children are gone."""
    if node.sealed == "cancelled" and node.is_counted:
        report(runtime, node, (Settled(),))
    _leave(runtime, node)
    runtime.append()


def give_up(runtime: Runtime, nodes: Sequence[Node]) -> None:
    """Write down the end of cancelled agents whose tasks do not end, each after its parent; the tasks live on."""
    for node in reversed(nodes):
        if node.sealed == "cancelled" and node.is_counted:
            close(runtime, node)
            report(runtime, node, (Settled(),))
            waiters, node.waiters = node.waiters, None
            runtime.uncount(node)
            notify(waiters or ())


def close_unstarted(runtime: Runtime, node: Node) -> None:
    """End a sealed agent that has no task: pending, or idle."""
    node.is_queued = False
    if node.sealed == "cancelled" and node.session.status != "closed":
        was_finished = not node.is_counted
        close(runtime, node)
        report(runtime, node, (Settled(),)) if not was_finished else None
    _leave(runtime, node)


def tell_stopped(node: Node) -> None:
    """Tell whoever asked for a stop that it has been written down."""
    if node.stopped is not None:
        node.stopped.set()
        node.stopped = None

"""The end of an agent's work, as it is written down and told.

All of it happens without an await: from the fact that says the agent has nothing left to do, to the parent's notice and
the waiters that are let go. A parent that only waited for it is settled in the same moment. Where a subtree is
*interrupted* nothing is written, so that it can be resumed.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import crash
from ..records import ChildEnded, Fact, Settled, TurnStarted
from ..turn import Stop
from .events import TurnFinished
from .mailroom import close_mailbox, notify
from .node import Node
from .outcome import outcome_of
from .runtime import Runtime

__all__ = ["end_sealed", "end_sealed_work", "give_up", "has_ends_to_gather", "report", "rest", "settle", "tell_stopped"]


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
    if ended is None:
        return
    fact = ended.fact
    is_news = ended.turn != node.told_turn
    if is_news:
        node.told_turn = ended.turn
        runtime.outcomes[fact.status] = runtime.outcomes.get(fact.status, 0) + 1
    if node.parent is not None:
        result = fact.result or (fact.last_text if fact.status == "completed" else "")
        last_text = "" if result == fact.last_text else fact.last_text
        is_told = node.is_told or not is_news  # then only what was spent below it since is
        if not node.parent.session.task:  # it has no task of its own that the news could be for
            is_told, result, last_text = True, "", ""
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
            is_told,
        )
        runtime.record(node.parent, (told,))


def _leave(runtime: Runtime, node: Node) -> None:
    """The agent has nothing left to do: give back what it holds; whoever waits for it is told."""
    runtime.work_ended(node)
    node.encoded = None
    node.waiting_for = ""
    tell_stopped(node)
    if node.sealed is None:
        node.stop = None  # the turn it was meant for ended in the same moment
    if runtime.watchers.count and node.is_counted and node.session.ended is not None:
        runtime.emit(node, TurnFinished(node.id, node.name, outcome_of(node.session)))
    waiters, node.waiters = node.waiters, None
    _uncount(runtime, node)
    runtime.residence.rest(node)
    if waiters:
        notify(waiters)


def _uncount(runtime: Runtime, node: Node) -> None:
    """Count the agent as finished; a parent without a task is queued, settled or ended where that was all it lacked."""
    parent = node.parent
    if not node.is_counted:
        return
    runtime.uncount(node)
    if parent is None or parent.has_task or (parent.is_gathering and parent.unfinished_children and not parent.sealed):
        return
    if parent.sealed is not None:
        if not parent.unfinished_children:
            end_sealed(runtime, parent)
    elif has_ends_to_gather(parent):
        runtime.deadlines.gather(parent)
    elif parent.session.turn is not None or parent.session.unread:
        runtime.slots.enqueue(parent)
    elif not parent.unfinished_children:
        settle(runtime, parent)


def rest(runtime: Runtime, node: Node) -> None:
    """The agent's turn has ended and descendants are unfinished: its task ends, and news starts another. No await."""
    runtime.append()
    runtime.work_ended(node)
    node.waiting_for = "its children"
    tell_stopped(node)
    if node.sealed is None:
        node.stop = None
    if has_ends_to_gather(node):
        runtime.deadlines.gather(node)


def has_ends_to_gather(node: Node) -> bool:
    """Whether all that is new are ends of children, and more of them are to be expected: they are told together."""
    session = node.session
    return node.unfinished_children > 0 and session.turn is None and bool(session.unread) and not session.letters


def _close(runtime: Runtime, node: Node) -> None:
    """Write down that the agent's turn was cancelled and that it takes no more mail."""
    session = node.session
    if session.status == "closed":
        return
    if crash.here is not None:
        crash.here("before-cancel", node.id)
    reason = node.stop[1] if node.stop else "cancelled"
    if session.turn is None and session.turns == 0:  # it reads what it was spawned on; the rest goes back
        runtime.record(node, (TurnStarted(1, session.unread[0].seq if session.unread else session.last_seq),))
    if session.turn is not None:
        runtime.absorb(node, Stop("cancelled", reason))
    close_mailbox(runtime, node, reason)
    if crash.here is not None:
        crash.here("after-cancel", node.id)


def end_sealed_work(runtime: Runtime, node: Node) -> None:
    """The last act of a task whose subtree was sealed: what is left to do waits for the children, if any run."""
    if node.sealed == "cancelled":
        _close(runtime, node)
        runtime.append()
    if node.unfinished_children:
        runtime.work_ended(node)
    else:
        end_sealed(runtime, node)
    runtime.append()


def end_sealed(runtime: Runtime, node: Node) -> None:
    """End a sealed agent that does no work any more, or never began, and whose children are finished. No await."""
    node.is_queued = False
    if node.sealed == "cancelled":
        _close(runtime, node)
        if node.is_counted:
            report(runtime, node, (Settled(),))
    _leave(runtime, node)


def give_up(runtime: Runtime, nodes: Sequence[Node]) -> None:
    """Write down the end of cancelled agents whose tasks do not end, each after its parent; the tasks live on."""
    for node in reversed(nodes):
        if node.sealed == "cancelled" and node.is_counted:
            _close(runtime, node)
            report(runtime, node, (Settled(),))
            waiters, node.waiters = node.waiters, None
            _uncount(runtime, node)
            notify(waiters or ())


def tell_stopped(node: Node) -> None:
    """Tell whoever asked for a stop that it has been written down."""
    if node.stopped is not None:
        node.stopped.set()
        node.stopped = None

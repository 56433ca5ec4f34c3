"""Warnings: a cap is three quarters spent, or nine tenths.

The agent that holds the cap and its parent are told by mail between two steps; whoever watches sees an event. A warning
begins no turn: that would spend what it warns about. Which were given follows from what is settled and from the cap
(``budget.passed_percent``). The mail lies in one group with the fact that made it due, so after a crash there are both
or neither, and a restart repeats none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..budget import Ledger, passed_percent
from ..limits import usd_text
from ..records import MailArrived
from .events import BudgetWarned
from .node import Node
from .runtime import Runtime

__all__ = ["warn", "warn_of_cap", "warn_of_uncertain"]


def warn(runtime: Runtime, node: Node, passed: Iterable[Ledger] | None) -> None:
    """Tell of the ledgers in the lineage of ``node`` that ``Ledger.settle`` returned, within the open group."""
    if not passed:
        return
    for holder in node.lineage():
        if holder.ledger in passed:
            _tell(runtime, holder)


def warn_of_cap(runtime: Runtime, node: Node, former: int | None) -> None:
    """The node's cap was ``former`` before: tell, if it is nearer to being spent now."""
    ledger = node.ledger
    if passed_percent(ledger.settled, ledger.cap) > passed_percent(ledger.settled, former):
        _tell(runtime, node)


def warn_of_uncertain(runtime: Runtime, nodes: Sequence[Node]) -> None:
    """A restart settled the reservations that were open at the crash: tell whose cap passed a share by that.

    Call it before the nodes' turns are taken up; their ledgers have the reservations settled already.
    """
    uncertain: dict[Ledger, int] = {}
    for node in nodes:
        if (amount := node.session.reserved_nano) and node.session.turn is not None:
            for ledger in node.ledger.lineage():
                uncertain[ledger] = uncertain.get(ledger, 0) + amount
    for node in nodes if uncertain else ():
        amount = uncertain.get(node.ledger, 0)
        if node.ledger.cap is not None and amount and node.ledger.has_passed(node.ledger.settled - amount):
            _tell(runtime, node)


def _tell(runtime: Runtime, holder: Node) -> None:
    spent, cap = holder.ledger.settled, holder.ledger.cap or 0
    share = f"{spent * 100 // cap} %" if cap else "all"
    text = (
        f"{share} of the budget of {holder.name} is spent: "
        f"{usd_text(spent)} of {usd_text(cap)}, {usd_text(max(cap - spent, 0))} left"
    )
    for each in (holder, holder.parent):
        if each is not None and each.sealed is None and each.session.status != "closed":
            runtime.record(each, (MailArrived("warning", 0, text, ""),))
    if runtime.watchers.count:
        runtime.emit(holder, BudgetWarned(holder.id, holder.name, spent, cap, text))

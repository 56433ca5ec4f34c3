"""Caps on money while agents run: looking at one, and setting one."""

from __future__ import annotations

import msgspec

from ..agent_name import name_of
from ..budget import Ledger
from ..limits import nano_usd, usd
from ..models import Model
from ..records import LimitsSet
from .calls import admit_next
from .growing import check_budget
from .node import Node
from .rows import RowKind
from .runtime import Runtime
from .warnings import warn_of_cap

__all__ = ["BudgetView", "budget_of", "set_cap"]


class BudgetView(msgspec.Struct, frozen=True, gc=False):
    """What an agent and all its descendants spent, and what holds them; a snapshot. Amounts are nano-USD."""

    cap_nano: int | None
    """The agent's own cap; None where it has none."""
    settled_nano: int
    """Spent by it and all below it, what a crash left uncertain included."""
    reserved_nano: int
    """What their calls in flight may cost at most."""
    left_nano: int | None
    """Cap less settled where that is least along the lineage, not below 0; None where no ancestor has a cap either.

    Reservations are not counted: a call for which they leave no room waits for them.
    """
    tightest: str
    """Whose cap that is, the agent's own or an ancestor's; empty for none."""

    @property
    def cap_usd(self) -> float | None:
        """The agent's own cap in dollars."""
        return None if self.cap_nano is None else usd(self.cap_nano)

    @property
    def settled_usd(self) -> float:
        """What was spent, in dollars."""
        return usd(self.settled_nano)

    @property
    def reserved_usd(self) -> float:
        """What calls in flight may cost, in dollars."""
        return usd(self.reserved_nano)

    @property
    def left_usd(self) -> float | None:
        """What is left, in dollars."""
        return None if self.left_nano is None else usd(self.left_nano)


def budget_of(ledger: Ledger) -> BudgetView:
    """Return an agent's budget as it stands; its cost is that of a walk to the root."""
    tightest = ledger.tightest()
    left = None if tightest is None else max((tightest.cap or 0) - tightest.settled, 0)
    return BudgetView(ledger.cap, ledger.settled, ledger.reserved, left, tightest.owner if tightest else "")


def _check_prices(runtime: Runtime, top: Node) -> None:
    """Refuse a cap where a model below has no price. Who is not in memory, and no row, is refused its next call."""
    nodes = {node.id: node for node in top.subtree()}
    for node in nodes.values():
        check_budget(None, node.model, node.name, 0)
    rows = runtime.slots.rows

    def model_of(kind: RowKind) -> Model | None:
        return runtime.models.get(runtime.profile_values[kind.profile].model)

    def is_unpriced(kind: RowKind) -> bool:
        return kind.parent in nodes and (model := model_of(kind)) is not None and model.price is None

    for agent in rows.those(is_unpriced):
        kind = rows.row(rows.find(agent)).kind
        if (model := model_of(kind)) is not None:
            check_budget(None, model, name_of(kind.stem, agent), 0)


def set_cap(runtime: Runtime, node: Node, budget_usd: float | None) -> None:
    """Set a node's cap, within the open group, and let those look again who wait for room.

    Raises:
        UsageError: the amount is negative, or the price of a model below is unknown.
    """
    budget = None if budget_usd is None else nano_usd(budget_usd)
    if budget is not None and any(model.price is None for model in runtime.models.values()):
        _check_prices(runtime, node)
    former, node.ledger.cap = node.ledger.cap, budget
    node.limits = msgspec.structs.replace(node.limits, budget_nano=budget)
    runtime.record(node, (LimitsSet(node.limits),))
    warn_of_cap(runtime, node, former)
    admit_next(runtime, node)

"""The ledger of a lineage: what may still be spent below an agent.

Theory of operation
-------------------
Each agent has a ledger, linked to its parent's. A model call first reserves its worst case along the whole lineage and
settles on what it really cost, so at every moment and for every ancestor with a cap::

    settled + reserved <= cap

A cap is a limit, not an allocation: the caps of siblings may sum above their parent's, and whoever reserves first has
it. Raising or lowering a cap in flight changes what is admitted from then on. ``settled`` is what was spent, plus what
a crash left uncertain. All amounts are nano-USD.

Reserving, settling and asking whether there is room walk up the lineage and look at nothing else, so their cost is the
same for one agent below a cap and for a million.

A warning is due when ``settled`` passes a share of the cap. Which shares were passed follows from the two amounts
alone, so nothing is remembered about warnings, and none is given twice after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

__all__ = ["WARNING_PERCENTS", "Ledger", "passed_percent"]

WARNING_PERCENTS = (90, 75)
"""Shares of a cap at which a warning is due, the highest first."""


def passed_percent(settled: int, cap: int | None) -> int:
    """Return the highest of ``WARNING_PERCENTS`` that ``settled`` has reached; 0 for none, and without a cap."""
    if cap is not None:
        for percent in WARNING_PERCENTS:
            if settled * 100 >= cap * percent:
                return percent
    return 0


class Ledger(msgspec.Struct, eq=False, gc=False):
    """One agent's account; ``owner`` is its name, for people."""

    owner: str
    cap: int | None = None
    parent: Ledger | None = None
    settled: int = 0
    reserved: int = 0

    def lineage(self) -> Iterator[Ledger]:
        """Yield this ledger and its ancestors', upwards."""
        ledger: Ledger | None = self
        while ledger is not None:
            yield ledger
            ledger = ledger.parent

    @property
    def is_capped(self) -> bool:
        """Whether this agent or an ancestor has a cap."""
        ledger: Ledger | None = self
        while ledger is not None:
            if ledger.cap is not None:
                return True
            ledger = ledger.parent
        return False

    @property
    def room(self) -> int | None:
        """What this ledger alone would still admit; None without a cap."""
        return None if self.cap is None else self.cap - self.settled - self.reserved

    def tightest(self) -> Ledger | None:
        """Return the capped ledger of the lineage with the least left to spend, reservations not counted; or None."""
        capped = [ledger for ledger in self.lineage() if ledger.cap is not None]
        return min(capped, key=lambda ledger: (ledger.cap or 0) - ledger.settled, default=None)

    def refusing(self, amount: int) -> Ledger | None:
        """Return the ledger with the least room among those that would not admit ``amount``; None if all would."""
        worst: Ledger | None = None
        ledger: Ledger | None = self
        while ledger is not None:
            if ledger.cap is not None:
                room = ledger.cap - ledger.settled - ledger.reserved
                if amount > room and (worst is None or room < (worst.room or 0)):
                    worst = ledger
            ledger = ledger.parent
        return worst

    def reserve(self, amount: int) -> None:
        """Hold ``amount`` along the lineage; call it only where ``refusing(amount)`` is None."""
        ledger: Ledger | None = self if amount else None
        while ledger is not None:
            ledger.reserved += amount
            ledger = ledger.parent

    def settle(self, reserved: int, spent: int) -> list[Ledger] | None:
        """Give a reservation back and count what was really spent, along the lineage.

        Return the ledgers that passed a share of their cap by it, at which a warning is due; None for none.
        """
        passed: list[Ledger] | None = None
        ledger: Ledger | None = self if reserved or spent else None
        while ledger is not None:
            ledger.reserved -= reserved
            ledger.settled += spent
            if ledger.cap is not None and spent and ledger.has_passed(ledger.settled - spent):
                passed = [*(passed or ()), ledger]
            ledger = ledger.parent
        return passed

    def has_passed(self, before: int) -> bool:
        """Whether ``settled`` passed a share of the cap since it was ``before``."""
        return passed_percent(self.settled, self.cap) > passed_percent(before, self.cap)

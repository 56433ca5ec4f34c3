"""A cap is never passed, whatever is reserved and settled, and the refusal names who holds it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from nanotrio.budget import Ledger
from tests import counts


class Ledgers(RuleBasedStateMachine):
    """A tree of ledgers; model calls reserve their worst case and cost at most that."""

    def __init__(self) -> None:
        super().__init__()
        self.ledgers = [Ledger("root", 1_000)]
        self.open: list[tuple[Ledger, int]] = []
        self.own = [0]

    @rule(parent=st.integers(0, 99), cap=st.one_of(st.none(), st.integers(0, 1_500)))
    def add(self, parent: int, cap: int | None) -> None:
        above = self.ledgers[parent % len(self.ledgers)]
        self.ledgers.append(Ledger(f"agent.{len(self.ledgers)}", cap, above))
        self.own.append(0)

    @rule(who=st.integers(0, 99), amount=st.integers(0, 600))
    def reserve(self, who: int, amount: int) -> None:
        ledger = self.ledgers[who % len(self.ledgers)]
        refusing = ledger.refusing(amount)
        if refusing is None:
            ledger.reserve(amount)
            self.open.append((ledger, amount))
            return
        assert refusing.room is not None
        assert amount > refusing.room
        for each in ledger.lineage():
            assert each.room is None or each.room >= refusing.room or amount <= each.room

    @rule(which=st.integers(0, 99), part=st.floats(0, 1))
    def settle(self, which: int, part: float) -> None:
        if self.open:
            ledger, amount = self.open.pop(which % len(self.open))
            spent = int(amount * part)
            ledger.settle(amount, spent)
            self.own[self.ledgers.index(ledger)] += spent

    @rule(who=st.integers(0, 99), more=st.integers(0, 500))
    def raise_cap(self, who: int, more: int) -> None:
        ledger = self.ledgers[who % len(self.ledgers)]
        if ledger.cap is not None:
            ledger.cap += more

    @invariant()
    def no_cap_is_passed(self) -> None:
        for ledger in self.ledgers:
            assert ledger.reserved >= 0
            if ledger.cap is not None:
                assert ledger.settled + ledger.reserved <= ledger.cap

    @invariant()
    def a_parent_is_its_own_and_its_children(self) -> None:
        for ledger, own in zip(self.ledgers, self.own, strict=True):
            below = [each for each in self.ledgers if each.parent is ledger]
            assert ledger.settled == own + sum(each.settled for each in below)
            mine = sum(amount for holder, amount in self.open if holder is ledger)
            assert ledger.reserved == mine + sum(each.reserved for each in below)


def test_no_sequence_passes_a_cap() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Ledgers, settings=settings(max_examples=counts.EXAMPLES, stateful_step_count=25, deadline=None)
    )


def test_the_tightest_ancestor_is_named() -> None:
    root = Ledger("root.1", 1_000)
    middle = Ledger("middle.2", 300, root)
    leaf = Ledger("leaf.3", 500, middle)
    refusing = leaf.refusing(400)
    assert refusing is middle
    tightest = leaf.tightest()
    assert tightest is middle
    root.settled = 900
    assert leaf.tightest() is root
    assert leaf.refusing(400) is root


@given(st.integers(0, 10**12))
def test_without_a_cap_everything_fits(amount: int) -> None:
    ledger = Ledger("a", None, Ledger("b"))
    assert ledger.refusing(amount) is None
    assert ledger.tightest() is None
    assert not ledger.is_capped
    assert ledger.room is None


def test_a_cap_lowered_below_what_was_spent_admits_nothing() -> None:
    ledger = Ledger("a", 100)
    ledger.reserve(80)
    ledger.settle(80, 80)
    ledger.cap = 50
    assert ledger.refusing(1) is ledger
    assert ledger.is_capped

"""A child's limits are the least of its own and its parent's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanotrio.errors import UsageError
from nanotrio.limits import Limits, nano_usd, usd, usd_text

FIELDS = Limits.__struct_fields__
BOUND = st.one_of(st.none(), st.integers(1, 10**6))
LIMITS = st.builds(
    Limits,
    budget_nano=BOUND,
    max_tokens=BOUND,
    max_depth=st.integers(0, 64),
    max_steps=st.integers(1, 100),
    turn_seconds=st.floats(0.1, 1e4),
)


@given(LIMITS, LIMITS)
def test_within_is_the_least_field_by_field(own: Limits, outer: Limits) -> None:
    both = own.within(outer)
    for field in FIELDS:
        bounds = [value for value in (getattr(own, field), getattr(outer, field)) if value is not None]
        assert getattr(both, field) == (min(bounds) if bounds else None)


@given(LIMITS, LIMITS, LIMITS)
def test_a_lineage_may_be_folded_in_any_order(first: Limits, second: Limits, third: Limits) -> None:
    assert first.within(second).within(third) == third.within(second.within(first))
    assert first.within(first) == first


@pytest.mark.parametrize(("amount", "nano"), [(0.0, 0), (0.10, 100_000_000), (0.3, 300_000_000), (1e-9, 1)])
def test_money_is_counted_in_whole_nano_dollars(amount: float, nano: int) -> None:
    assert nano_usd(amount) == nano
    assert usd(nano) == pytest.approx(amount)


@pytest.mark.parametrize("amount", [1e300, float("inf"), float("nan")])
def test_an_amount_that_cannot_be_counted_is_refused(amount: float) -> None:
    with pytest.raises(UsageError, match="no amount that can be counted"):
        nano_usd(amount)


def test_every_limit_has_a_default_and_a_word_on_it() -> None:
    assert Limits() == Limits()
    assert Limits().max_depth == 8
    assert Limits().max_total == 1_000_000


@pytest.mark.parametrize(
    ("nano", "text"), [(1_000, "0.000001 USD"), (0, "0 USD"), (20_531_300, "0.0205313 USD"), (10**16, "10000000 USD")]
)
def test_money_is_never_shown_with_an_exponent(nano: int, text: str) -> None:
    assert usd_text(nano) == text

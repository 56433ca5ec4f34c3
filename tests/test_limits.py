"""A child's limits are the least of its own and its parent's."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanotrio.errors import UsageError
from nanotrio.limits import Limits, check_limits, nano_usd, usd, usd_text

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


@pytest.mark.parametrize("amount", [1e300, 10**400, float("inf"), float("nan"), -1, "1", None])
def test_an_amount_that_cannot_be_counted_is_refused(amount: Any) -> None:
    with pytest.raises(UsageError, match=r"^budget_usd is [^\n]{1,80}$"):
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


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_steps": 1.5}, {"max_steps": None}, {"max_steps": True}, {"max_steps": "10"}, {"max_steps": 0},
        {"max_turns": -1}, {"budget_nano": 1.5}, {"budget_nano": 2**63}, {"max_tokens": float("nan")},
        {"turn_seconds": "60"}, {"turn_seconds": float("nan")}, {"turn_seconds": 10**400}, {"idle_seconds": -1.0},
    ],
)  # fmt: skip
def test_a_bound_that_is_no_number_of_its_kind_is_told_by_its_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=rf"^limits\.{name} is "):
        check_limits(Limits(**wrong))


def test_limits_that_are_given_become_what_a_store_reads_back() -> None:
    fit = check_limits(Limits(budget_nano=5e9, max_steps=1e3, turn_seconds=60))  # type: ignore[arg-type]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fit), type=Limits) == fit
    assert (fit.budget_nano, fit.max_steps, fit.turn_seconds) == (5_000_000_000, 1_000, 60.0)

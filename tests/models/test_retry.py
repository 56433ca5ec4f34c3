from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanotrio.models import RateGate, classify, delay_seconds, retry_after_seconds
from nanotrio.models.retry import MAX_STATED_SECONDS

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-4"}, 0.0),
        ({"retry-after": "3600"}, 3600.0),
        ({"retry-after-ms": "500"}, 0.5),
        ({"retry-after-ms": "500", "retry-after": "9"}, 0.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Sun, 29 Nov 2026 12:00:07 GMT"}, 7.0),
        ({"retry-after": "Sun, 29 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "Sun, 29 Nov 2026 13:00:07 GMT", "date": "Sun, 29 Nov 2026 13:00:00 GMT"}, 7.0),
        ({"retry-after": "garbage"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Sun, 99 Nov 2026 12:00:07 GMT"}, None),
        ({}, None),
    ],
)
def test_the_stated_time_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, NOW.timestamp()) == seconds


@given(st.text())
def test_no_header_breaks_the_reading(text: str) -> None:
    for name in ("retry-after", "retry-after-ms", "date"):
        seconds = retry_after_seconds({"retry-after": format_datetime(NOW, usegmt=True), name: text}, NOW.timestamp())
        assert seconds is None or seconds >= 0


@pytest.mark.parametrize(
    ("status", "name", "message", "kind"),
    [
        (429, "", "", "rate_limited"),
        (529, "", "", "rate_limited"),
        (529, "overloaded_error", "Overloaded", "rate_limited"),
        (429, "insufficient_quota", "You exceeded your current quota", "quota"),
        (429, "", "insufficient quota", "quota"),
        (400, "invalid_request_error", "Your credit balance is too low to access the API", "quota"),
        (402, "", "", "quota"),
        (401, "", "", "auth"),
        (403, "", "", "auth"),
        (404, "", "", "not_found"),
        (408, "", "", "transient"),
        (409, "", "", "transient"),
        (413, "", "", "too_long"),
        (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", "too_long"),
        (400, "context_length_exceeded", "", "too_long"),
        (400, "invalid_request_error", "messages: roles must alternate", "rejected"),
        (418, "", "", "rejected"),
        (302, "", "", "rejected"),
        (500, "", "", "transient"),
        (503, "", "maximum context of patience", "transient"),
        (0, "overloaded_error", "", "rate_limited"),
        (0, "invalid_request_error", "", "rejected"),
        (0, "", "", "transient"),
    ],
)
def test_failures_are_classified(status: int, name: str, message: str, kind: str) -> None:
    assert classify(status, name, message) == kind


KINDS = st.sampled_from(["transient", "rate_limited", "unreachable"])
SEEDS = st.integers(0, 1 << 70)


@given(KINDS, st.integers(1, 50), st.floats(0, MAX_STATED_SECONDS), SEEDS)
def test_nobody_calls_before_the_stated_time(kind: str, attempt: int, stated: float, seed: int) -> None:
    assert stated <= delay_seconds(kind, attempt, stated, seed) <= stated * 1.5 + 1  # type: ignore[arg-type]


@given(KINDS, st.integers(-1, 10_000), SEEDS)
def test_delays_are_positive_bounded_and_repeatable(kind: str, attempt: int, seed: int) -> None:
    delay = delay_seconds(kind, attempt, None, seed)  # type: ignore[arg-type]
    assert 0.25 <= delay <= 60
    assert delay == delay_seconds(kind, attempt, None, seed)  # type: ignore[arg-type]


def test_delays_grow() -> None:
    assert delay_seconds("transient", 1, None, 7) <= 0.5
    assert delay_seconds("transient", 5, None, 7) >= 4


@pytest.mark.parametrize("kind", ["quota", "auth", "not_found", "too_long", "rejected"])
def test_what_cannot_succeed_is_given_up(kind: str) -> None:
    assert delay_seconds(kind, 1, 1.0, 0) == math.inf  # type: ignore[arg-type]


def test_a_stated_time_beyond_an_hour_is_given_up() -> None:
    assert delay_seconds("rate_limited", 1, 3_601.0, 0) == math.inf
    assert delay_seconds("rate_limited", 1, 3_600.0, 0) < math.inf


def test_delays_of_many_seeds_are_spread() -> None:
    delays = sorted(delay_seconds("rate_limited", 1, 3.0, seed) for seed in range(200))
    tenths = [sum(1 for delay in delays if low <= delay - 3 < low + 0.15) for low in (n * 0.15 for n in range(10))]
    assert min(tenths) >= 8
    assert len(set(delays)) == 200


def test_after_a_refusal_nobody_calls_before_the_time_and_wake_ups_are_spread() -> None:
    gate = RateGate()
    assert gate.wait_seconds(100.0, 1) == 0
    gate.refused(100.0, 3.0)
    waits = [gate.wait_seconds(101.0, seed) for seed in range(200)]
    assert min(waits) >= 2.0
    assert max(waits) <= 2.0 + 1.5
    assert max(waits) - min(waits) > 1.2
    assert gate.is_closed(102.9)
    assert gate.wait_seconds(103.0, 5) == 0


def test_a_later_stated_time_extends_the_closing_and_an_earlier_one_does_not_shorten_it() -> None:
    gate = RateGate()
    gate.refused(0.0, 10.0)
    gate.refused(1.0, 2.0)
    assert gate.is_closed(9.9)
    gate.refused(5.0, 30.0)
    assert gate.is_closed(34.9)


def test_refusals_without_a_time_close_for_longer_each_time_but_a_burst_counts_once() -> None:
    gate = RateGate()
    for _ in range(200):
        gate.refused(0.0, None)
    assert gate.wait_seconds(1.0, 0) == 0
    gate.refused(1.0, None)
    assert gate.is_closed(2.9)
    assert not gate.is_closed(3.0)
    gate.succeeded()
    gate.refused(10.0, None)
    assert not gate.is_closed(11.0)


def test_the_gate_never_closes_for_more_than_an_hour() -> None:
    gate = RateGate()
    gate.refused(0.0, 1e9)
    assert not gate.is_closed(MAX_STATED_SECONDS)

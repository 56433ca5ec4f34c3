"""When a failed model call may be tried again: pure rules, with the time and the chance passed in.

Theory of operation
-------------------
A failure is first *classified*: from its HTTP status, the server's own name of the error and its words, to one of the
kinds in ``errors.ModelErrorKind``. Only three kinds are worth another try. The delay before it grows twofold from half
a second to a minute, half of it spread by a number derived from a seed, so that agents which failed together do not
come back together; where the server stated a time, the spread begins at that time and never before.

A server that limits the rate limits it for everyone who shares the key. So all agents below one model share one
``RateGate``: a refusal closes it, and whoever wants to call asks it how long to wait. It knows no clock and wakes
nobody: ``wait_seconds`` is asked again after each wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..errors import TRANSIENT_KINDS, ModelErrorKind

__all__ = ["KNOWN_ERRORS", "MAX_STATED_SECONDS", "RateGate", "classify", "delay_seconds", "retry_after_seconds"]

MAX_STATED_SECONDS = 3_600.0
"""A server that asks for a longer wait is not waited for."""

_FIRST_SECONDS = 0.5
_MAX_SECONDS = 60.0
_MASK = (1 << 64) - 1

_BY_STATUS: dict[int, ModelErrorKind] = {
    400: "rejected",
    401: "auth",
    402: "quota",
    403: "auth",
    404: "not_found",
    408: "transient",
    409: "transient",
    413: "too_long",
    422: "rejected",
    425: "transient",
    429: "rate_limited",
    529: "rate_limited",
}

_BY_NAME: dict[str, ModelErrorKind] = {
    # https://docs.anthropic.com/en/api/errors
    "overloaded_error": "rate_limited",
    "rate_limit_error": "rate_limited",
    "api_error": "transient",
    "timeout_error": "transient",
    "authentication_error": "auth",
    "permission_error": "auth",
    "billing_error": "quota",
    "not_found_error": "not_found",
    "request_too_large": "too_long",
    # https://platform.openai.com/docs/guides/error-codes
    "insufficient_quota": "quota",
    "billing_hard_limit_reached": "quota",
    "rate_limit_exceeded": "rate_limited",
    "server_error": "transient",
    "invalid_api_key": "auth",
    "model_not_found": "not_found",
    "context_length_exceeded": "too_long",
}

KNOWN_ERRORS = frozenset(_BY_NAME)
"""Names of errors, as servers give them, that say what kind they are."""

_QUOTA_WORDS = ("insufficient quota", "insufficient_quota", "exceeded your current quota", "credit balance is too low")
_LONG_WORDS = (
    "prompt is too long",
    "context length",
    "context_length",
    "context window",
    "too many tokens",
    "maximum context",
    "exceed context limit",
)


def classify(status: int, name: str, message: str) -> ModelErrorKind:
    """Return the kind of a failure.

    ``status`` is the HTTP status, or 0 for an error inside a stream; ``name`` is the server's own type or code of the
    error and ``message`` its words, both empty where it gave none.
    """
    words = message.lower()
    if any(phrase in words for phrase in _QUOTA_WORDS) or _BY_NAME.get(name) == "quota":
        return "quota"
    if status in (0, 400, 413, 422) and any(phrase in words for phrase in _LONG_WORDS):
        return "too_long"
    if name in _BY_NAME:
        return _BY_NAME[name]
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status == 0 and name != "invalid_request_error":
        return "transient"
    return "transient" if status >= 500 else "rejected"


def retry_after_seconds(headers: Mapping[str, str], now_unix: float) -> float | None:
    """Return the wait the server stated, in seconds from now, or None where it stated none that can be read.

    ``retry-after-ms`` goes before ``retry-after``, which is a number of seconds or an HTTP date (RFC 9110, section
    10.2.3). A date is compared with the server's own ``date`` where it gave one, else with ``now_unix``.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    stated = headers.get("retry-after")
    seconds = _number(stated)
    if seconds is not None:
        return seconds
    when = _date(stated)
    if when is None:
        return None
    now = _date(headers.get("date"))
    return max(0.0, when - (now_unix if now is None else now))


def delay_seconds(kind: ModelErrorKind, attempt: int, retry_after_seconds: float | None, seed: int) -> float:
    """Return how long to wait before the next try; ``math.inf`` means: give up.

    ``attempt`` is the number of tries that failed so far, from 1. The delay is never shorter than
    ``retry_after_seconds``. Equal arguments give equal delays.
    """
    if kind not in TRANSIENT_KINDS:
        return math.inf
    part = _spread(seed, attempt)
    if retry_after_seconds is not None:
        if retry_after_seconds > MAX_STATED_SECONDS:
            return math.inf
        return retry_after_seconds + part * max(1.0, retry_after_seconds / 2)
    full: float = min(_MAX_SECONDS, _FIRST_SECONDS * 2.0 ** max(0, min(attempt - 1, 20)))
    return full * (0.5 + 0.5 * part)


class RateGate:
    """Holds back everyone who calls one model after its server refused a call for the rate.

    Times are seconds of any one clock that never goes back.
    """

    __slots__ = ("_level", "_until", "_window")

    def __init__(self) -> None:
        self._until = -math.inf
        self._window = 0.0
        self._level = 0

    def refused(self, now: float, retry_after_seconds: float | None) -> None:
        """A call was refused: close until the stated time, or for a while that grows with each closing."""
        if retry_after_seconds is None:
            if now < self._until:
                return  # calls that were in flight together are one refusal
            retry_after_seconds = min(_MAX_SECONDS, 2.0**self._level)
            self._level = min(self._level + 1, 10)
        until = now + min(retry_after_seconds, MAX_STATED_SECONDS)
        if until > self._until:
            self._until = until
            self._window = max(1.0, min(retry_after_seconds, _MAX_SECONDS) / 2)

    def succeeded(self) -> None:
        """A call went through: the next closing without a stated time is a short one again."""
        self._level = 0

    def wait_seconds(self, now: float, seed: int) -> float:
        """Return how long the caller with this seed must wait before it asks again; 0.0 means: call now."""
        if now >= self._until:
            return 0.0
        return self._until - now + _spread(seed, 0) * self._window

    def is_closed(self, now: float) -> bool:
        """Whether callers are held back at ``now``."""
        return now < self._until


def _spread(seed: int, attempt: int) -> float:
    """A number in [0, 1) that looks random (the finaliser of SplitMix64)."""
    bits = (seed * 0x9E3779B97F4A7C15 + attempt * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((bits ^ (bits >> 31)) >> 11) / (1 << 53)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return max(0.0, value) if math.isfinite(value) else None


def _date(text: str | None) -> float | None:
    if not text:
        return None
    from email.utils import parsedate_to_datetime  # whose package is a slow import, and seldom needed

    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None

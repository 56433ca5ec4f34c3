"""Values that people give, held to what they have to be: told at once, with their name, and never half way through."""

from __future__ import annotations

from typing import Any, TypeVar

from .errors import UsageError

__all__ = ["MOST", "a_text", "choice", "each_of", "real", "whole"]

MOST = 2**63 - 1
"""The greatest number that a store can hold."""
_MAX_SHOWN = 60
_T = TypeVar("_T")


def whole(value: Any, what: str, least: int = 0) -> int:
    """Return a whole number; one that was written as ``1e6`` is one too.

    Raises:
        UsageError: it is none, or less than ``least``, or more than a store can hold.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{what} is {_shown(value)}; give a whole number")
    if value < least:
        raise UsageError(f"{what} is {_shown(value)}; give a whole number, {least} or more")
    if value > MOST:
        raise UsageError(f"{what} is larger than any number that a store can hold; give a smaller one")
    return value


def real(value: Any, what: str) -> float:
    """Return a number that is not negative; it may be infinite.

    Raises:
        UsageError: it is none, or negative.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UsageError(f"{what} is {_shown(value)}; give a number")
    try:
        number = float(value)
    except OverflowError:
        raise UsageError(f"{what} is larger than any number of its kind; give a smaller one") from None
    if not number >= 0:
        raise UsageError(f"{what} is {number:g}; give a number that is not negative")
    return number


def a_text(value: Any, what: str) -> str:
    """Return a text.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(value, str):
        raise UsageError(f"{what} is of the type {type(value).__name__}; give a text")
    return value


def each_of(value: _T, what: str) -> _T:
    """Return what is to be gone through, which a text would be letter by letter.

    Raises:
        UsageError: it is a text, or nothing to be gone through.
    """
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        raise UsageError(f"{what} is {_shown(value)}; give a list")
    return value


def choice(value: Any, what: str, choices: tuple[str, ...]) -> str:
    """Return one of ``choices``.

    Raises:
        UsageError: it is none of them.
    """
    if value not in choices:
        raise UsageError(f"{what} is {_shown(value)}; there are {', '.join(choices)}")
    return str(value)


def _shown(value: Any) -> str:
    try:
        shown = repr(value)
    except Exception:  # noqa: BLE001 - a number of thousands of digits, or an object that cannot be shown
        shown = f"of the type {type(value).__name__}"
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."

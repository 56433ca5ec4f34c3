"""Checks of JSON fields that every wire format shares."""

from __future__ import annotations

from typing import Any, Literal

from .conversation import Said, WireRefusal

__all__ = ["joined", "nonempty_list", "only", "refuse_unless"]


def refuse_unless(holds: object, message: str) -> None:
    """Refuse the request with ``message`` unless ``holds``."""
    if not holds:
        raise WireRefusal(message)


def only(value: dict[str, Any], allowed: frozenset[str], where: str) -> None:
    """Refuse fields that the format does not know."""
    for name in value:
        refuse_unless(name in allowed, f"{where}{name}: Extra inputs are not permitted")


def nonempty_list(value: Any, where: str) -> list[Any]:
    """Return ``value``, which must be a list with something in it."""
    refuse_unless(isinstance(value, list), f"{where}: Input should be a valid list")
    refuse_unless(value, f"{where}: List should have at least 1 item")
    return list(value)


def joined(said: list[Said], role: Literal["user", "assistant"], more: Said) -> None:
    """Append ``more``, or join it to the last one where that is of the same role."""
    if not said or said[-1].role != role:
        said.append(more)
        return
    last = said[-1]
    said[-1] = Said(
        role=role,
        texts=last.texts + more.texts,
        calls=last.calls + more.calls,
        results=last.results + more.results,
        thoughts=last.thoughts + more.thoughts,
    )

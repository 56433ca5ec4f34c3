"""A number and what it counts, as people write it."""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return ``1 record`` or ``2,000 records``; ``plural`` is for nouns that take more than an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"

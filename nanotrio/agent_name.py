"""Names of agents: ``STEM.N``, where people choose the stem, and N is the agent's number in its store."""

from __future__ import annotations

__all__ = ["name_of", "number_of", "stem_of"]

_MAX_DIGITS = 18
"""Of a number that fits the 64 bits of a store."""


def name_of(stem: str, agent: int) -> str:
    """Return the name of an agent."""
    return f"{stem}.{agent}"


def stem_of(name: str) -> str:
    """Return what comes before the number; empty where there is none."""
    return name.rpartition(".")[0]


def number_of(address: int | str) -> int:
    """Return the number that an address has or ends with; 0, which no agent has, where it does so with none."""
    if isinstance(address, int):
        return address if 0 < address < 10**_MAX_DIGITS else 0
    number = str(address).rpartition(".")[2]
    return int(number) if number.isdecimal() and len(number) <= _MAX_DIGITS else 0

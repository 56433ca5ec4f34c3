"""List prices, read on first use from ``prices.json``, which ``docs/make_prices.py`` writes with its date."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

import msgspec

from .model import Price

__all__ = ["ModelFacts", "find_facts", "find_price", "known_models", "price_date"]


class ModelFacts(msgspec.Struct, frozen=True, gc=False):
    """What is known of a model: its price, and its context window in tokens, 0 where that is unknown."""

    price: Price
    window_tokens: int


class _Document(msgspec.Struct):
    date: str
    source: str
    models: dict[str, dict[str, tuple[int, int, int, int, int]]]


# A dated or moving name of a model whose price does not depend on the date.
_SUFFIX = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest)$")

_SECTIONS = {"anthropic": "anthropic", "openai": "openai", "openai-chat": "openai"}


@cache
def _document() -> _Document:
    data = resources.files("nanotrio.models").joinpath("prices.json").read_bytes()
    return msgspec.json.decode(data, type=_Document)


def find_facts(name: str) -> ModelFacts | None:
    """Return what is known of the model with this full name, ``anthropic/claude-sonnet-4-5``.

    The exact name is looked up first, then the name without a date or ``-latest`` at its end. None means unknown,
    never free. The first call reads the file.
    """
    provider, _, model = name.partition("/")
    table = _document().models.get(_SECTIONS.get(provider, ""), {})
    row = table.get(model) or table.get(_SUFFIX.sub("", model))
    return None if row is None else ModelFacts(Price(*row[:4]), row[4])


def find_price(name: str) -> Price | None:
    """Return the list price of the model with this full name, None where it is unknown."""
    facts = find_facts(name)
    return None if facts is None else facts.price


def known_models() -> list[str]:
    """Return the full names of all models with a known price, for near misses and completion."""
    models = _document().models
    return [f"{provider}/{model}" for provider, section in _SECTIONS.items() for model in models.get(section, ())]


def price_date() -> str:
    """Return the date of the prices, ``2026-11-29``."""
    return _document().date

from __future__ import annotations

from datetime import date
from importlib import resources

import pytest

from nanotrio.messages import Usage
from nanotrio.models import Price, find_facts, find_price, known_models, price_date


@pytest.mark.parametrize(
    "name",
    [
        "anthropic/claude-sonnet-4-5",
        "anthropic/claude-sonnet-4-5-20250929",
        "anthropic/claude-sonnet-4-5-latest",
        "anthropic/claude-sonnet-4-5@20250929",
    ],
)
def test_a_price_is_found_by_name_and_by_dated_name(name: str) -> None:
    assert find_price(name) == Price(3_000, 15_000, 300, 3_750)


def test_an_exact_dated_name_goes_before_the_undated() -> None:
    assert find_price("openai-chat/gpt-4o-2024-05-13") == Price(5_000, 15_000, 5_000, 5_000)
    assert (
        find_price("openai-chat/gpt-4o-2024-08-06") == find_price("openai/gpt-4o") == Price(2_500, 10_000, 1_250, 2_500)
    )


@pytest.mark.parametrize(
    "name", ["anthropic/claude-nine", "openai-chat/llama3", "scripted/echo", "gpt-4o", "", "/", "x/"]
)
def test_an_unknown_price_is_none(name: str) -> None:
    assert find_price(name) is None


def test_costs_are_exact() -> None:
    price = find_price("anthropic/claude-sonnet-4-5")
    assert price is not None
    assert price.cost_nano(Usage(1, 10, 100, 1_000)) == 3_000 + 150_000 + 30_000 + 3_750_000


def test_the_window_is_known() -> None:
    facts = find_facts("anthropic/claude-sonnet-4-5")
    assert facts is not None
    assert facts.window_tokens == 200_000


def test_the_file_is_dated_small_and_all_of_it_is_usable() -> None:
    date.fromisoformat(price_date())
    assert len(resources.files("nanotrio.models").joinpath("prices.json").read_bytes()) < 20_000
    for name in known_models():
        price = find_price(name)
        assert price is not None
        assert min(price.input, price.output, price.cache_read, price.cache_write) >= 0

"""A number and its noun."""

from __future__ import annotations

import pytest

from nanotrio.counted import counted


@pytest.mark.parametrize(
    ("count", "nouns", "written"),
    [
        (1, ("record",), "1 record"),
        (0, ("record",), "0 records"),
        (2_000, ("record",), "2,000 records"),
        (1, ("reply", "replies"), "1 reply"),
        (2, ("reply", "replies"), "2 replies"),
    ],
)
def test_one_is_one_and_all_others_are_many(count: int, nouns: tuple[str, ...], written: str) -> None:
    assert counted(count, *nouns) == written

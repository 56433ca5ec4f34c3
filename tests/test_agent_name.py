"""Which number an address ends with."""

from __future__ import annotations

import pytest

from nanotrio.agent_name import name_of, number_of, stem_of


@pytest.mark.parametrize(
    ("address", "number"),
    [
        (7, 7), ("7", 7), ("kid.7", 7), ("a.b.7", 7), ("kid", 0), ("kid.", 0), ("", 0), ("kid.-7", 0), ("kid.7 ", 0),
        ("9" * 18, 10**18 - 1), ("9" * 19, 0), ("kid.1e3", 0), ("kid.²", 0),
    ],
)  # fmt: skip
def test_an_address_has_the_number_that_ends_it(address: int | str, number: int) -> None:
    assert number_of(address) == number


def test_a_name_is_a_stem_and_a_number() -> None:
    name = name_of("a.b", 7)
    assert (name, stem_of(name), number_of(name)) == ("a.b.7", "a.b", 7)
    assert stem_of("kid") == ""

"""The pieces that records are written with are the bytes of cbor2, at every bound of their sizes."""

from __future__ import annotations

import cbor2
import pytest

from nanotrio.cbor import ARRAY_HEADS, BOOLEANS, COUNTS, NULL, TEXT_HEADS, WORDS, integer, text

BOUNDS = (0, 1, 23, 24, 255, 256, 4_095, 4_096, 65_535, 65_536)


@pytest.mark.parametrize("number", [*BOUNDS, 2**32 - 1, 2**32, 2**63, 2**64, -1, -300])
def test_a_whole_number_is_written_as_cbor2_does(number: int) -> None:
    assert integer(number) == COUNTS[number] == COUNTS[number] == cbor2.dumps(number)


@pytest.mark.parametrize("size", BOUNDS)
def test_texts_and_arrays_begin_as_cbor2_has_it(size: int) -> None:
    said = "é" * (size // 2) + "x" * (size % 2)
    assert text(said) == WORDS[said] == WORDS[said] == TEXT_HEADS[size] + said.encode() == cbor2.dumps(said)
    assert ARRAY_HEADS[size] + b"\xf6" * size == cbor2.dumps([None] * size)


def test_constants_are_those_of_cbor2() -> None:
    assert (BOOLEANS[False], BOOLEANS[True], NULL) == tuple(map(cbor2.dumps, (False, True, None)))


def test_a_text_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        WORDS["\ud800"]


def test_many_different_words_do_not_stay() -> None:
    for number in range(10_000):
        assert WORDS[f"word {number}"] == cbor2.dumps(f"word {number}")
        assert COUNTS[number] == cbor2.dumps(number)
    assert len(WORDS) <= 4_096
    assert len(COUNTS) <= 4_096

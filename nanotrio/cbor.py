"""The part of CBOR (RFC 8949) that records are written with, for what is written most.

The bytes are those of ``cbor2.dumps``, which spends most of its time finding out what a value is; whoever writes a
Struct knows that of each field. A record is a list of pieces that are joined once; a text is its ``TEXT_HEADS`` by size
and its bytes.
"""

from __future__ import annotations

import cbor2

__all__ = ["ARRAY_HEADS", "BOOLEANS", "COUNTS", "NULL", "TEXT_HEADS", "WORDS", "integer", "text"]

BOOLEANS = (b"\xf4", b"\xf5")
NULL = b"\xf6"

_FEW = 4_096
"""So many of a kind are kept once they were made."""

_INTEGERS = tuple([cbor2.dumps(number) for number in range(256)])


def integer(number: int) -> bytes:
    """Return a whole number."""
    if 0 <= number < 0x100:
        return _INTEGERS[number]
    if 0 <= number < 0x1_0000:
        return b"\x19" + number.to_bytes(2, "big")
    if 0 <= number < 0x1_0000_0000:
        return b"\x1a" + number.to_bytes(4, "big")
    return cbor2.dumps(number)


def text(value: str) -> bytes:
    """Return a text.

    Raises:
        UnicodeEncodeError: it holds a lone surrogate.
    """
    data = value.encode()
    return TEXT_HEADS[len(data)] + data


class _Numbers(dict[int, bytes]):
    """Whole numbers that are often small; or sizes, as texts and arrays begin: ``kind`` is their three highest bits."""

    __slots__ = ("_kind",)

    def __init__(self, kind: int) -> None:
        self._kind = kind

    def __missing__(self, number: int) -> bytes:
        made = integer(number)
        made = bytes((made[0] | self._kind,)) + made[1:]
        if 0 <= number < _FEW:
            self[number] = made
        return made


class _Words(dict[str, bytes]):
    """Texts of which there are few, as names of models, tools and states."""

    __slots__ = ()

    def __missing__(self, value: str) -> bytes:
        made = text(value)
        if len(self) < _FEW and len(made) < 0x100:
            self[value] = made
        return made


COUNTS, TEXT_HEADS, ARRAY_HEADS = _Numbers(0), _Numbers(0x60), _Numbers(0x80)
WORDS = _Words()

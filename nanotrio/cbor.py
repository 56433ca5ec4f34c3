"""The part of CBOR (RFC 8949) that records are written with, for what is written most.

The bytes are those of ``cbor2.dumps``, which spends most of its time finding out what a value is; whoever writes a
Struct knows that of each field.
"""

from __future__ import annotations

import cbor2

__all__ = ["FALSE", "NULL", "TRUE", "array", "integer", "text"]

FALSE, TRUE, NULL = b"\xf4", b"\xf5", b"\xf6"

_INTEGERS = tuple([cbor2.dumps(number) for number in range(256)])
_TEXT_HEADS = tuple([cbor2.dumps("x" * size)[:-size] if size else b"\x60" for size in range(256)])
_ARRAY_HEADS = tuple([bytes((0x80 + size,)) for size in range(24)])


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
    size = len(data)
    return _TEXT_HEADS[size] + data if size < 0x100 else cbor2.dumps(value)


def array(items: list[bytes]) -> bytes:
    """Return an array of what was written already."""
    size = len(items)
    if size < len(_ARRAY_HEADS):
        return _ARRAY_HEADS[size] + b"".join(items)
    head = integer(size)  # that of an array differs in the kind, the three highest bits of the first byte
    return bytes((head[0] | 0x80,)) + head[1:] + b"".join(items)

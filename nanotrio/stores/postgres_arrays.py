"""Arrays as Postgres takes them in its protocol's binary form, one a column.

The form is that of ``array_recv`` in PostgreSQL's source: dimensions, whether there are nulls, the type of the
elements, then length and lower bound of the one dimension, and each element with its length before it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["BOOLS", "BYTEA", "BYTEAS", "INT8", "INT8S", "TEXTS", "blobs", "booleans", "int8", "integers", "texts"]

# Types by their numbers in pg_type, which are fixed.
INT8, BYTEA, INT8S, BOOLS, BYTEAS, TEXTS = 20, 17, 1016, 1000, 1001, 1009
_BOOL: Final = 16
_TEXT: Final = 25
_TRUE: Final = b"\0\0\0\1\1"
_FALSE: Final = b"\0\0\0\1\0"
_NULL: Final = b"\xff\xff\xff\xff"

int8 = struct.Struct(">q").pack
_head_of_array = struct.Struct(">iiIii").pack
_length = struct.Struct(">i").pack
_element = struct.Struct(">iq").pack


def integers(values: Sequence[int | None]) -> bytes:
    """An array of ``int8``."""
    if None in values:
        parts = [_NULL if value is None else _element(8, value) for value in values]
        return _array(INT8, b"".join(parts), len(values), has_null=True)
    flat: list[int | None] = [8] * (2 * len(values))
    flat[1::2] = values
    return _array(INT8, struct.pack(f">{'iq' * len(values)}", *flat), len(values))


def booleans(values: Sequence[bool]) -> bytes:
    """An array of ``bool``."""
    return _array(_BOOL, b"".join([_TRUE if value else _FALSE for value in values]), len(values))


def blobs(values: Iterable[bytes]) -> bytes:
    """An array of ``bytea``."""
    parts: list[bytes] = []
    for value in values:
        parts += (_length(len(value)), value)
    return _array(BYTEA, b"".join(parts), len(parts) // 2)


def texts(values: Sequence[str | None]) -> bytes:
    """An array of ``text`` in UTF-8; what UTF-8 cannot hold becomes a question mark."""
    parts: list[bytes] = []
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            encoded = value.encode("utf-8", "replace")
            parts += (_length(len(encoded)), encoded)
    return _array(_TEXT, b"".join(parts), len(values), has_null=None in values)


def _array(kind: int, elements: bytes, count: int, *, has_null: bool = False) -> bytes:
    return _head_of_array(1, has_null, kind, count, 1) + elements

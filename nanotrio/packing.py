"""A session, or its messages, as one piece of bytes.

MessagePack by msgspec is made and read in a tenth of the time that CBOR takes, and the CBOR of a large session held up
the loop. What msgspec cannot say in it, numbers beyond 64 bits, is said in CBOR, as former versions said all.
"""

from __future__ import annotations

from typing import TypeVar

import cbor2
import msgspec

from .messages import Message

__all__ = ["decode_state", "encode_state", "pack_messages", "unpack_messages"]

_State = TypeVar("_State", bound=msgspec.Struct)

_CBOR_MAP = 0xA0
"""The upper three bits of the first byte of a map in CBOR; in MessagePack that byte is 0x80 to 0x8F, 0xDE or 0xDF."""

_encode = msgspec.msgpack.Encoder().encode
pack_messages = _encode
unpack_messages = msgspec.msgpack.Decoder(list[Message]).decode


def encode_state(state: msgspec.Struct) -> bytes:
    """Return ``state`` as a map of its fields."""
    try:
        return _encode(state)
    except OverflowError:  # such as a budget that nobody will ever reach
        encoded: bytes = cbor2.dumps(msgspec.to_builtins(state, builtin_types=(bytes,)))
        return encoded


def decode_state(encoded: bytes, kind: type[_State]) -> _State:
    """Return what ``encode_state``, of this version or a former one, made of a ``kind``."""
    if encoded[0] & 0xE0 == _CBOR_MAP:
        return msgspec.convert(cbor2.loads(encoded), kind)
    return msgspec.msgpack.decode(encoded, type=kind)

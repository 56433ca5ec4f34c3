"""The form that facts have in a record: CBOR, written field by field where a kind is written for every agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import cbor2
import msgspec

from . import cbor
from .cbor import integer, text
from .errors import RecordError
from .messages import Text, ToolCall, Usage, clean_text
from .records import (
    ChildEnded,
    Fact,
    MailArrived,
    Replied,
    Settled,
    Spawned,
    Submitted,
    ToolEnded,
    TurnEnded,
    TurnStarted,
)

__all__ = ["birth_encoder", "decode_facts", "encode_facts"]

_KINDS = frozenset(kind.__struct_config__.tag for kind in Fact.__args__)


class _Facts(msgspec.Struct, array_like=True):
    """A carrier: msgspec keeps what it learns of a Struct, and learns a bare union anew at each call."""

    facts: tuple[Fact, ...]


def encode_facts(facts: Iterable[Fact]) -> bytes:
    """Return the stored form of ``facts``; what slipped in uncleaned is cleaned, so one bad text holds up nobody."""
    facts = tuple(facts)
    try:
        return cbor.array([_WRITERS.get(type(fact), _write)(fact) for fact in facts])
    except (AttributeError, TypeError, UnicodeEncodeError):  # a lone surrogate, or a value of another type
        return cbor2.dumps(_cleaned(msgspec.to_builtins(facts, builtin_types=(bytes,))))


def _write(value: Any) -> bytes:
    return cbor2.dumps(msgspec.to_builtins(value, builtin_types=(bytes,)))


def _write_spawned(fact: Spawned) -> bytes:
    start = b"\x87\x67spawned" + integer(fact.parent) + integer(fact.root) + integer(fact.depth)
    return start + text(fact.name) + integer(fact.profile) + text(fact.uuid)


def _write_mail(fact: MailArrived) -> bytes:
    return b"\x85\x64mail" + text(fact.kind) + integer(fact.sender) + text(fact.text) + text(fact.sender_name)


def _write_turn(fact: TurnStarted) -> bytes:
    return b"\x83\x64turn" + integer(fact.turn) + integer(fact.read_seq)


def _write_replied(fact: Replied) -> bytes:
    parts = cbor.array([_WRITERS.get(type(part), _write)(part) for part in fact.parts])
    cost = cbor.NULL if fact.cost_nano is None else integer(fact.cost_nano)
    return b"\x86\x67replied" + text(fact.model) + parts + text(fact.stop) + _write_usage(fact.usage) + cost


def _write_text(part: Text) -> bytes:
    return b"\x82\x64text" + text(part.text)


def _write_call(part: ToolCall) -> bytes:
    return b"\x85\x64call" + text(part.id) + text(part.name) + text(part.arguments) + text(part.problem)


def _write_usage(usage: Usage) -> bytes:
    head = b"\x84" + integer(usage.input) + integer(usage.output)
    return head + integer(usage.cache_read) + integer(usage.cache_write)


def _write_ended(fact: ToolEnded) -> bytes:
    is_error = cbor.TRUE if fact.is_error else cbor.FALSE
    return b"\x85\x65ended" + text(fact.call_id) + text(fact.content) + is_error + text(fact.mistake)


def _write_submitted(fact: Submitted) -> bytes:
    return b"\x82\x69submitted" + text(fact.result)


def _write_turn_ended(fact: TurnEnded) -> bytes:
    survivors = cbor.array([text(each) for each in fact.survivors])
    start = b"\x86\x6aturn_ended" + text(fact.status) + text(fact.reason)
    return start + text(fact.result) + text(fact.last_text) + survivors


def _write_settled(_: Settled) -> bytes:
    return b"\x81\x67settled"


def _write_child(fact: ChildEnded) -> bytes:
    start = b"\x8d\x65child" + integer(fact.child) + text(fact.name) + integer(fact.turn) + text(fact.status)
    told = text(fact.reason) + text(fact.result) + text(fact.last_text)
    costs = _write_usage(fact.usage) + integer(fact.cost_nano) + integer(fact.uncertain_nano) + integer(fact.unpriced)
    return start + told + costs + (cbor.TRUE if fact.is_told else cbor.FALSE)


_WRITERS: dict[type, Callable[[Any], bytes]] = {
    Spawned: _write_spawned,
    MailArrived: _write_mail,
    TurnStarted: _write_turn,
    Replied: _write_replied,
    Text: _write_text,
    ToolCall: _write_call,
    ToolEnded: _write_ended,
    Submitted: _write_submitted,
    TurnEnded: _write_turn_ended,
    Settled: _write_settled,
    ChildEnded: _write_child,
}
"""For the facts that every agent has; all others are written by ``_write``, which gives the same bytes."""


def birth_encoder(spawned: Spawned) -> Callable[[str, str], bytes]:
    """Return what encodes an agent's first record, ``spawned`` and a prompt of its parent's, for many that are alike.

    It takes the agent's name and the prompt, which is clean text; it gives what ``encode_facts`` gives, at a tenth of
    the cost.
    """
    mail = MailArrived("prompt", spawned.parent, "")
    start = b"\x82\x87" + b"".join(map(cbor2.dumps, ("spawned", spawned.parent, spawned.root, spawned.depth)))
    middle = cbor2.dumps(spawned.profile) + cbor2.dumps(spawned.uuid)
    middle += b"\x85" + b"".join(map(cbor2.dumps, ("mail", mail.kind, mail.sender)))

    def encode(name: str, prompt: str) -> bytes:
        return start + text(name) + middle + text(prompt) + b"\x60"

    return encode


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, (list, tuple)):
        return [_cleaned(each) for each in value]
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(each) for key, each in value.items()}
    return value


def decode_facts(data: bytes) -> tuple[Fact, ...]:
    """Return the facts in ``data``; extra fields at the end of one are passed over.

    Raises:
        RecordError: the bytes are no facts, or hold a kind that this version does not know.
    """
    try:
        rows = cbor2.loads(data)
    except (cbor2.CBORError, ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        raise RecordError(f"a record of {len(data)} bytes is not CBOR: {error}") from error
    try:
        return msgspec.convert((rows,), _Facts).facts
    except msgspec.ValidationError as error:
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, list) and row and row[0] not in _KINDS:
                raise RecordError(
                    f"a record holds a fact of the kind {row[0]!r}, which this version does not know; "
                    "open the store with the nanotrio that wrote it"
                ) from error
        raise RecordError(
            f"a record has not the form of facts ({error}); open the store with the nanotrio that wrote it"
        ) from error

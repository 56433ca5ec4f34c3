"""The form that facts have in a record: CBOR, written field by field where a kind is written for every agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cbor2
import msgspec

from .cbor import ARRAY_HEADS, BOOLEANS, COUNTS, NULL, TEXT_HEADS, WORDS, integer, text
from .counted import counted
from .errors import RecordError, StoreDamagedError
from .messages import Text, ToolCall, Usage, clean_text
from .records import (
    ChildEnded,
    Fact,
    MailArrived,
    Profile,
    Replied,
    Settled,
    Spawned,
    Submitted,
    ToolEnded,
    TurnEnded,
    TurnStarted,
)

__all__ = ["birth_encoder", "decode_facts", "decode_profile", "encode_facts"]

_UNREADABLE = (cbor2.CBORError, ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""What cbor2, and what makes values of what it reads, raise of bytes that are something else."""
_KINDS = frozenset(kind.__struct_config__.tag for kind in Fact.__args__)


class _Facts(msgspec.Struct, array_like=True):
    """A carrier: msgspec keeps what it learns of a Struct, and learns a bare union anew at each call."""

    facts: tuple[Fact, ...]


def encode_facts(facts: Sequence[Fact]) -> bytes:
    """Return the stored form of ``facts``; what slipped in uncleaned is cleaned, so one bad text holds up nobody."""
    try:
        pieces = [ARRAY_HEADS[len(facts)]]
        for fact in facts:
            _WRITERS.get(type(fact), _write)(pieces, fact)
        return b"".join(pieces)
    except (AttributeError, TypeError, UnicodeEncodeError):  # a lone surrogate, or a value of another type
        return cbor2.dumps(_cleaned(msgspec.to_builtins(tuple(facts), builtin_types=(bytes,))))


def _write(pieces: list[bytes], value: Any) -> None:
    pieces.append(cbor2.dumps(msgspec.to_builtins(value, builtin_types=(bytes,))))


def _write_spawned(pieces: list[bytes], fact: Spawned) -> None:
    pieces += (b"\x87\x67spawned", integer(fact.parent), integer(fact.root), integer(fact.depth), text(fact.name))
    pieces += (integer(fact.profile), text(fact.uuid))


def _write_mail(pieces: list[bytes], fact: MailArrived) -> None:
    said, name = fact.text.encode(), fact.sender_name.encode()
    pieces += (b"\x85\x64mail", WORDS[fact.kind], integer(fact.sender), TEXT_HEADS[len(said)], said)
    pieces += (TEXT_HEADS[len(name)], name)


def _write_turn(pieces: list[bytes], fact: TurnStarted) -> None:
    pieces += (b"\x83\x64turn", COUNTS[fact.turn], integer(fact.read_seq))


def _write_replied(pieces: list[bytes], fact: Replied) -> None:
    pieces += (b"\x86\x67replied", WORDS[fact.model], ARRAY_HEADS[len(fact.parts)])
    for part in fact.parts:
        _WRITERS.get(type(part), _write)(pieces, part)
    pieces.append(WORDS[fact.stop])
    _write_usage(pieces, fact.usage)
    pieces.append(NULL if fact.cost_nano is None else COUNTS[fact.cost_nano])


def _write_text(pieces: list[bytes], part: Text) -> None:
    said = part.text.encode()
    pieces += (b"\x82\x64text", TEXT_HEADS[len(said)], said)


def _write_call(pieces: list[bytes], part: ToolCall) -> None:
    call_id, arguments = part.id.encode(), part.arguments.encode()
    pieces += (b"\x85\x64call", TEXT_HEADS[len(call_id)], call_id, WORDS[part.name])
    pieces += (TEXT_HEADS[len(arguments)], arguments, WORDS[part.problem])


def _write_usage(pieces: list[bytes], usage: Usage) -> None:
    counts = COUNTS
    pieces += (b"\x84", counts[usage.input], counts[usage.output], counts[usage.cache_read], counts[usage.cache_write])


def _write_ended(pieces: list[bytes], fact: ToolEnded) -> None:
    call_id, content = fact.call_id.encode(), fact.content.encode()
    pieces += (b"\x85\x65ended", TEXT_HEADS[len(call_id)], call_id, TEXT_HEADS[len(content)], content)
    pieces += (BOOLEANS[fact.is_error], WORDS[fact.mistake])


def _write_submitted(pieces: list[bytes], fact: Submitted) -> None:
    result = fact.result.encode()
    pieces += (b"\x82\x69submitted", TEXT_HEADS[len(result)], result)


def _write_turn_ended(pieces: list[bytes], fact: TurnEnded) -> None:
    reason, result, last = fact.reason.encode(), fact.result.encode(), fact.last_text.encode()
    pieces += (b"\x86\x6aturn_ended", WORDS[fact.status], TEXT_HEADS[len(reason)], reason)
    pieces += (TEXT_HEADS[len(result)], result, TEXT_HEADS[len(last)], last, ARRAY_HEADS[len(fact.survivors)])
    pieces += [text(each) for each in fact.survivors]


def _write_settled(pieces: list[bytes], _: Settled) -> None:
    pieces.append(b"\x81\x67settled")


def _write_child(pieces: list[bytes], fact: ChildEnded) -> None:
    name, reason = fact.name.encode(), fact.reason.encode()
    result, last = fact.result.encode(), fact.last_text.encode()
    pieces += (b"\x8d\x65child", integer(fact.child), TEXT_HEADS[len(name)], name, COUNTS[fact.turn])
    pieces += (WORDS[fact.status], TEXT_HEADS[len(reason)], reason)
    pieces += (TEXT_HEADS[len(result)], result, TEXT_HEADS[len(last)], last)
    _write_usage(pieces, fact.usage)
    pieces += (COUNTS[fact.cost_nano], COUNTS[fact.uncertain_nano], COUNTS[fact.unpriced], BOOLEANS[fact.is_told])


_WRITERS: dict[type, Callable[[list[bytes], Any], None]] = {
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
    except _UNREADABLE as error:
        raise RecordError(f"a record of {counted(len(data), 'byte')} is not CBOR: {error}") from error
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


def decode_profile(seq: int, body: bytes) -> Profile:
    """Return the profile that the content in record ``seq`` is.

    Raises:
        StoreDamagedError: it is none of a form that this version reads.
    """
    try:
        return msgspec.convert(cbor2.loads(body), Profile)
    except _UNREADABLE as error:
        advice = "open the store with the nanotrio that wrote it, or move it away"
        raise StoreDamagedError(f"record {seq} is a profile of another form; {advice}") from error

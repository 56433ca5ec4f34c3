"""The lines of a JSONL store, as text.

A store is one or more *segments*, text files of JSON objects, one a line. A segment begins with a claim, which says
whose it is; a later one goes on with the counts, which say how many bytes of the former segments count. Then come
batches, each one line about the batch and one line a record::

    {"nanotrio":"log","form":1,"epoch":2,"owner":{"boot_id":"...","pid":7,"started":9,"host":"..."}}
    {"counts":{"1":48230}}
    {"batch":1,"first":118,"count":2,"bytes":171,"crc":"5d2c0f9a"}
    {"seq":118,"prev":110,"agent":4,"at_us":1764433696000000,"facts":"gYNl..."}
    {"seq":119,"prev":118,"agent":4,"at_us":1764433696000090,"facts":"gYRl..."}
    {"released":true}

``facts`` is the record's CBOR in base64, so it comes back byte for byte. ``bytes`` counts what follows the batch's
line, and ``crc`` is the CRC-32 of that line up to ``crc`` and of what follows. A batch is written in one piece, so what
a crash leaves of the last one is a beginning of it: a line without its end, or less than ``bytes``.

``PATH.heads`` holds heads in blocks of the same manner; each of its lines is the ``Head`` as a JSON array.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from zlib import crc32

import msgspec

from ..records import Head, Record
from .store import Owner

__all__ = [
    "BATCH",
    "HEADS",
    "MAX_FRONT_BYTES",
    "RELEASED",
    "Claim",
    "Counts",
    "batch_block",
    "crc_holds",
    "head_line",
    "heads_block",
    "is_beginning",
    "line_of",
    "read_head",
    "read_head_fronts",
    "read_records",
]

BATCH = re.compile(rb'(\{"batch":(\d+),"first":(\d+),"count":(\d+),"bytes":(\d+)),"crc":"([0-9a-f]{8})"\}\n')
HEADS = re.compile(
    rb'(\{"heads":(\d+),"epoch":(\d+),"log_seq":(\d+),"true_to":(\d+),"bytes":(\d+)),"crc":"([0-9a-f]{8})"\}\n'
)
"""In both the first group is what the CRC covers of the line, the last the CRC, the one before it the bytes."""
MAX_FRONT_BYTES = 192
"""No line about a batch or a block of heads is longer."""
RELEASED = b'{"released":true}\n'

_BEGINNING = re.compile(rb'\{(?:"[a-z_:",0-9]*)?\}?')


class Claim(msgspec.Struct, frozen=True):
    """The first line of a segment."""

    nanotrio: str
    form: int
    epoch: int
    owner: Owner


class Counts(msgspec.Struct, frozen=True):
    """The second line of a segment that is not the first one: bytes that count, by number of the segment."""

    counts: dict[int, int]


class HeadFront(msgspec.Struct, gc=False, array_like=True):
    """The beginning of a ``Head``, whose stored order is fixed."""

    agent: int
    parent: int
    root: int
    name: str
    status: str
    unfinished: bool


class _Line(msgspec.Struct, gc=False):
    seq: int
    prev: int
    agent: int
    at_us: int
    facts: bytes


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Line)


def line_of(value: Claim | Counts) -> bytes:
    """Return a value as a line."""
    return _encoder.encode(value) + b"\n"


def batch_block(number: int, records: Sequence[Record]) -> bytes:
    """Return the lines of a batch; ``records`` is not empty."""
    lines = [_Line(record.seq, record.prev, record.agent, record.at_us, record.facts) for record in records]
    body = _encoder.encode_lines(lines)
    front = b'{"batch":%d,"first":%d,"count":%d,"bytes":%d' % (number, records[0].seq, len(records), len(body))
    return b'%b,"crc":"%08x"}\n%b' % (front, crc32(body, crc32(front)), body)


def heads_block(lines: Sequence[bytes], epoch: int, log_seq: int, true_to: int) -> bytes:
    """Return a block of heads that are already encoded, each without its line end.

    ``log_seq`` is the last record that the log held then; heads are true up to ``true_to``.
    """
    body = b"\n".join(lines) + b"\n" if lines else b""
    front = b'{"heads":%d,"epoch":%d,"log_seq":%d,"true_to":%d,"bytes":%d' % (
        *(len(lines), epoch, log_seq, true_to),
        len(body),
    )
    return b'%b,"crc":"%08x"}\n%b' % (front, crc32(body, crc32(front)), body)


def crc_holds(front: re.Match[bytes], body: bytes | memoryview) -> bool:
    """Whether ``body`` is what its line ``front`` says."""
    size, crc = front.groups()[-2:]
    return len(body) == int(size) and crc32(body, crc32(front[1])) == int(crc, 16)


def is_beginning(rest: bytes) -> bool:
    """Whether ``rest``, which ends without a line end, may be the beginning of a line about a batch or of a release."""
    return len(rest) < MAX_FRONT_BYTES and _BEGINNING.fullmatch(rest) is not None


def read_records(lines: bytes) -> list[Record]:
    """Return the records in lines.

    Raises:
        msgspec.DecodeError: they are no records.
    """
    return [Record(line.seq, line.prev, line.agent, line.at_us, line.facts) for line in _decoder.decode_lines(lines)]


def head_line(head: Head) -> bytes:
    """Return a head as a line, without its end."""
    return _encoder.encode(head)


read_head = msgspec.json.Decoder(Head).decode
"""Returns the head in a line."""

read_head_fronts = msgspec.json.Decoder(HeadFront).decode_lines
"""Returns what an index needs of the heads in lines, at a third of the cost."""

"""What was appended after the heads of a store were last known to be true."""

from __future__ import annotations

import msgspec

from ..fact_form import decode_facts
from ..records import Content
from .store import Store

__all__ = ["Tail", "read_tail"]

_SLICE = 4096


class Tail(msgspec.Struct, frozen=True):
    """The agents that records after ``heads_seq`` belong to; their chains tell how they stand."""

    last_seq: dict[int, int]
    """Each agent's newest record, in order of the agents' first record here; agent 0 is left out."""
    last_agent: int
    """The greatest agent id here, 0 for none."""
    contents: dict[bytes, int]
    """Content records here: digest to number."""
    records: int
    """How many were read."""


async def read_tail(store: Store, heads_seq: int) -> Tail:
    """Read every record after ``heads_seq`` once, in slices; what is kept is one entry an agent. Checkpoints."""
    last_seq: dict[int, int] = {}
    contents: dict[bytes, int] = {}
    count, after = 0, heads_seq
    while True:
        records = await store.scan(after, limit=_SLICE)
        for record in records:
            if record.agent:
                last_seq[record.agent] = record.seq
            else:
                for fact in decode_facts(record.facts):
                    if isinstance(fact, Content):
                        contents[fact.digest] = record.seq
        count += len(records)
        if len(records) < _SLICE:
            return Tail(last_seq, max(last_seq, default=0), contents, count)
        after = records[-1].seq

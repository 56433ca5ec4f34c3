"""The heads of a store, made anew from its log."""

from __future__ import annotations

import msgspec

from ..errors import RecordError, StoreDamagedError
from ..fact_form import decode_facts, decode_profile
from ..records import Content, Head, Record
from ..session import Session
from .births import Births
from .store import Batch, Store
from .tail import read_tail

__all__ = ["rebuild_heads"]

_SLICE = 256


async def rebuild_heads(store: Store, number: int, *, after: int = 0) -> int:
    """Replay every agent and write its head, in batches from ``number`` on; return the next batch number. Checkpoints.

    With ``after``, up to which heads are true, only agents with later records are replayed. The store is acquired.
    What is held at a time is one entry an agent, and some hundred sessions.

    Raises:
        RecordError: a record cannot be read by this version.
        StoreError: as ``Store``.
    """
    tail = await read_tail(store, after)
    agents = list(tail.last_seq)
    births = Births()
    models: dict[int, str] = {0: ""}
    for start in range(0, len(agents), _SLICE):
        some = agents[start : start + _SLICE]
        heads = []
        known = {head.agent: head for head in await store.heads(agents=some)} if after else {}
        for agent, chain in zip(some, await store.load([(tail.last_seq[agent], 0) for agent in some]), strict=True):
            session = Session(agent)
            for record in chain:
                session.apply(record)
            if session.profile not in models:
                models[session.profile] = await _model_of(store, session.profile)
            former = known.get(agent)
            counts = (former.children, former.descendants, former.counted_agent) if former else (0, 0, 0)
            head = session.head(models[session.profile])
            heads.append(
                msgspec.structs.replace(head, children=counts[0], descendants=counts[1], counted_agent=counts[2])
            )
        births.add(heads)
        await _commit(store, number, heads, None)
        number += 1
    ancestors = births.ancestors
    for start in range(0, len(ancestors), _SLICE):
        found = await store.heads(agents=ancestors[start : start + _SLICE])
        await _commit(store, number, [births.counted(head) for head in found], None)
        number += 1
    statistics = await store.statistics()
    await _commit(store, number, [], statistics.records)
    return number + 1


async def _commit(store: Store, number: int, heads: list[Head], heads_seq: int | None) -> None:
    await store.commit(Batch(number, (), heads, heads_seq))


async def _model_of(store: Store, seq: int) -> str:
    """The model that the profile in record ``seq`` names; empty where it cannot be read, since this only shows it."""
    found: list[Record] = await store.scan(seq - 1, limit=1)
    for record in found:
        try:
            for fact in decode_facts(record.facts):
                if isinstance(fact, Content):
                    return decode_profile(record.seq, fact.body).model
        except (RecordError, StoreDamagedError):
            return ""
    return ""

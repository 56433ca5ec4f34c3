"""Which content the store holds already: a bounded map from digest to record number."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from ..fact_form import encode_facts
from ..records import Content, Record

__all__ = ["Contents"]


class Contents:
    """Digests of content records, the most recently used ``limit`` of them; one that is forgotten is stored again.

    A record is known from when its group was appended, not from when it was made: a group may be thrown away, and its
    numbers then go to other records.
    """

    __slots__ = ("_known", "_limit", "fresh")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[bytes, int] = {}
        self.fresh: dict[bytes, Record] = {}
        """Records made and not yet appended."""

    def find_or_add(self, body: bytes, at_us: int, group: list[Record], next_seq: int) -> int:
        """Return the number of a record with ``body``; where none is known, add one to ``group``."""
        digest = blake2b(body, digest_size=16).digest()
        seq = self._known.pop(digest, 0)
        if seq:
            self._known[digest] = seq
            return seq
        fresh = self.fresh.get(digest)
        if fresh is not None and _stands_in(group, fresh, next_seq):
            return fresh.seq
        seq = next_seq + len(group)
        fresh = Record(seq, 0, 0, at_us, encode_facts((Content(digest, body),)))
        group.append(fresh)
        self.fresh[digest] = fresh
        return seq

    def appended(self, group: Sequence[Record], first_seq: int) -> None:
        """Know the fresh records that stand in ``group``, and drop the others."""
        for digest, record in self.fresh.items():
            if _stands_in(group, record, first_seq):
                self.remember(digest, record.seq)
        self.fresh.clear()

    def remember(self, digest: bytes, seq: int) -> None:
        """Know one record."""
        self._known.pop(digest, None)
        self._known[digest] = seq
        if len(self._known) > self._limit:
            del self._known[next(iter(self._known))]


def _stands_in(group: Sequence[Record], record: Record, first_seq: int) -> bool:
    at = record.seq - first_seq
    return 0 <= at < len(group) and group[at] is record

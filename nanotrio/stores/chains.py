"""Many chains walked back together, level by level; the driver only fetches records by number.

A level is the next record of every chain that is not at its end. Asking for a level at a time costs one statement
(or one round trip) a level instead of one a record.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Record
from .refusals import damaged_record

__all__ = ["Chains"]


class Chains:
    """A walk: fetch ``wanted``, hand the records to ``receive``, until nothing is wanted.

    ``ends`` are ``(last_seq, stop_seq)`` as in ``Store.load``; ``url`` names the store in errors.
    """

    __slots__ = ("_chains", "_slots", "_stops", "_url", "wanted")

    def __init__(self, ends: Sequence[tuple[int, int]], url: str) -> None:
        self._url = url
        self._chains: list[list[Record]] = [[] for _ in ends]
        self._stops = [max(stop_seq, 1) for _, stop_seq in ends]
        level = sorted((last_seq, slot) for slot, (last_seq, _) in enumerate(ends) if last_seq >= self._stops[slot])
        self.wanted: list[int] = [seq for seq, _ in level]
        """Numbers of the records to fetch; one may be wanted by several chains and stands here as often."""
        self._slots: list[int] = [slot for _, slot in level]

    @property
    def stops(self) -> list[int]:
        """For each number in ``wanted``, the least number that its chain may reach."""
        return [self._stops[slot] for slot in self._slots]

    def receive(self, records: Sequence[Record]) -> None:
        """Take the records of ``wanted``, in that order, and want the level before.

        Raises:
            StoreDamagedError: one is missing, or names a later one as the one before it.
        """
        if len(records) != len(self.wanted):
            found = {record.seq for record in records}
            missing = next((seq for seq in self.wanted if seq not in found), 0)
            raise damaged_record(self._url, f"record {missing} of {self._url} is missing")
        wanted, slots = [], []
        for record, slot in zip(records, self._slots, strict=True):
            self._chains[slot].append(record)
            if record.prev >= record.seq:
                told = f"record {record.seq} of {self._url} names {record.prev} as the one before it"
                raise damaged_record(self._url, told)
            if record.prev >= self._stops[slot]:
                wanted.append(record.prev)
                slots.append(slot)
        self.wanted, self._slots = wanted, slots

    def oldest_first(self) -> list[list[Record]]:
        """The chains walked so far, in the order they were asked for."""
        for chain in self._chains:
            chain.reverse()
        return self._chains

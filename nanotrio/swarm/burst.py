"""What agents append between two awaits, gathered into one group.

Theory of operation
-------------------
Facts are applied to their session at the moment they are decided, and collected here: one record for each agent that
got any, numbered in the order they were opened. ``append`` hands them to the journal as one group. Everything from the
first fact to ``append`` happens without an await, so a mail and the result of the call that sent it never part, and
a record's number is known before it is encoded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..fact_form import encode_facts
from ..journal import Journal
from ..records import Fact, Head, Record
from ..session import Session

__all__ = ["Burst"]


class Burst:
    """The open group of a swarm."""

    __slots__ = ("_entries", "_heads", "_journal", "_rows", "at_us")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rows: list[Any] = []
        """In order of number: content records, and (prev, agent, facts); facts are encoded as the group is closed."""
        self._entries: dict[int, list[Fact]] = {}
        self._heads: list[Head] = []
        """Of agents that are made and not held in memory."""
        self.at_us = 0
        """When the group was begun."""

    def add(self, session: Session, facts: Sequence[Fact]) -> None:
        """Apply ``facts`` to ``session``, and append them with this group."""
        agent = session.agent
        entry = self._entries.get(agent)
        if entry is None:
            rows = self._rows
            if not rows:
                self.at_us = int(time.time() * 1e6)
            entry = self._entries[agent] = []
            rows.append((session.last_seq, agent, entry))
            session.begin_record(self._journal.next_seq + len(rows) - 1, self.at_us)
            if session.is_due_for_snapshot():
                snapshot = session.snapshot()
                entry.append(snapshot)
                session.apply_facts((snapshot,))
        entry += facts
        session.apply_facts(facts)

    def extend(self, agent: int, prev: int, facts: Sequence[Fact]) -> tuple[int, int]:
        """Add a record to the chain of an agent that is not held in memory; return its number and time."""
        seq, at_us = self.begin()
        self._rows.append((prev, agent, facts))
        return seq, at_us

    def begin(self) -> tuple[int, int]:
        """Return the number that the group's next record will have, and the time of the group."""
        if not self._rows:
            self.at_us = int(time.time() * 1e6)  # agents keep these, and a quotient would be half as large again
        return self._journal.next_seq + len(self._rows), self.at_us

    def make(self, heads: Sequence[Head], facts: Sequence[bytes]) -> None:
        """Add the first records of agents that are not held in memory, encoded, and their heads, numbered from here."""
        self._rows += [(0, head.agent, each) for head, each in zip(heads, facts, strict=True)]
        self._heads += heads

    def content(self, body: bytes) -> int:
        """Return the number of the record that holds ``body``, writing it with this group unless it is known."""
        _, at_us = self.begin()
        return self._journal.content(body, at_us, self._rows)

    def append(self) -> int:
        """Hand the group to the journal; return the number of its last record, or of the last one before."""
        rows = self._rows
        journal = self._journal
        seq = journal.next_seq
        if not rows:
            return seq - 1
        at_us = self.at_us
        group = []
        for row in rows:
            if type(row) is tuple:
                prev, agent, facts = row
                group.append(Record(seq, prev, agent, at_us, facts if type(facts) is bytes else encode_facts(facts)))
            else:
                group.append(row)
            seq += 1
        heads, self._heads = self._heads, []
        self._rows = []
        self._entries = {}
        journal.append_nowait(group, heads)
        return seq - 1

"""Pending agents that are not in memory: three integers each.

Theory of operation
-------------------
A row has a *place*, a number that counts up by one and is never given twice. ``at`` is the least place that was not
*passed*, ``end`` the place that the next one will get; ``lines.py`` says in which order they are passed. A row that is
brought into memory is *taken*: it keeps its place and the agent is found in the registry from then on, if it still
waits. So nothing is ever searched for or moved.

A row gets mail as it is: its last record becomes another one, and ``letters`` says how many mails wait for the agent,
where it is more than the prompt. Of one that was written to before the store was opened that is not known: it is 0.

Ids count up too, but for a tree that is resumed after a younger one was spawned; each such step begins a *run*, and an
id is looked for by bisection in every run, once it does not lie as far from its place as the one before did. What rows
have in common (parent, name, profile) is kept once, as a kind.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

import msgspec

from ..agent_name import stem_of
from ..records import Head

__all__ = ["Row", "RowKind", "Rows"]

_SLACK = 4_096
"""So many places that are behind are kept before the arrays are cut."""
_PASSED = -1
"""In place of a kind's number."""


class RowKind(msgspec.Struct, frozen=True, cache_hash=True):
    """What many rows have in common."""

    parent: int
    stem: str
    """The name without its number."""
    profile: int
    """The number of the content record that holds the profile."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """One pending agent; ``seq`` is its last record."""

    agent: int
    seq: int
    kind: RowKind


class Rows:
    """The pending agents of one swarm that are not in memory."""

    __slots__ = (
        "_agents",
        "_base",
        "_kind_numbers",
        "_kinds",
        "_numbers",
        "_runs",
        "_seqs",
        "_shift",
        "at",
        "left",
        "letters",
        "waiting",
    )

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, place: int) -> None:
        self._agents = array("q")
        self._seqs = array("q")
        self._numbers = array("q")
        self._kinds: list[RowKind] = []
        self._kind_numbers: dict[RowKind, int] = {}
        self._runs = [place]
        self._shift = 0
        """Place less id of the row that was found last."""
        self._base = place
        self.letters: dict[int, int] = {}
        """Mails that wait for rows that have further ones than the prompt, by agent."""
        self.at = place
        """All places before it were passed."""
        self.waiting = 0
        """Places that were not passed."""
        self.left = 0
        """Rows that were not taken."""

    @property
    def end(self) -> int:
        """The place of the row that comes next."""
        return self._base + len(self._agents)

    def push(self, agent: int, seq: int, kind: RowKind) -> None:
        """Put a pending agent at the end."""
        self.push_many(agent, seq, 1, kind)

    def push_many(self, agent: int, seq: int, count: int, kind: RowKind) -> int:
        """Put ``count`` alike agents at the end, their ids and records numbered on from ``agent`` and ``seq``.

        Returns the place of the first.
        """
        start = self.end
        number = self._kind_numbers.get(kind)
        if number is None:
            number = self._kind_numbers[kind] = len(self._kinds)
            self._kinds.append(kind)
        if self._agents and agent < self._agents[-1]:
            self._runs.append(self.end)
        self._agents.extend(range(agent, agent + count))
        self._seqs.extend(range(seq, seq + count))
        self._numbers.extend([number] * count)
        self.waiting += count
        self.left += count
        return start

    def push_head(self, head: Head) -> None:
        """Put a pending agent at the end that has a head."""
        if head.updated_us != head.created_us:
            self.letters[head.agent] = 0
        stem = stem_of(head.name)
        kind = self._kinds[self._numbers[-1]] if self._numbers and self._numbers[-1] >= 0 else None
        if kind is None or (kind.parent, kind.profile, kind.stem) != (head.parent, head.profile, stem):
            self.push(head.agent, head.last_seq, RowKind(head.parent, stem, head.profile))
            return
        if head.agent < self._agents[-1]:
            self._runs.append(self.end)
        self._agents.append(head.agent)
        self._seqs.append(head.last_seq)
        self._numbers.append(self._numbers[-1])
        self.waiting += 1
        self.left += 1

    def extend(self, other: Rows) -> None:
        """Put the rows of ``other``, of which none was passed, at the end; of a million this is quick."""
        shift, offset = self.end - other.at, len(self._kinds)
        if self._agents and other._agents and other._agents[0] < self._agents[-1]:
            self._runs.append(self.end)
        self._runs += [start + shift for start in other._runs[1:]]
        self._agents.extend(other._agents)
        self._seqs.extend(other._seqs)
        self._numbers.extend([number + offset for number in other._numbers])
        self._kinds += other._kinds
        for index, kind in enumerate(other._kinds, offset):
            self._kind_numbers.setdefault(kind, index)
        self.letters.update(other.letters)
        self.waiting += other.waiting
        self.left += other.left

    def counts(self) -> dict[int, int]:
        """Return how many rows each parent has that were not taken; of many rows this is quick."""
        start = self.at - self._base
        numbers = self._numbers[start:]
        if self.left < len(numbers):
            numbers = array("q", [number for number, seq in zip(numbers, self._seqs[start:], strict=True) if seq])
        counts: dict[int, int] = {}
        for number, count in Counter(numbers).items():
            parent = self._kinds[number].parent
            counts[parent] = counts.get(parent, 0) + count
        return counts

    def parents(self) -> set[int]:
        """Return the parents of the rows."""
        return {kind.parent for kind in self._kinds}

    def profiles(self) -> set[int]:
        """Return the numbers of their profiles."""
        return {kind.profile for kind in self._kinds}

    def find(self, agent: int) -> int:
        """Return the place of a row that was not taken; -1 where there is none."""
        agents, base = self._agents, self._base
        at = agent + self._shift - base
        if self.at - base <= at < len(agents) and agents[at] == agent:
            return at + base if self._seqs[at] else -1
        for index, start in enumerate(self._runs):
            stop = self._runs[index + 1] if index + 1 < len(self._runs) else self.end
            high = stop - base
            at = bisect_left(agents, agent, min(max(start, self.at) - base, high), high)
            if at < high and agents[at] == agent:
                self._shift = at + base - agent
                return at + base if self._seqs[at] else -1
        return -1

    def row(self, place: int) -> Row:
        """Return the row at ``place``; its ``seq`` is 0 where it was taken."""
        index = place - self._base
        return Row(self._agents[index], self._seqs[index], self._kinds[self._numbers[index]])

    def take(self, place: int) -> None:
        """The row is brought into memory, or ended; its place stays."""
        self._seqs[place - self._base] = 0
        self.left -= 1
        if self.letters:
            self.letters.pop(self._agents[place - self._base], None)

    def write_to(self, place: int, seq: int) -> None:
        """The row got a mail, record ``seq``."""
        agent = self._agents[place - self._base]
        self._seqs[place - self._base] = seq
        self.letters[agent] = self.letters.get(agent, 1) + 1

    def peek(self, place: int) -> tuple[int, bool]:
        """Return the id at ``place``, which was not passed, and whether it was taken."""
        index = place - self._base
        return self._agents[index], not self._seqs[index]

    def pass_over(self, place: int) -> None:
        """The row at ``place``, which was taken and not passed, is done with."""
        numbers = self._numbers
        numbers[place - self._base] = _PASSED
        self.waiting -= 1
        if not self.waiting:
            self.clear()
        elif place == self.at:
            index, size = place + 1 - self._base, len(numbers)
            while index < size and numbers[index] == _PASSED:
                index += 1
            self.at = self._base + index
            if index >= _SLACK and index * 2 >= size:
                del self._agents[:index], self._seqs[:index], numbers[:index]
                self._base = self.at
                self._runs = [self.at, *[start for start in self._runs if start > self.at]]

    def clear(self) -> None:
        """Forget all rows; places go on counting."""
        self._begin(self.end)

    def named(self, parent: int, stem: str) -> list[int]:
        """Return the ids of the rows below ``parent`` that are called ``stem``."""
        wanted = (parent, stem)
        return self.those(lambda kind: (kind.parent, kind.stem) == wanted)

    def below(self, parent: int) -> list[int]:
        """Return the ids of the rows whose parent is ``parent``."""
        return self.those(lambda kind: kind.parent == parent)

    def those(self, is_wanted: Callable[[RowKind], bool]) -> list[int]:
        """Return the ids of the rows of the kinds that are wanted; quick where none is."""
        numbers = {number for number, kind in enumerate(self._kinds) if is_wanted(kind)}
        if not numbers:
            return []
        start = self.at - self._base
        return [
            self._agents[start + index]
            for index, number in enumerate(self._numbers[start:])
            if number in numbers and self._seqs[start + index]
        ]

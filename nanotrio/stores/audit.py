"""A walk over a whole log that notes what does not hold."""

from __future__ import annotations

from hashlib import blake2b

from ..counted import counted
from ..errors import RecordError, StoreDamagedError
from ..fact_form import decode_facts, decode_profile
from ..records import Content, Head, Record, Spawned

__all__ = ["Audit"]

_MAX_PROBLEMS = 100


class Audit:
    """Give it every record in order, then every head; ``problems`` tells in sentences what is wrong.

    What must hold: numbers follow each other without a gap. A record's ``prev`` is its agent's last one, or, for a
    fork's first, a record of another agent. An agent's first record says that it was spawned. Each fact is one that
    this version knows. Content has the digest it says, and what a record refers to comes before it. A head names its
    agent's last record, unless that is younger than ``heads_seq``.

    Which records were committed together is not in the log, so whether groups are whole cannot be seen here.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        """The first hundred."""
        self.problem_count = 0
        self.records = 0
        self.heads = 0
        self.agents: dict[int, int] = {}
        """Each agent's last record."""
        self._contents: dict[int, bool] = {}
        """Records with content, and whether it may be referred to as a profile; that it may not is told once."""

    def add_record(self, record: Record) -> None:
        """Look at the next record."""
        seq, agent, prev = record.seq, record.agent, record.prev
        if seq != self.records + 1:
            self.add_problem(f"record {self.records + 1} should follow, and {seq} does")
        self.records = seq
        last = self.agents.get(agent)
        if not agent:
            if prev:
                self.add_problem(f"record {seq} is on no chain, and names {prev} as the one before it")
        elif not 0 <= prev < seq or prev in self._contents:
            self.add_problem(f"record {seq} names {prev} as the one before it")
        elif last is not None and prev != last:
            self.add_problem(f"record {seq} of agent {agent} names {prev} as the one before it, which is {last}")
        try:
            facts = decode_facts(record.facts)
        except RecordError as error:
            self.add_problem(f"record {seq}: {error}")
            facts = ()
        for fact in facts:
            if isinstance(fact, Content):
                self._contents[seq] = _is_profile(seq, fact.body)
                if blake2b(fact.body, digest_size=16).digest() != fact.digest:
                    self.add_problem(f"the content in record {seq} has another digest than it says")
            elif isinstance(fact, Spawned) and fact.profile not in self._contents:
                self.add_problem(f"record {seq} refers to content in record {fact.profile}, where none is")
            elif isinstance(fact, Spawned) and not self._contents[fact.profile]:
                self._contents[fact.profile] = True
                self.add_problem(f"record {fact.profile} should be a profile, and is none that can be read")
        if agent:
            is_born = any(isinstance(fact, Spawned) for fact in facts) or not facts
            if last is None and not is_born:
                self.add_problem(f"record {seq} is the first of agent {agent} and does not say that it was spawned")
            self.agents[agent] = seq

    def add_head(self, head: Head, heads_seq: int) -> None:
        """Look at a head, once all records were seen; heads are said to be true up to ``heads_seq``."""
        self.heads += 1
        last = self.agents.get(head.agent)
        if last is None:
            self.add_problem(f"there is a head of agent {head.agent} and no record")
        elif head.last_seq > last or head.snapshot_seq > head.last_seq:
            self.add_problem(f"the head of agent {head.agent} names record {head.last_seq}, and its last is {last}")
        elif head.last_seq < last <= heads_seq:
            self.add_problem(f"the head of agent {head.agent} stands at record {head.last_seq}, and its last is {last}")

    def finish(self, heads_seq: int) -> None:
        """Look for what is missing, once all heads were seen."""
        if heads_seq > self.records:
            self.add_problem(f"heads are said to be true up to record {heads_seq}, and the last is {self.records}")
        if heads_seq >= self.records and self.heads < len(self.agents):
            count = len(self.agents) - self.heads
            self.add_problem(f"{counted(count, 'agent')} {'has' if count == 1 else 'have'} no head")

    def add_problem(self, problem: str) -> None:
        """Note what is wrong."""
        self.problem_count += 1
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)


def _is_profile(seq: int, body: bytes) -> bool:
    try:
        decode_profile(seq, body)
    except StoreDamagedError:
        return False
    return True

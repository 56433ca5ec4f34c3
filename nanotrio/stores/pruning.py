"""What old sessions leave behind when they are dropped from a store.

Theory of operation
-------------------
Records are named by their numbers, and those follow each other without a gap; so a pruned store is a new one in which
every record that was dropped is an empty one of agent 0, of a few bytes. What is kept keeps its number and its bytes.

A root is dropped whole, with all below it, or not at all. It stays while anything of it is unfinished, while any agent
of it is younger than asked, while a fork that stays stands on a chain of it, and where it holds the youngest agent of
all, so that no number is given twice. Content stays that a kept profile names.
"""

from __future__ import annotations

import array

import msgspec

from ..errors import StoreDamagedError
from ..fact_form import decode_facts, decode_profile, encode_facts
from ..records import Content, Record
from .store import Batch, Store

__all__ = ["PruneReport", "prune_into"]

_SLICE = 2048
_NOTHING = encode_facts(())


class PruneReport(msgspec.Struct, frozen=True):
    """What ``prune`` did."""

    source: str
    target: str
    """The new store."""
    roots: int
    """Dropped, like the next two."""
    agents: int
    records: int
    kept_roots: int
    kept_agents: int
    bytes_before: int
    """Of the source's main file or tables."""
    bytes_after: int


class _Plan(msgspec.Struct):
    """What is known of a store before anything of it is dropped."""

    root_of: dict[int, int] = {}
    """Of each agent."""
    profile_of: dict[int, int] = {}
    kept: set[int] = set()
    """Roots."""
    contents: set[int] = set()

    def keeps(self, record: Record) -> bool:
        """Whether a record stays."""
        if not record.agent:
            return record.seq in self.contents
        return self.root_of[record.agent] in self.kept


async def prune_into(source: Store, target: Store, older_than_us: int, urls: tuple[str, str]) -> PruneReport:
    """Write what is younger than ``older_than_us`` or unfinished into ``target``; ``source``'s heads are all true.

    Both are acquired by the caller, so nothing changes meanwhile. Checkpoints.

    Raises:
        StoreError: the source cannot be read whole, or the target not be written.
    """
    before = await source.statistics()
    plan = await _plan(source, older_than_us)
    await _keep_what_forks_stand_on(source, plan)
    await _keep_contents(source, plan)
    number, after, dropped = 1, 0, 0
    while records := await source.scan(after, limit=_SLICE):
        after = records[-1].seq
        kept = [each if plan.keeps(each) else Record(each.seq, 0, 0, 0, _NOTHING) for each in records]
        dropped += sum([one is not other for one, other in zip(kept, records, strict=True)])
        await target.commit(Batch(number, kept))
        number += 1
    after_agent = 0
    while heads := await source.heads(after=after_agent):
        after_agent = heads[-1].agent
        staying = [head for head in heads if head.root in plan.kept]
        if staying:
            await target.commit(Batch(number, (), staying))
            number += 1
    await target.commit(Batch(number, (), (), after))
    roots = set(plan.root_of.values())
    kept_agents = sum([root in plan.kept for root in plan.root_of.values()])
    size = await target.statistics()
    return PruneReport(
        source=urls[0],
        target=urls[1],
        roots=len(roots - plan.kept),
        agents=len(plan.root_of) - kept_agents,
        records=dropped,
        kept_roots=len(plan.kept),
        kept_agents=kept_agents,
        bytes_before=before.size_bytes + before.pending_bytes,
        bytes_after=size.size_bytes + size.pending_bytes,
    )


async def _plan(source: Store, older_than_us: int) -> _Plan:
    plan = _Plan()
    after = 0
    while heads := await source.heads(after=after):
        after = heads[-1].agent
        for head in heads:
            plan.root_of[head.agent] = head.root
            plan.profile_of[head.agent] = head.profile
            if head.unfinished or head.updated_us >= older_than_us:
                plan.kept.add(head.root)
    if plan.root_of:
        plan.kept.add(plan.root_of[max(plan.root_of)])
    return plan


async def _keep_what_forks_stand_on(source: Store, plan: _Plan) -> None:
    """Read the whole log once; a fork's first record names one of another agent before it."""
    agents = array.array("q", [0])
    seen: set[int] = set()
    stands_on: dict[int, set[int]] = {}
    while records := await source.scan(len(agents) - 1, limit=_SLICE):
        for record in records:
            agents.append(record.agent)
            if record.agent and record.agent not in plan.root_of:
                raise StoreDamagedError(f"agent {record.agent} has no head; repair the store first")
            if record.agent not in seen:
                seen.add(record.agent)
                if record.prev:
                    fork, root = plan.root_of[record.agent], plan.root_of[agents[record.prev]]
                    stands_on.setdefault(fork, set()).add(root)
    waiting = list(plan.kept)
    while waiting:
        for root in stands_on.get(waiting.pop(), ()):
            if root not in plan.kept:
                plan.kept.add(root)
                waiting.append(root)


async def _keep_contents(source: Store, plan: _Plan) -> None:
    """Keep what facts refer to by number: profiles, and the system prompts that these name."""
    for agent, seq in plan.profile_of.items():
        if plan.root_of[agent] in plan.kept:
            plan.contents.add(seq)
    plan.contents.discard(0)
    for seq in sorted(plan.contents):
        (record,) = await source.scan(seq - 1, limit=1)
        for fact in decode_facts(record.facts):
            if isinstance(fact, Content):
                plan.contents.add(decode_profile(seq, fact.body).system)

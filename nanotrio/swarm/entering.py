"""From records to agents in memory: sessions, their profiles, and a node with its ledger for each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import StoreDamagedError
from ..fact_form import decode_facts, decode_profile
from ..records import Content, Head, Profile
from ..session import Session
from ..stores import Store
from .growing import make_node
from .node import Node
from .runtime import Runtime

__all__ = ["Entry", "enter", "load_sessions", "read_contents", "read_entries", "read_profiles"]

_SLICE = 256


class Entry(msgspec.Struct, frozen=True):
    """An agent that is to be read: its newest record and snapshot, and its head where it has counts to tell."""

    agent: int
    last_seq: int
    snapshot_seq: int
    head: Head | None


async def load_sessions(store: Store, agents: Sequence[int], ends: Sequence[tuple[int, int]]) -> list[Session]:
    """Rebuild sessions from their chains: ``ends`` are the last and the snapshot record of each."""
    sessions = []
    for agent, chain in zip(agents, await store.load(ends), strict=True):
        session = Session(agent)
        for record in chain:
            session.apply(record)
        sessions.append(session)
    return sessions


async def read_contents(store: Store, seqs: set[int]) -> dict[int, bytes]:
    """Return the bodies of content records."""
    wanted = sorted(seqs - {0})
    bodies: dict[int, bytes] = {}
    for seq, chain in zip(wanted, await store.load([(seq, seq) for seq in wanted]), strict=True):
        for fact in decode_facts(chain[0].facts):
            if isinstance(fact, Content):
                bodies[seq] = fact.body
    if missing := [seq for seq in wanted if seq not in bodies]:
        raise StoreDamagedError(f"record {missing[0]} should hold content and does not; put a copy of the store back")
    return bodies


async def read_profiles(store: Store, seqs: set[int]) -> dict[int, Profile]:
    """Return the profiles that content records hold.

    Raises:
        StoreDamagedError: one is of a form that this version does not read.
    """
    return {seq: decode_profile(seq, body) for seq, body in (await read_contents(store, seqs)).items()}


async def known_profiles(runtime: Runtime, seqs: set[int]) -> dict[int, Profile]:
    """Return profiles, and know them and their system prompts from then on."""
    if fresh := {seq for seq in seqs if seq not in runtime.profile_values}:
        profiles = await read_profiles(runtime.store, fresh)
        systems = {profile.system for profile in profiles.values()} - runtime.systems.keys()
        bodies = await read_contents(runtime.store, systems)
        runtime.systems.update({seq: body.decode() for seq, body in bodies.items()})
        for seq, profile in profiles.items():
            runtime.profile_values[seq] = profile
            runtime.profiles.setdefault(profile, seq)
    return {seq: runtime.profile_values[seq] for seq in seqs}


async def read_entries(runtime: Runtime, entries: Sequence[Entry]) -> list[tuple[Entry, Session, Profile]]:
    """Read agents from the store, some hundreds at a time. Checkpoints."""
    sessions: list[Session] = []
    for start in range(0, len(entries), _SLICE):
        some = entries[start : start + _SLICE]
        ends = [(entry.last_seq, entry.snapshot_seq) for entry in some]
        sessions += await load_sessions(runtime.store, [entry.agent for entry in some], ends)
    profiles = await known_profiles(runtime, {session.profile for session in sessions})
    return [(entry, session, profiles[session.profile]) for entry, session in zip(entries, sessions, strict=True)]


def enter(runtime: Runtime, session: Session, profile: Profile, head: Head | None) -> Node:
    """Make a node of an agent whose parent is in memory, with a ledger that knows what was spent before.

    What an unfinished agent has not reported to its parent is counted along its lineage; a finished one has reported
    all, so its ancestors know of it.

    Raises:
        UnknownToolError: it uses a tool that is not registered.
    """
    parent = runtime.nodes[session.parent] if session.parent else None
    node = make_node(runtime, session, parent, profile)
    if head is not None:
        node.children_made, node.descendants = head.children, head.descendants
    node.ledger.settled = session.spent_nano + session.uncertain_nano + session.reserved_nano
    _, spent, uncertain, _ = session.report()
    if unreported := spent + uncertain + session.reserved_nano:
        ledger = node.ledger.parent
        while ledger is not None:
            ledger.settled += unreported
            ledger = ledger.parent
    return node

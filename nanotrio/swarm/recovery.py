"""Taking a store up again: which agents are unfinished, and making them nodes that go on.

``open_swarm`` reads the heads of unfinished agents and what follows the last true heads, and resumes nothing.
``resume`` loads the tree of one root and lets every unfinished agent of it go on where its records stop.
"""

from __future__ import annotations

from collections.abc import Sequence

import cbor2
import msgspec

from .. import crash
from ..errors import StoreDamagedError, UnknownAgentError
from ..records import Content, Head, Profile, decode_facts
from ..session import Session
from ..stores import Store, Tail, read_tail
from ..turn import Restart
from .node import Node
from .runtime import Runtime
from .settling import end_sealed
from .tree import make_node
from .warnings import warn_of_uncertain

__all__ = ["load_sessions", "read_heads", "read_profiles", "resume_tree", "tail_heads"]

_SLICE = 256


async def read_heads(store: Store, tail: dict[int, Head], *, unfinished: bool = False) -> list[Head]:
    """Return all heads of a store in order of agent, true ones; ``tail`` replaces what the store has behind."""
    found: dict[int, Head] = {}
    after = 0
    while page := await store.heads(unfinished=unfinished, after=after):
        after = page[-1].agent
        found.update({head.agent: head for head in page})
    for agent, head in tail.items():
        if head.unfinished or not unfinished:
            found[agent] = head
        else:
            found.pop(agent, None)
    return [found[agent] for agent in sorted(found)]


async def tail_heads(store: Store, heads_seq: int) -> tuple[Tail, dict[int, Head]]:
    """Return what follows the last true heads, and the heads of the agents it touches as they really stand."""
    tail = await read_tail(store, heads_seq)
    agents = list(tail.last_seq)
    heads: dict[int, Head] = {}
    for start in range(0, len(agents), _SLICE):
        some = agents[start : start + _SLICE]
        known = {head.agent: head for head in await store.heads(agents=some)}
        ends = [(tail.last_seq[agent], known[agent].snapshot_seq if agent in known else 0) for agent in some]
        sessions = await load_sessions(store, some, ends)
        profiles = await read_profiles(store, {session.profile for session in sessions})
        for session in sessions:
            profile = profiles.get(session.profile)
            head = session.head()
            heads[session.agent] = msgspec.structs.replace(head, model=profile.model) if profile else head
    return tail, heads


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
        raise StoreDamagedError(f"record {missing[0]} should hold content and does not; the store is damaged")
    return bodies


async def read_profiles(store: Store, seqs: set[int]) -> dict[int, Profile]:
    """Return the profiles that content records hold.

    Raises:
        StoreDamagedError: one is of a form that this version does not read.
    """
    profiles = {}
    for seq, body in (await read_contents(store, seqs)).items():
        try:
            profiles[seq] = msgspec.convert(cbor2.loads(body), Profile)
        except (msgspec.ValidationError, cbor2.CBORDecodeError) as error:
            raise StoreDamagedError(
                f"record {seq} holds a profile that this version cannot read ({error}); open the store with "
                "the version that wrote it, or put a copy back"
            ) from error
    return profiles


async def resume_tree(runtime: Runtime, root: int) -> Node:
    """Bring the tree of ``root`` into memory and let every unfinished agent of it go on.

    Agents that are in memory already stay as they are. Raises before anything is recorded.
    """
    heads = [head for head in await read_heads(runtime.store, runtime.cold) if head.root == root]
    heads = [head for head in heads if head.agent not in runtime.nodes]
    sessions: list[Session] = []
    for start in range(0, len(heads), _SLICE):
        some = heads[start : start + _SLICE]
        ends = [(head.last_seq, head.snapshot_seq) for head in some]
        sessions += await load_sessions(runtime.store, [head.agent for head in some], ends)
    profiles = await read_profiles(runtime.store, {session.profile for session in sessions})
    systems = await read_contents(runtime.store, {profile.system for profile in profiles.values()})
    runtime.systems.update({seq: body.decode() for seq, body in systems.items()})
    nodes = _enter(runtime, sessions, profiles)
    if root not in runtime.nodes:
        raise UnknownAgentError(f"no agent {root} in this store")
    _restart(runtime, nodes)
    return runtime.nodes[root]


def _enter(runtime: Runtime, sessions: Sequence[Session], profiles: dict[int, Profile]) -> list[Node]:
    """Make nodes, each after its parent, with ledgers that know what was spent before; none where one fails."""
    nodes: list[Node] = []
    try:
        for session in sessions:
            if session.agent in runtime.nodes:  # somebody else resumed the tree while it was read
                continue
            parent = runtime.nodes.get(session.parent) if session.parent else None
            nodes.append(make_node(runtime, session, parent, profiles[session.profile]))
            profile = profiles[session.profile]
            runtime.profiles.setdefault(profile, session.profile)
    except BaseException:
        for node in reversed(nodes):
            del runtime.nodes[node.id]
            if node.parent is not None and node.parent.children:
                node.parent.children.remove(node)
        raise
    for node in nodes:
        session = node.session
        node.ledger.settled += session.spent_nano + session.uncertain_nano + session.reserved_nano
        _, spent, uncertain, _ = session.report()
        unreported = spent + uncertain + session.reserved_nano
        ledger = node.ledger.parent
        while ledger is not None and unreported:
            ledger.settled += unreported
            ledger = ledger.parent
        if node.parent is not None:
            node.root.descendants += 1
        runtime.cold.pop(node.id, None)
    return nodes


def _restart(runtime: Runtime, nodes: Sequence[Node]) -> None:
    """Record that unfinished turns are taken up, and queue every unfinished agent."""
    if crash.here is not None:
        crash.here("before-resume", nodes[0].root.id if nodes else 0)
    warn_of_uncertain(runtime, nodes)
    for node in nodes:
        session = node.session
        if not session.is_unfinished:
            continue
        if session.turn is not None:
            repeatable = frozenset(
                [call.call.id for call in session.turn.calls if _is_repeatable(node, call.call.name)]
            )
            runtime.absorb(node, Restart(repeatable))
        runtime.count(node)
    _end_cut_off(runtime, nodes)
    for node in nodes:
        if node.session.is_unfinished and node.sealed is None:
            runtime.slots.enqueue(node)
    runtime.append()
    if crash.here is not None:
        crash.here("after-resume", nodes[0].root.id if nodes else 0)


def _end_cut_off(runtime: Runtime, nodes: Sequence[Node]) -> None:
    """End those whom an ancestor's final turn had named as cut off, and whom the crash left before they were ended."""
    for node in nodes:  # each after its parent
        parent = node.parent
        if parent is None or not node.is_counted:
            continue
        ended = parent.session.ended
        if parent.sealed or (parent.session.status == "settling" and ended is not None and ended.fact.survivors):
            node.sealed = "cancelled"
            node.stop = ("cancelled", f"{parent.name} had ended its turn")
            node.is_told = True
    for node in reversed(nodes):
        if node.sealed == "cancelled" and node.is_counted:
            end_sealed(runtime, node)


def _is_repeatable(node: Node, name: str) -> bool:
    tool = node.tools.get(name)
    return tool is not None and (tool.idempotent or not tool.effect)

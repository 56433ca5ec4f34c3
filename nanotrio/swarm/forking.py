"""Forks: a new root that goes on from where another agent's last turn ended.

Nothing is copied. A fork's first record names, as the one before it, the record in which the source's last turn ended,
and from there its chain is the source's own. What the source does later, and what it is doing now, is not seen.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec

from ..agent_name import name_of, stem_of
from ..errors import ClosedError, UsageError
from ..limits import HARD_MAX_DEPTH, Limits
from ..messages import clean_text
from ..records import Fact, Head, LimitsSet, Profile, Spawned
from ..session import Session
from ..tools import permission_mode, tighter
from .entering import load_sessions, read_contents, read_profiles
from .events import AgentSpawned
from .growing import check_budget, make_node, profile_seq
from .node import Node
from .runtime import Runtime

__all__ = ["fork_live", "fork_stored"]


def fork_live(runtime: Runtime, node: Node, session_id: str = "") -> Node:
    """Make a fork of an agent in memory, within the open group. Does not checkpoint.

    Raises:
        UsageError: no turn of it has ended.
        ClosedError: the swarm is closing.
    """
    if node.parent is None:
        return _fork(runtime, node.session, node.profile, session_id)
    # What its ancestors did not allow it stays so, and what they might spend is what it may.
    caps = [ledger.cap for ledger in node.ledger.lineage() if ledger.cap is not None]
    limits = msgspec.structs.replace(node.limits, budget_nano=min(caps, default=None))
    profile = msgspec.structs.replace(node.profile, limits=_as_root(limits, node.session.depth))
    return _fork(runtime, node.session, profile, session_id, has_limits=True)


async def fork_stored(runtime: Runtime, head: Head, session_id: str = "") -> Node:
    """Make a fork of an agent in the store, within the open group; the source is not taken up. Checkpoints.

    Raises:
        UnknownToolError: it uses a tool that is not registered.
        UsageError, ClosedError: as ``fork_live``.
    """
    lineage = [head]
    while lineage[-1].parent:
        parent = lineage[-1].parent
        lineage += [runtime.cold[parent]] if parent in runtime.cold else await runtime.store.heads(agents=[parent])
    ends = [(each.last_seq, each.snapshot_seq) for each in lineage]
    sessions = await load_sessions(runtime.store, [each.agent for each in lineage], ends)
    profiles = await read_profiles(runtime.store, {session.profile for session in sessions})
    profile = profiles[sessions[0].profile]
    runtime.profiles.setdefault(profile, sessions[0].profile)
    systems = await read_contents(runtime.store, {profile.system})
    runtime.systems.update({seq: body.decode() for seq, body in systems.items()})
    if len(sessions) > 1:
        profile = _allowed(sessions, profiles)
    return _fork(runtime, sessions[0], profile, session_id, has_limits=len(sessions) > 1)


def _allowed(sessions: Sequence[Session], profiles: dict[int, Profile]) -> Profile:
    """Return the profile of the first of a lineage, within what those above it have."""
    profile = profiles[sessions[0].profile]
    mode = permission_mode(profile.permission_mode)
    limits = sessions[0].limits or profile.limits
    for session in sessions[1:]:
        above = profiles[session.profile]
        mode = tighter(mode, permission_mode(above.permission_mode))
        limits = limits.within(session.limits or above.limits)
    return msgspec.structs.replace(profile, limits=_as_root(limits, len(sessions) - 1), permission_mode=mode)


def _as_root(limits: Limits, depth: int) -> Limits:
    """Return the limits of one at ``depth`` as those of a root, below which there are as many levels as there were."""
    return msgspec.structs.replace(limits, max_depth=max(min(limits.max_depth, HARD_MAX_DEPTH) - depth, 0))


def _fork(runtime: Runtime, source: Session, profile: Profile, session_id: str, *, has_limits: bool = False) -> Node:
    """Make the fork; with ``has_limits`` those set while the source lived are in ``profile`` already."""
    if runtime.is_closing:
        raise ClosedError("the swarm is closing; nothing can be forked in it any more")
    if source.ended is None:
        raise UsageError(
            f"{source.name} has not ended a turn yet, so a fork has nothing to go on from; wait for it, or resume it"
        )
    session = source.fork(runtime.next_agent)
    session.limits = None if has_limits else source.limits
    limits = session.limits or profile.limits
    check_budget(None, runtime.model(profile.model), source.name, limits.budget_nano)
    node = make_node(runtime, session, None, profile)
    runtime.next_agent += 1
    spawned = Spawned(
        parent=0,
        root=session.agent,
        depth=0,
        name=name_of(stem_of(source.name), session.agent),
        profile=profile_seq(runtime, profile),
        uuid=clean_text(session_id) or str(uuid.uuid4()),
    )
    facts: list[Fact] = [spawned]
    if session.limits is not None:
        facts.append(LimitsSet(session.limits))
    runtime.record(node, facts)
    node.ledger.owner = session.name
    runtime.residence.taken_up.add(node.id)
    runtime.residence.rest(node)
    if runtime.watchers.count:
        runtime.emit(node, AgentSpawned(node.id, node.name, 0, session.task))
    return node

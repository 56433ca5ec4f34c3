"""What a store keeps of a map: the job's root, and under it an agent for each try of an item.

Theory of operation
-------------------
A job is a root without a task: it holds the job's budget and its agents, takes no turn and is never asked anything.
Its uuid is the job's id. Each agent below it is called ``item-INDEX-DIGEST.N``, where the digest is that of the item's
content and of what is asked of it. So names alone say what was done of which item, and nothing else is written down.

A job that goes on reads the heads of the store once, a page at a time, and keeps of them one number for each index (and
more only for those indices that have several agents). What became of an agent is read when the window gets to its
index, some hundreds at a time.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

import msgspec

from ..agent_name import name_of
from ..errors import UsageError
from ..records import Head, Settled, Spawned
from ..session import Session
from .entering import load_sessions
from .events import AgentSpawned
from .growing import check_budget, check_uuid, chosen_stem, make_node, profile_seq
from .node import Node
from .outcome import Outcome, outcome_of
from .runtime import Runtime
from .spawning import SpawnOptions, profile_of

__all__ = ["Earlier", "Found", "begin_job", "digest_of", "find_job", "item_name", "look_up"]

_NAME = re.compile(r"item-(\d+)-([0-9a-f]{16})\.\d+")


def digest_of(*parts: bytes) -> str:
    """Return sixteen hexadecimal digits that tell ``parts`` from others."""
    found = blake2b(digest_size=8)
    for part in parts:
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.hexdigest()


def item_name(index: int, digest: str) -> str:
    """Return what the agents of an item are called, but for their numbers."""
    return f"item-{index}-{digest}"


class Earlier:
    """The agents that a job has already, by the index of their item."""

    def __init__(self) -> None:
        self._newest = array("q")
        self._before: dict[int, list[int]] = {}

    def __len__(self) -> int:
        """One more than the greatest index."""
        return len(self._newest)

    def add(self, name: str, agent: int) -> None:
        """Enter an agent; ones that are no item's are passed over. Ids come in any order, each perhaps twice."""
        found = _NAME.fullmatch(name)
        if found is None:
            return
        index = int(found[1])
        if index >= len(self._newest):
            self._newest.extend([0] * (index + 1 - len(self._newest)))
        newest = self._newest[index]
        if not newest:
            self._newest[index] = agent
        elif agent != newest and agent not in self._before.get(index, ()):
            older, self._newest[index] = sorted((newest, agent))
            self._before.setdefault(index, []).append(older)

    def agents(self, index: int) -> list[int]:
        """Return the ids of an item's agents, the oldest first."""
        if index >= len(self._newest) or not self._newest[index]:
            return []
        return [*sorted(self._before.get(index, ())), self._newest[index]]


def begin_job(runtime: Runtime, options: SpawnOptions) -> Node:
    """Make the root of a new job, within the open group. Does not checkpoint.

    Raises:
        UsageError: a value that cannot be used; nothing was recorded.
    """
    check_uuid(options.get("uuid") or "")
    profile = profile_of(runtime, None, options)
    name = chosen_stem(runtime, options.get("name") or "map")
    check_budget(None, runtime.model(profile.model), name, profile.limits.budget_nano)
    agent = runtime.next_agent
    session = Session(agent)
    node = make_node(runtime, session, None, profile)
    runtime.next_agent += 1
    seq = profile_seq(runtime, profile)
    spawned = Spawned(0, agent, 0, name_of(name, agent), seq, options.get("uuid") or "")
    runtime.record(node, (spawned, Settled()))
    node.ledger.owner = session.name
    runtime.residence.taken_up.add(agent)
    if runtime.watchers.count:
        runtime.emit(node, AgentSpawned(agent, session.name, 0, ""))
    return node


async def find_job(runtime: Runtime, job: str) -> tuple[int, Earlier]:
    """Return the id of a job's root, 0 where the store has none, and the agents it has. Reads all heads once.

    Raises:
        UsageError: a session of that id is no job.
    """
    earlier = Earlier()
    root = next((each for each in _known(runtime) if each.uuid == job), None)
    after = 0
    while page := await runtime.store.heads(after=after):
        after = page[-1].agent
        for head in page:  # a child's number is greater than its root's
            if root is None and head.uuid == job and not head.parent:
                root = head
            elif root is not None and head.parent == root.agent:
                earlier.add(head.name, head.agent)
    if root is None:
        return 0, earlier
    for each in _known(runtime):
        if each.parent == root.agent:
            earlier.add(each.name, each.agent)
    if root.task:
        raise UsageError(f"{job!r} is the session of {root.name}, which is no map; give the job another id")
    return root.agent, earlier


def _known(runtime: Runtime) -> Iterator[Head | Session]:
    """Yield what may be newer here than in the store."""
    yield from runtime.cold.values()
    for node in runtime.nodes.values():
        yield node.session


class Found(msgspec.Struct, frozen=True):
    """What became of an agent."""

    agent: int
    name: str
    digest: str
    outcome: Outcome | None
    """None where it is unfinished."""
    last_seq: int


async def look_up(runtime: Runtime, agents: Sequence[int]) -> list[Found]:
    """Return what became of ``agents``, in order; one that the store lacks is left out. Checkpoints."""
    stored = [agent for agent in agents if agent not in runtime.nodes]
    heads = {head.agent: head for head in await runtime.store.heads(agents=stored, limit=len(stored) or 1)}
    heads |= {agent: runtime.cold[agent] for agent in stored if agent in runtime.cold}
    ended = [head for head in heads.values() if not head.unfinished and head.agent not in runtime.nodes]
    ends = [(head.last_seq, head.snapshot_seq) for head in ended]
    sessions = {
        session.agent: session for session in await load_sessions(runtime.store, [head.agent for head in ended], ends)
    }
    return list(_found(runtime, agents, heads, sessions))


def _found(
    runtime: Runtime, agents: Iterable[int], heads: dict[int, Head], sessions: dict[int, Session]
) -> Iterable[Found]:
    for agent in agents:
        node = runtime.nodes.get(agent)
        head = heads.get(agent)
        session = node.session if node is not None else sessions.get(agent)
        name = node.name if node is not None else head.name if head is not None else ""
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        outcome = None
        if session is not None and session.ended is not None and not (node is not None and node.is_counted):
            outcome = outcome_of(session)
        yield Found(agent, name, match[2], outcome, session.last_seq if session is not None else 0)

"""Taking a store up again: which agents are unfinished, and making them nodes that go on.

``open_swarm`` reads the heads of unfinished agents and what follows the last true heads, and resumes nothing.
``resume`` brings the unfinished agents of one tree into memory, with their ancestors, and lets them go on where their
records stop. Those that had not begun become rows, but for the first; finished ones stay in the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from .. import crash
from ..agent_name import number_of
from ..errors import UnknownAgentError, UnknownToolError, UsageError
from ..later_head import LaterHead
from ..messages import clean_text
from ..records import Head, Profile, Settled
from ..session import Session
from ..stores import Births, Store, Tail, read_tail
from ..turn import Restart
from .entering import Entry, enter, known_profiles, load_sessions, read_entries, read_profiles
from .growing import check_uuid, with_uuid
from .node import Node
from .rows import Rows
from .runtime import Runtime
from .settling import end_sealed, report
from .unresumed import may_be_row
from .warnings import warn_of_uncertain

__all__ = ["find_head", "later_heads", "read_heads", "read_unfinished", "resume_tree", "sole_session", "tail_heads"]

_SLICE = 256
_HEADS_SLICE = 4_096
_SCANNED = 1_024
"""Records that are read and applied at a time, so that the loop is not held up for long."""


async def read_heads(store: Store, tail: dict[int, Head], *, unfinished: bool = False) -> list[Head]:
    """Return all heads of a store in order of agent, true ones; ``tail`` replaces what the store has behind."""
    found: dict[int, Head] = {}
    after = 0
    while page := await store.heads(unfinished=unfinished, after=after):
        after = page[-1].agent
        found.update({head.agent: head for head in page})
    for agent, head in tail.items():
        if agent in found and found[agent].last_seq > head.last_seq:
            continue  # its owner has written a newer one meanwhile
        if head.unfinished or not unfinished:
            found[agent] = head
        else:
            found.pop(agent, None)
    return [found[agent] for agent in sorted(found)]


async def read_unfinished(store: Store, tail: dict[int, Head], add: Callable[[Head], None]) -> None:
    """Hand the true heads of unfinished agents to ``add``, those in ``tail`` last; a page is held at a time."""
    after = 0
    while page := await store.heads(unfinished=True, after=after):
        after = page[-1].agent
        for head in page:
            if head.agent not in tail:
                add(head)
    for agent in sorted(tail):
        if tail[agent].unfinished:
            add(tail[agent])


async def tail_heads(store: Store, heads_seq: int) -> tuple[Tail, dict[int, Head]]:
    """Return what follows the last true heads, and the heads that the store does not have as they really stand."""
    tail = await read_tail(store, heads_seq)
    agents = list(tail.last_seq)
    births = Births()
    behind: dict[int, Head | None] = {}
    for start in range(0, len(agents), _HEADS_SLICE):
        some = agents[start : start + _HEADS_SLICE]
        known = {head.agent: head for head in await store.heads(agents=some)}
        for agent in some:
            head = known.get(agent)
            if head is None or head.last_seq < tail.last_seq[agent]:
                behind[agent] = head
        births.add([head for agent, head in known.items() if agent not in behind])
    heads = await later_heads(store, heads_seq, tail, behind)
    births.add(heads.values())
    ancestors = births.ancestors
    for start in range(0, len(ancestors), _SLICE):
        some = ancestors[start : start + _SLICE]
        found = {head.agent: head for head in await store.heads(agents=[each for each in some if each not in heads])}
        for head in [*found.values(), *[heads[agent] for agent in some if agent in heads]]:
            counted = births.counted(head)
            if counted is not head:
                heads[head.agent] = counted
    return tail, heads


async def later_heads(store: Store, after: int, tail: Tail, behind: dict[int, Head | None]) -> dict[int, Head]:
    """Return the heads of those in ``tail`` that are ``behind``, from what follows record ``after``.

    Where what is new does not tell all, the whole chain is read. ``behind`` has what the store has of each, None for
    nothing.
    """
    later: dict[int, LaterHead] = {}
    heads: dict[int, Head] = {}
    rest: list[int] = []
    while len(heads) + len(rest) < len(behind):
        records = await store.scan(after, limit=_SCANNED)
        for record in records:
            agent = record.agent
            if agent not in behind or agent in heads:
                continue
            one = later.get(agent)
            if one is None:
                one = later[agent] = LaterHead(agent, behind[agent])
            if not one.last_seq < record.seq <= tail.last_seq[agent]:
                continue
            one.apply(record)
            if record.seq == tail.last_seq[agent]:
                del later[agent]
                head = one.head()
                if head is None:
                    rest.append(agent)
                else:
                    heads[agent] = head
        after = records[-1].seq
    for start in range(0, len(rest), _SLICE):
        some = rest[start : start + _SLICE]
        formers = [behind[agent] for agent in some]
        ends = [
            (tail.last_seq[agent], former.snapshot_seq if former else 0)
            for agent, former in zip(some, formers, strict=True)
        ]
        for session, former in zip(await load_sessions(store, some, ends), formers, strict=True):
            heads[session.agent] = _head_of(session, former)
    profiles = await read_profiles(store, {head.profile for head in heads.values() if not head.model})
    for agent, head in heads.items():
        if not head.model and head.profile:
            heads[agent] = msgspec.structs.replace(head, model=profiles[head.profile].model)
    return heads


def _head_of(session: Session, known: Head | None) -> Head:
    if known is None:
        return session.head()
    return session.head(known.model, known.children, known.descendants, known.counted_agent)


async def find_head(runtime: Runtime, address: int | str) -> Head:
    """Return the true head of an agent that is not in memory: by id or ``NAME.N`` at once, else by its uuid.

    Raises:
        UnknownAgentError: the store has no such agent.
    """
    if agent := number_of(address):
        place = runtime.slots.rows.find(agent)
        if place >= 0:
            await runtime.journal.durable(runtime.slots.rows.row(place).seq)
        known = runtime.cold.get(agent)
        heads = [known] if known is not None else await runtime.store.heads(agents=[agent])
        if heads and address in (agent, str(agent), heads[0].name):
            return heads[0]
    if isinstance(address, str):  # a uuid may end as a name does
        node = with_uuid(runtime, address)
        head = node.session.head() if node is not None else await _find_root(runtime, address)
        if head is not None:
            return head
    raise UnknownAgentError(f"no agent {address!r} in the store; nanotrio ls names those there are")


async def _find_root(runtime: Runtime, uuid: str) -> Head | None:
    """Return the true head of the root of that uuid, looking at roots alone; None where there is none."""
    after = 0
    found = [head for head in runtime.cold.values() if head.uuid == uuid]
    while not found and (page := await runtime.store.heads(roots=True, after=after)):
        after = page[-1].agent
        found = [head for head in page if head.uuid == uuid]
    return runtime.cold.get(found[0].agent, found[0]) if found else None


@asynccontextmanager
async def sole_session(runtime: Runtime, uuid: str) -> AsyncIterator[None]:
    """Let nobody else make a session of that uuid within the block; does nothing for none.

    Raises:
        UsageError: there is one, in memory or in the store; names the session, and says how to go on with it. Or it
            can be no session's.
    """
    if not uuid:
        yield
        return
    async with runtime.naming:
        await _check_new(runtime, clean_text(uuid))
        yield


async def _check_new(runtime: Runtime, uuid: str) -> None:
    head = await _find_root(runtime, uuid)
    known = with_uuid(runtime, uuid) or head
    if known is not None:
        raise UsageError(
            f"there is a session {uuid} already ({known.name}); resume it (nanotrio -r {uuid}), or choose another id"
        )
    check_uuid(uuid)


async def resume_tree(runtime: Runtime, root: int) -> None:
    """Bring what is unfinished in the tree of ``root`` into memory and let it go on; does nothing where it goes on.

    Raises before anything is recorded.
    """
    if root in runtime.residence.taken_up:
        return
    heads, rows = runtime.unresumed.of(root)
    parents = rows.parents().union([head.parent for head in heads])
    pending = [head for head in heads if may_be_row(head) and head.agent not in parents]
    begun = [head for head in heads if not may_be_row(head) or head.agent in parents]
    places = max(0, runtime.slots.max_resident - runtime.slots.pending)
    later = Rows()
    for head in pending[places:]:
        later.push_head(head)
    later.extend(rows)
    for agent in parents:  # who has children is in memory
        place = later.find(agent)
        if place >= 0:
            later.take(place)
    first = pending[:places]
    known = {head.agent: head for head in [*begun, *first]}
    for head in await _lineages(runtime, root, [*known.values()], later):
        known[head.agent] = head
    ordered = [known[agent] for agent in sorted(known)]
    entries = [Entry(head.agent, head.last_seq, head.snapshot_seq, head) for head in ordered]
    loaded = await read_entries(runtime, entries)
    await _check_rows(runtime, later)
    if root in runtime.residence.taken_up:  # somebody else resumed the tree while it was read
        return
    nodes = _enter(runtime, loaded)
    runtime.residence.taken_up.add(root)
    runtime.unresumed.forget(root)
    _restart(runtime, root, nodes, later)


async def _lineages(runtime: Runtime, root: int, heads: Sequence[Head], rows: Rows) -> list[Head]:
    """Return the heads of the root, and of all that ``heads`` and ``rows`` lie below and that are not among them."""
    known = {head.agent for head in heads}
    wanted = {root, *[head.parent for head in heads], *rows.parents()} - known - {0}
    found: list[Head] = []
    while wanted:
        level = sorted(wanted)
        some = [runtime.cold[agent] for agent in level if agent in runtime.cold]
        for start in range(0, len(level), _SLICE):
            asked = [agent for agent in level[start : start + _SLICE] if agent not in runtime.cold]
            some += await runtime.store.heads(agents=asked)
        if missing := wanted.difference([head.agent for head in some]):
            raise UnknownAgentError(f"no agent {min(missing)} in this store")
        found += some
        known |= wanted
        wanted = {head.parent for head in some} - known - {0}
    return found


async def _check_rows(runtime: Runtime, rows: Rows) -> None:
    """Refuse pending agents whose tools or models are not to be had, before anything is recorded."""
    for profile in (await known_profiles(runtime, rows.profiles())).values():
        runtime.model(profile.model)
        for name in profile.tools:
            if name not in runtime.tools:
                raise UnknownToolError(
                    f"a pending agent uses the tool {name!r}, which is not registered; "
                    "pass it in open_swarm(tools=[...])"
                )


def _enter(runtime: Runtime, loaded: Sequence[tuple[Entry, Session, Profile]]) -> list[Node]:
    """Make nodes, each after its parent; none where one fails."""
    nodes: list[Node] = []
    try:
        for entry, session, profile in loaded:
            nodes.append(enter(runtime, session, profile, entry.head))
    except BaseException:
        for node in nodes:
            del runtime.nodes[node.id]
        raise
    for node in nodes:
        runtime.cold.pop(node.id, None)
    return nodes


def _restart(runtime: Runtime, root: int, nodes: Sequence[Node], rows: Rows) -> None:
    """Record that unfinished turns are taken up, and queue every unfinished agent."""
    if crash.here is not None:
        crash.here("before-resume", root)
    warn_of_uncertain(runtime, nodes)
    _report_ended(runtime, nodes)
    for node in nodes:
        session = node.session
        if session.owes_return:
            runtime.residence.return_later(node)
        if not session.is_unfinished:
            continue
        if session.turn is not None:
            repeatable = frozenset(
                [call.call.id for call in session.turn.calls if _is_repeatable(node, call.call.name)]
            )
            runtime.absorb(node, Restart(repeatable))
        runtime.count(node)
    _take_rows(runtime, root, rows)
    _end_cut_off(runtime, nodes)
    for node in sorted(nodes, key=lambda node: node.session.status == "pending"):
        if node.session.is_unfinished and node.sealed is None:
            runtime.slots.enqueue(node)
    for node in nodes:
        runtime.residence.rest(node)
    runtime.residence.stir()
    runtime.append()
    if crash.here is not None:
        crash.here("after-resume", root)


def _report_ended(runtime: Runtime, nodes: Sequence[Node]) -> None:
    """Tell parents of those that were ended, and whom a crash left before their parents knew."""
    for node in reversed(nodes):
        if node.parent is not None and not node.session.is_unfinished and node.session.owes_report:
            node.told_turn = 0
            node.is_told = _cuts_off(node.parent)
            report(runtime, node, (Settled(),))


def _take_rows(runtime: Runtime, root: int, rows: Rows) -> None:
    """Queue pending agents that stay in the store."""
    runtime.slots.extend_rows(root, rows)
    for agent, count in rows.counts().items():
        parent = runtime.nodes[agent]
        parent.rows += count
        parent.unfinished_children += count
        runtime.count(parent)


def _end_cut_off(runtime: Runtime, nodes: Sequence[Node]) -> None:
    """End those whom an ancestor's final turn had named as cut off, and whom the crash left before they were ended."""
    for node in nodes:  # each after its parent
        parent = node.parent
        if node.rows and _cuts_off(node):
            runtime.residence.end_rows(node, f"{node.name} had ended its turn", is_told=True)
        if parent is not None and node.is_counted and _cuts_off(parent):
            node.sealed = "cancelled"
            node.stop = ("cancelled", f"{parent.name} had ended its turn")
            node.is_told = True
            if node.rows:
                runtime.residence.end_rows(node, node.stop[1])
    for node in reversed(nodes):
        if node.sealed == "cancelled" and node.is_counted:
            end_sealed(runtime, node)


def _cuts_off(node: Node) -> bool:
    """Whether what is below the node was being ended."""
    ended, status = node.session.ended, node.session.status
    if node.sealed is not None or status == "closed":
        return True
    return status == "settling" and ended is not None and bool(ended.fact.survivors)


def _is_repeatable(node: Node, name: str) -> bool:
    tool = node.tools.get(name)
    return tool is not None and (tool.idempotent or not tool.effect)

"""Looking into a store while whoever owns it goes on, without becoming its owner."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from ..errors import RecordError, StoreDamagedError, UnknownAgentError
from ..messages import Usage
from ..records import Head
from ..session import Session
from ..stores import Births, Store, Tail, open_store, parse_url, read_tail, state_of
from .entering import load_sessions, read_profiles
from .outcome import AgentView
from .recovery import later_heads, read_heads, tail_heads
from .views import view_of_head, with_descendants

__all__ = ["Tree", "read_lineage", "read_roots", "read_session", "read_store"]

_PAGE = 4_096
_NO_USAGE = Usage()


class Tree(msgspec.Struct, frozen=True):
    """A root, and what is below it, in short."""

    root: AgentView
    agents: int
    """Of the whole tree, the root among them."""
    is_unfinished: bool
    """An agent below the root is: also below a map's root, which itself is never in a turn."""
    is_owned: bool
    """By a process that lives."""
    first_task: str
    """Of the first child of a root that has no task itself; empty where there is none."""


async def read_store(url: str) -> list[AgentView]:
    """Return every agent of the store at ``url`` as it stands on disk, in order of id.

    The store is opened read-only; its owner is not disturbed. An unfinished agent whose owner is gone has the status
    ``interrupted``. Checkpoints.

    Raises:
        UsageError, StoreError: the address, or what is there, cannot be used.
    """
    async with _read_only(url) as store:
        statistics = await store.statistics()
        _, tail = await tail_heads(store, statistics.heads_seq)
        heads = await read_heads(store, tail)
        profiles = await read_profiles(store, {head.profile for head in heads})
        owner = statistics.owner
    owned = owner is not None and state_of(owner) != "dead"
    depths: dict[int, int] = {0: -1}
    views = []
    for head in _closed_with_ancestors(heads):
        depths[head.agent] = depth = depths.get(head.parent, -1) + 1
        views.append(view_of_head(head, owned=owned, depth=depth, profile=profiles.get(head.profile)))
    return with_descendants(views)


async def read_roots(url: str) -> list[Tree]:
    """Return the trees of the store at ``url`` in order of their roots' ids.

    As ``read_store`` otherwise, but of what is below the roots only unfinished agents are looked at, and those that
    records after the heads belong to: a root's head counts the others. While the owner lives, of these records only the
    roots' are replayed, so ``is_unfinished`` may be as old as the heads.
    """
    async with _read_only(url) as store:
        statistics = await store.statistics()
        owned = statistics.owner is not None and state_of(statistics.owner) != "dead"
        tail = await read_tail(store, statistics.heads_seq)
        roots = {head.agent: head async for page in _pages(store, roots=True) for head in page}
        births = Births()
        known: set[int] = set()
        unfinished: set[int] = set()
        behind: dict[int, Head | None] = {}
        at_work: dict[int, Head] = {}
        async for page in _pages(store, unfinished=True):
            at_work |= {head.agent: head for head in page if head.parent and _has_used(head)}
            behind |= {} if owned else _behind(page, tail)
            unfinished.update([head.root for head in page if head.parent and head.agent not in behind])
            births.add([head for head in page if head.agent in tail.last_seq])
            known.update([head.agent for head in page if head.agent in tail.last_seq])
        rest = [agent for agent in tail.last_seq if agent not in known]
        is_counted = all(head.counted_agent for head in roots.values())  # not in heads made anew, or of old
        async for page in _pages(store, agents=rest if is_counted else None):
            behind |= {} if owned else _behind(page, tail)
            births.add([head for head in page if head.agent not in known])
            known.update([head.agent for head in page if head.agent in tail.last_seq])
        behind |= {agent: None for agent in tail.last_seq if agent not in known}
        behind |= _behind(roots.values(), tail)
        later = await later_heads(store, statistics.heads_seq, tail, behind)
        new = [head for agent, head in later.items() if agent not in known]
        births.add(new)
        roots |= {agent: head for agent, head in later.items() if not head.parent}
        at_work |= later
        unfinished.update([head.root for head in later.values() if head.unfinished and head.parent])
        roots = {agent: births.counted(roots[agent]) for agent in sorted(roots)}
        firsts = {agent: await _first_task(store, head, new) for agent, head in roots.items() if not head.task}
        profiles = await read_profiles(store, {head.profile for head in roots.values()})
    views = [view_of_head(head, owned=owned, profile=profiles.get(head.profile)) for head in roots.values()]
    views += [view_of_head(head, owned=owned) for agent, head in at_work.items() if head.parent]
    return [
        Tree(view, head.descendants + 1, agent in unfinished, owned, firsts.get(agent, ""))
        for view, (agent, head) in zip(with_descendants(views), roots.items(), strict=False)
    ]


def _closed_with_ancestors(heads: Iterable[Head]) -> Iterator[Head]:
    """``heads``, parents first, with those as closed that were closed with an ancestor while out of memory.

    Of them that is written down as they come back (``Residence.put_back``).
    """
    closed: dict[int, int] = {}
    for head in heads:
        above = closed.get(head.parent, 0)
        if head.status == "idle" and not head.unfinished and above > head.last_seq:
            head = msgspec.structs.replace(head, status="closed")  # noqa: PLW2901
        if head.status == "closed":
            closed[head.agent] = max(above, head.last_seq)
        yield head


def _has_used(head: Head) -> bool:
    return bool(head.unreported_nano or head.unpriced or head.usage != _NO_USAGE)


def _behind(heads: Iterable[Head], tail: Tail) -> dict[int, Head]:
    """Those of ``heads`` that later records belong to, by agent."""
    return {head.agent: head for head in heads if head.last_seq < tail.last_seq.get(head.agent, 0)}


async def _first_task(store: Store, root: Head, new: Sequence[Head]) -> str:
    """Return the task of a root's first child, which is most often the next agent; ``new`` are not in the store."""
    if not root.children:
        return ""
    first = min([head for head in new if head.parent == root.agent], key=lambda head: head.agent, default=None)
    after, limit = root.agent, 16
    while page := await store.heads(after=after, limit=limit):
        for head in page:
            if first is not None and head.agent > first.agent:
                return first.task
            if head.parent == root.agent:
                return head.task
        after, limit = page[-1].agent, min(limit * 4, _PAGE)
    return first.task if first is not None else ""


async def _pages(
    store: Store, *, agents: Sequence[int] | None = None, roots: bool = False, unfinished: bool = False
) -> AsyncIterator[list[Head]]:
    """The heads in pages: of ``agents`` in their order, else of all that are asked for."""
    if agents is not None:
        for start in range(0, len(agents), _PAGE):
            yield await store.heads(agents=agents[start : start + _PAGE])
        return
    after = 0
    while page := await store.heads(roots=roots, unfinished=unfinished, after=after, limit=_PAGE):
        yield page
        after = page[-1].agent


async def read_lineage(url: str, agent: int) -> list[AgentView]:
    """Return the agents from the root of ``agent`` down to itself, as ``read_store`` does; none where there is no such.

    Only what is told of them is read. Checkpoints.

    Raises:
        UsageError, StoreError: as ``read_store``.
    """
    lineage: list[Head] = []
    async with _read_only(url) as store:
        statistics = await store.statistics()
        tail = await read_tail(store, statistics.heads_seq)
        while agent:
            heads = await store.heads(agents=[agent])
            if (heads[0].last_seq if heads else 0) < tail.last_seq.get(agent, 0):
                behind: dict[int, Head | None] = {agent: heads[0] if heads else None}
                heads = list((await later_heads(store, statistics.heads_seq, tail, behind)).values())
            if not heads:
                return []
            lineage.append(heads[0])
            agent = heads[0].parent
        profiles = await read_profiles(store, {head.profile for head in lineage})
        owner = statistics.owner
    owned = owner is not None and state_of(owner) != "dead"
    return [
        view_of_head(head, owned=owned, depth=depth, profile=profiles.get(head.profile))
        for depth, head in enumerate(_closed_with_ancestors(reversed(lineage)))
    ]


async def read_session(url: str, agent: int) -> Session:
    """Return one agent's session, whole, as it stands on disk. Checkpoints.

    Raises:
        UnknownAgentError: the store has no such agent.
        UsageError, StoreError: as ``read_store``.
    """
    async with _read_only(url) as store:
        tail = await read_tail(store, (await store.statistics()).heads_seq)
        heads = await store.heads(agents=[agent])
        last_seq = max([tail.last_seq.get(agent, 0), *[head.last_seq for head in heads]])
        if not last_seq:
            raise UnknownAgentError(f"no agent {agent} in {parse_url(url).url}; nanotrio ls names those there are")
        ends = [(last_seq, heads[0].snapshot_seq if heads else 0)]
        session = (await load_sessions(store, [agent], ends))[0]
        session.messages = [*session.messages]  # a list of the reader's own, also where nothing was said
        return session


@asynccontextmanager
async def _read_only(url: str) -> AsyncIterator[Store]:
    store = await open_store(url, read_only=True)
    try:
        yield store
    except (RecordError, StoreDamagedError) as error:
        address = parse_url(url)
        place = address.server.url if address.server else str(address.path)
        if place in str(error):
            raise
        raise type(error)(f"{address.url}: {error}") from error  # it only tells of a record
    finally:
        await store.aclose()

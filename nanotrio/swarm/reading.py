"""Looking into a store while whoever owns it goes on, without becoming its owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from ..errors import StoreDamagedError, UnknownAgentError
from ..records import Head, Profile
from ..session import Session
from ..stores import Store, open_store, read_tail, state_of
from .entering import load_sessions, read_profiles
from .outcome import AgentView
from .recovery import later_heads, read_heads, tail_heads
from .views import view_of_head

__all__ = ["Tree", "read_roots", "read_session", "read_store"]

_PAGE = 4_096


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
    """Of the root's first child; empty where it has none."""


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
        profiles = await _profiles(store, url, heads)
        owner = statistics.owner
    owned = owner is not None and state_of(owner) != "dead"
    depths: dict[int, int] = {0: -1}
    views = []
    for head in heads:
        depths[head.agent] = depth = depths.get(head.parent, -1) + 1
        views.append(view_of_head(head, owned=owned, depth=depth, profile=profiles.get(head.profile)))
    return views


async def read_roots(url: str) -> list[Tree]:
    """Return the trees of the store at ``url`` in order of their roots' ids.

    As ``read_store`` otherwise, but of a million agents a few thousand are in memory at a time, and of what the heads
    of a store at work do not tell yet only the part is replayed that is the roots'; ``is_unfinished`` may be as old.
    """
    async with _read_only(url) as store:
        statistics = await store.statistics()
        tail = await read_tail(store, statistics.heads_seq)
        below = _Below()
        roots: dict[int, Head] = {}
        without_head = set(tail.last_seq)
        after = 0
        while page := await store.heads(after=after, limit=_PAGE):
            after = page[-1].agent
            roots.update({head.agent: head for head in page if not head.parent})
            below.add(page)
            without_head.difference_update([head.agent for head in page])
        behind: dict[int, Head | None] = dict.fromkeys(without_head)
        behind |= {agent: head for agent, head in roots.items() if head.last_seq < tail.last_seq.get(agent, 0)}
        later = await later_heads(store, statistics.heads_seq, tail, behind)
        below.add([later[agent] for agent in without_head])
        roots |= {agent: head for agent, head in later.items() if not head.parent}
        profiles = await _profiles(store, url, list(roots.values()))
        owner = statistics.owner
    owned = owner is not None and state_of(owner) != "dead"
    trees = []
    for agent in sorted(roots):
        head = roots[agent]
        view = view_of_head(head, owned=owned, profile=profiles.get(head.profile))
        first = below.first.get(agent, (0, ""))[1]
        trees.append(Tree(view, below.sizes[agent], agent in below.unfinished, owned, first))
    return trees


class _Below:
    """What the heads of a store say of each root's tree."""

    def __init__(self) -> None:
        self.sizes: Counter[int] = Counter()
        self.unfinished: set[int] = set()
        """Roots below which one is."""
        self.first: dict[int, tuple[int, str]] = {}
        """Id and task of each root's first child."""

    def add(self, heads: Sequence[Head]) -> None:
        self.sizes.update([head.root or head.agent for head in heads])
        self.unfinished.update([head.root for head in heads if head.unfinished and head.parent])
        for head in heads:
            if head.parent == head.root != 0 and (head.root not in self.first or head.agent < self.first[head.root][0]):
                self.first[head.root] = (head.agent, head.task)


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
            raise UnknownAgentError(f"no agent {agent} in {url}; nanotrio ls names those there are")
        ends = [(last_seq, heads[0].snapshot_seq if heads else 0)]
        return (await load_sessions(store, [agent], ends))[0]


@asynccontextmanager
async def _read_only(url: str) -> AsyncIterator[Store]:
    store = await open_store(url, read_only=True)
    try:
        yield store
    finally:
        await store.aclose()


async def _profiles(store: Store, url: str, heads: Sequence[Head]) -> dict[int, Profile]:
    try:
        return await read_profiles(store, {head.profile for head in heads})
    except StoreDamagedError as error:
        raise StoreDamagedError(f"{url}: {error}") from error

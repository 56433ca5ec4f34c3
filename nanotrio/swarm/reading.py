"""Looking into a store while whoever owns it goes on, without becoming its owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ..errors import StoreDamagedError, UnknownAgentError
from ..records import Head, Profile
from ..session import Session
from ..stores import Store, open_store, read_tail, state_of
from .entering import load_sessions, read_profiles
from .outcome import AgentView
from .recovery import later_heads, read_heads, tail_heads
from .views import view_of_head

__all__ = ["read_roots", "read_session", "read_store"]

_PAGE = 4_096


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


async def read_roots(url: str) -> list[tuple[AgentView, int]]:
    """Return the roots of the store at ``url`` in order of id, each with how many agents its tree has.

    As ``read_store`` otherwise, but of a million agents a few thousand are in memory at a time, and of what the heads
    of a store at work do not tell yet only the part is replayed that is the roots'.
    """
    async with _read_only(url) as store:
        statistics = await store.statistics()
        tail = await read_tail(store, statistics.heads_seq)
        roots: dict[int, Head] = {}
        sizes: Counter[int] = Counter()
        without_head = set(tail.last_seq)
        after = 0
        while page := await store.heads(after=after, limit=_PAGE):
            after = page[-1].agent
            roots.update({head.agent: head for head in page if not head.parent})
            sizes.update([head.root or head.agent for head in page])
            without_head.difference_update([head.agent for head in page])
        behind: dict[int, Head | None] = dict.fromkeys(without_head)
        behind |= {agent: head for agent, head in roots.items() if head.last_seq < tail.last_seq.get(agent, 0)}
        later = await later_heads(store, statistics.heads_seq, tail, behind)
        sizes.update([later[agent].root or agent for agent in without_head])
        roots |= {agent: head for agent, head in later.items() if not head.parent}
        profiles = await _profiles(store, url, list(roots.values()))
        owner = statistics.owner
    owned = owner is not None and state_of(owner) != "dead"
    ordered = [roots[agent] for agent in sorted(roots)]
    views = [view_of_head(head, owned=owned, profile=profiles.get(head.profile)) for head in ordered]
    return [(view, sizes[view.id]) for view in views]


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

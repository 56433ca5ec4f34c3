"""Looking into a store without owning it, whoever does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..errors import UnknownAgentError
from ..records import Head
from ..session import Session
from ..stores import Store, open_store, state_of
from .outcome import AgentView
from .recovery import load_sessions, read_heads, read_profiles, tail_heads
from .swarm import view_of_head

__all__ = ["read_session", "read_store"]


async def read_store(url: str) -> list[AgentView]:
    """Return every agent of a store as it stands, in order of creation.

    An unfinished agent is ``interrupted`` where no process has the store. Nothing is written. Checkpoints.

    Raises:
        UsageError: the address itself is wrong.
        StoreError: what is there cannot be read.
    """
    async with _opened(url) as (store, heads, is_owned):
        profiles = await read_profiles(store, {head.profile for head in heads})
        depths: dict[int, int] = {}
        views = []
        for head in heads:
            depth = depths[head.agent] = depths.get(head.parent, -1) + 1
            profile = profiles.get(head.profile)
            views.append(view_of_head(head, owned=is_owned, depth=depth, profile=profile))
        return views


async def read_session(url: str, agent: int) -> Session:
    """Return one agent's session, rebuilt from its records. Nothing is written. Checkpoints.

    Raises:
        UnknownAgentError: the store has no such agent.
        UsageError, StoreError: as ``read_store``.
    """
    async with _opened(url) as (store, heads, _):
        for head in heads:
            if head.agent == agent:
                (session,) = await load_sessions(store, [agent], [(head.last_seq, head.snapshot_seq)])
                return session
    raise UnknownAgentError(f"no agent {agent} in {url}; nanotrio ls --store {url} --all names those there are")


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[tuple[Store, list[Head], bool]]:
    """Yield a store opened for reading, its heads as they really stand, and whether a process has it."""
    store = await open_store(url, read_only=True)
    try:
        statistics = await store.statistics()
        owner = statistics.owner
        _, tail = await tail_heads(store, statistics.heads_seq)
        yield (store, await read_heads(store, tail), owner is not None and state_of(owner) != "dead")
    finally:
        await store.aclose()

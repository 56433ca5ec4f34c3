"""Looking into a store while whoever owns it goes on, without becoming its owner."""

from __future__ import annotations

from ..errors import StoreDamagedError, UnknownAgentError
from ..records import Head
from ..session import Session
from ..stores import Store, open_store, state_of
from .entering import load_sessions, read_profiles
from .outcome import AgentView
from .recovery import read_heads, tail_heads
from .views import view_of_head

__all__ = ["read_session", "read_store"]


async def read_store(url: str) -> list[AgentView]:
    """Return every agent of the store at ``url`` as it stands on disk, in order of id.

    The store is opened read-only; its owner is not disturbed. An unfinished agent whose owner is gone has the status
    ``interrupted``. Checkpoints.

    Raises:
        UsageError, StoreError: the address, or what is there, cannot be used.
    """
    store = await open_store(url, read_only=True)
    try:
        heads = await _true_heads(store)
        try:
            profiles = await read_profiles(store, {head.profile for head in heads})
        except StoreDamagedError as error:
            raise StoreDamagedError(f"{url}: {error}") from error
        owner = (await store.statistics()).owner
    finally:
        await store.aclose()
    owned = owner is not None and state_of(owner) != "dead"
    depths: dict[int, int] = {0: -1}
    views = []
    for head in heads:
        depths[head.agent] = depth = depths.get(head.parent, -1) + 1
        views.append(view_of_head(head, owned=owned, depth=depth, profile=profiles.get(head.profile)))
    return views


async def read_session(url: str, agent: int) -> Session:
    """Return one agent's session, whole, as it stands on disk. Checkpoints.

    Raises:
        UnknownAgentError: the store has no such agent.
        UsageError, StoreError: as ``read_store``.
    """
    store = await open_store(url, read_only=True)
    try:
        heads = [head for head in await _true_heads(store) if head.agent == agent]
        if not heads:
            raise UnknownAgentError(f"no agent {agent} in {url}; nanotrio ls names those there are")
        head = heads[0]
        return (await load_sessions(store, [agent], [(head.last_seq, head.snapshot_seq)]))[0]
    finally:
        await store.aclose()


async def _true_heads(store: Store) -> list[Head]:
    _, heads = await tail_heads(store, (await store.statistics()).heads_seq)
    return await read_heads(store, heads)

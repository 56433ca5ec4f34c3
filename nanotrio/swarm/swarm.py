"""An open swarm, for the program that uses it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Unpack

import msgspec
import trio

from ..errors import ClosedError, UnknownAgentError
from ..records import Head, Profile
from ..tools import Leftover, end_leftovers, find_leftovers
from ..turn import Restart
from .agent import Agent, view_of
from .events import Event
from .forking import fork_live, fork_stored
from .mailroom import wait_for
from .map_values import MapOptions
from .mapping import MapResults, open_map
from .node import Node
from .outcome import AgentView
from .pump import QUOTA
from .recovery import read_heads, resume_tree
from .runtime import Runtime
from .spawning import SpawnOptions, profile_of
from .tree import check_room, check_spawn, find, spawn_nowait

__all__ = ["Swarm", "SwarmStatistics", "view_of_head"]


class SwarmStatistics(msgspec.Struct, frozen=True):
    """Counts of a swarm at one moment."""

    resident: int
    """Agents in memory."""
    live: int
    """Agents with a task."""
    active: int
    """Agents that hold a slot."""
    pending: int
    """Agents that wait for a slot to start."""
    queued_records: int
    """Records that are not yet durable."""
    durable_seq: int
    commits: int
    store_trouble: str
    """Why the store takes no writes at the moment; empty when it does."""
    memory_trouble: str
    """Why no new agents are started at the moment; empty when they are."""


class Swarm:
    """A tree of agents on one store; made by ``open_swarm``. Use it on the Trio thread that opened it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def spawn(self, prompt: str, **options: Unpack[SpawnOptions]) -> Agent:
        """Start a root agent on ``prompt`` and return its handle once the prompt is durable.

        ``options`` are those of ``SpawnOptions``: name, model, system, tools, budget_usd, timeout_seconds, limits,
        directory, permission_mode, result_type, uuid. What is not given is the swarm's.

        Checkpoints. Cancelled, the agent may have been started.

        Raises:
            UsageError: a value that cannot be used; nothing was started.
            LimitError: a bound or budget of the lineage refuses it.
            ModelError: the model's key is missing.
        """
        (agent,) = await self.spawn_below(None, [prompt], options)
        return agent

    async def spawn_below(self, parent: Node | None, prompts: Sequence[str], options: SpawnOptions) -> list[Agent]:
        """Start an agent on each of ``prompts``; what ``Swarm.spawn`` and ``Agent.spawn`` stand on."""
        self._check_open()
        await self._runtime.journal.room()
        if len(prompts) >= QUOTA:
            await self._runtime.pump.long_turn()
        agents = self.spawn_below_nowait(parent, prompts, options)
        await self._runtime.journal.durable(self._runtime.append())
        return agents

    def spawn_below_nowait(
        self, parent: Node | None, prompts: Sequence[str], options: SpawnOptions, names: Sequence[str] = ()
    ) -> list[Agent]:
        """Do the same within the open group, whether or not there is room; ``names`` are used in place of one name."""
        self._check_open()
        runtime = self._runtime
        names = names or [options.get("name", "agent")] * len(prompts)
        profile = profile_of(runtime, parent, options)
        check_room(runtime, parent, len(prompts))
        cleaned = [check_spawn(runtime, parent, *each, profile) for each in zip(prompts, names, strict=True)]
        uuid = options.get("uuid", "")
        nodes = [spawn_nowait(runtime, parent, *each, profile, uuid) for each in zip(cleaned, names, strict=True)]
        return [Agent(self, node) for node in nodes]

    def map(
        self,
        prompt: str | Callable[[Any], str],
        items: Iterable[Any] | AsyncIterable[Any],
        **options: Unpack[MapOptions],
    ) -> AbstractAsyncContextManager[MapResults]:
        """Put ``prompt`` to an agent for each of ``items``: an async context manager over a stream of ``MapResult``.

        ``prompt`` is a template with ``{item}`` and the names of an item's fields, where it has some, or a function
        from an item to its prompt. ``options`` are those of ``MapOptions``; what is not given is the swarm's.

        Results come in the order of the items, each once it is durable. A failed item is a value. Items are read as
        results are taken, a window ahead, so any number of them needs the same memory. Leaving the block starts no
        more; agents at work go on to their ends, below ``results.agent``.

        Raises:
            UsageError: on entering: a value that cannot be used; nothing was started.
            ClosedError: from the stream: an agent was interrupted, as the swarm is closing.
        """
        return open_map(self, prompt, items, options)

    def agent(self, address: int | str) -> Agent:
        """Return the handle of an agent in memory, by its id, its name, or its root's uuid.

        Raises:
            UnknownAgentError: there is none, or several are called so; ``resume`` brings one in from the store.
        """
        node = find(self._runtime, address)
        if node is None:
            raise UnknownAgentError(
                f"no agent {address!r} in this swarm's memory; resume({address!r}) looks in the store"
            )
        return Agent(self, node)

    def agents(self) -> list[AgentView]:
        """Return every agent in memory as it stands, and the unfinished ones of the store as ``interrupted``."""
        cold = [
            head for head in self._runtime.cold.values() if head.unfinished and head.agent not in self._runtime.nodes
        ]
        views = [view_of(node) for node in self._runtime.nodes.values()] + [
            view_of_head(head, owned=False) for head in cold
        ]
        return sorted(views, key=lambda view: view.id)

    async def resume(self, address: int | str) -> Agent:
        """Bring the tree of an agent's root in from the store and let its unfinished agents go on; return the agent.

        An agent that was cancelled or closed takes mail again. ``address`` is an id, ``NAME.N`` or a root's uuid.
        Checkpoints.

        Raises:
            UnknownAgentError: the store has no such agent.
            UnknownToolError: an agent of the tree uses a tool that is not registered; nothing was started.
        """
        self._check_open()
        runtime = self._runtime
        node = find(runtime, address)
        if node is None:
            head = await self._head(address)
            if head.root not in runtime.nodes:
                await resume_tree(runtime, head.root)
            node = runtime.nodes[head.agent]
        while ending := [each for each in node.lineage() if each.sealed == "cancelled" and each.is_counted]:
            await wait_for(runtime, ending, "all", None)
        reopen(runtime, node)
        await runtime.journal.durable(runtime.append())
        return Agent(self, node)

    async def fork(self, address: int | str, *, uuid: str = "") -> Agent:
        """Fork an agent, in memory or in the store, without taking it up; see ``Agent.fork``.

        ``address`` is as for ``resume``; ``uuid`` names the fork's session, in place of a new one. Checkpoints.

        Raises:
            UnknownAgentError: the store has no such agent.
            UnknownToolError: it uses a tool that is not registered; nothing was made.
            UsageError: no turn of it has ended.
        """
        self._check_open()
        runtime = self._runtime
        await runtime.journal.room()
        node = find(runtime, address)
        if node is not None:
            await runtime.transcripts.restore(node)
            made = fork_live(runtime, node, uuid)
        else:
            made = await fork_stored(runtime, await self._head(address), uuid)
        await runtime.journal.durable(runtime.append())
        return Agent(self, made)

    async def resume_all(self) -> list[Agent]:
        """Resume every root that has unfinished agents; return the roots' handles."""
        self._check_open()
        roots = sorted({head.root for head in self._runtime.cold.values() if head.unfinished})
        return [await self.resume(root) for root in roots]

    async def _head(self, address: int | str) -> Head:
        heads = await read_heads(self._runtime.store, self._runtime.cold)
        found = [head for head in heads if address in (head.agent, head.name, head.uuid, str(head.agent))]
        if not found:
            raise UnknownAgentError(f"no agent {address!r} in the store; nanotrio ls names those there are")
        return found[0]

    async def flush(self) -> None:
        """Wait until everything that happened so far is durable. Checkpoints."""
        self._runtime.append()
        await self._runtime.journal.flush()

    def events(self) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[Event]]:
        """Watch the whole swarm: an async context manager over a stream of events."""
        return self._runtime.watchers.watch(None)

    async def leftovers(self) -> list[Leftover]:
        """Return processes that a former owner's agents left running when it was killed."""
        return await find_leftovers(self._runtime.token, but=self._runtime.owner_token)

    async def end_leftovers(self) -> list[Leftover]:
        """Kill the processes that ``leftovers`` finds, and wait until they are gone; return what was found.

        Do so before ``resume``: a command that outlived its agent must not go on beside the agent that is told of it.
        """
        seconds = self._runtime.settings.limits.max_reap_seconds
        return await end_leftovers(self._runtime.token, seconds, but=self._runtime.owner_token)

    def statistics(self) -> SwarmStatistics:
        """Return counts; does not checkpoint."""
        runtime = self._runtime
        journal = runtime.journal.statistics()
        return SwarmStatistics(
            resident=len(runtime.nodes),
            live=runtime.live,
            active=runtime.slots.active,
            pending=runtime.slots.pending,
            queued_records=journal.queued_records,
            durable_seq=journal.durable_seq,
            commits=journal.batches,
            store_trouble=journal.trouble,
            memory_trouble=runtime.ceiling.trouble(),
        )

    def _check_open(self) -> None:
        if self._runtime.is_closing:
            raise ClosedError("the swarm is closing; open it again to go on")


def reopen(runtime: Runtime, node: Node) -> None:
    """Let a closed agent and its closed ancestors take mail again."""
    for each in node.lineage():
        each.sealed = None if each.sealed == "cancelled" else each.sealed
        each.stop = None
        each.is_told = False
        if each.session.status == "closed":
            runtime.absorb(each, Restart())


def view_of_head(head: Head, *, owned: bool, depth: int = 0, profile: Profile | None = None) -> AgentView:
    """Return a head as a value; an unfinished agent of a store that nobody owns is ``interrupted``."""
    return AgentView(
        id=head.agent,
        name=head.name,
        parent=head.parent,
        root=head.root,
        depth=depth,
        status=head.status if owned or not head.unfinished else "interrupted",
        model=head.model,
        turn=head.turn,
        outcome=head.outcome,
        usage=head.usage,
        spent_nano=head.spent_nano,
        uncertain_nano=head.uncertain_nano,
        unpriced=head.unpriced,
        waiting_for="",
        task=head.task,
        uuid=head.uuid,
        created_us=head.created_us,
        updated_us=head.updated_us,
        directory=profile.directory if profile else "",
        permission_mode=profile.permission_mode if profile else "",
        tools=profile.tools if profile else (),
    )

"""An open swarm, for the program that uses it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Unpack

import msgspec
import trio

from ..agent_name import name_of, number_of
from ..errors import ClosedError, UnknownAgentError
from ..given import a_text, each_of
from ..records import Head, OutcomeStatus
from ..stores import Owner
from ..tools import Leftover, end_leftovers, find_leftovers
from ..turn import Restart
from .agent import Agent
from .events import Event
from .forking import fork_live, fork_stored
from .growing import check_room, check_spawn, find, spawn_alike, spawn_nowait, with_uuid
from .mailroom import wait_for
from .map_values import MapOptions
from .mapping import MapResults, open_map
from .node import Node
from .outcome import AgentView
from .pump import QUOTA
from .recovery import find_head, resume_tree, sole_session
from .runtime import Runtime
from .spawning import SpawnOptions, profile_of
from .views import view_of, view_of_head, with_descendants

__all__ = ["Swarm", "SwarmStatistics"]


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
    outcomes: dict[OutcomeStatus, int]
    """Agents that were done since the swarm was opened, by outcome; each time it was done counts.

    So it shows how far a tree of any size has come, those among it that have left memory.
    """


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
            UsageError: a value that cannot be used, or the uuid of a session that there is; nothing was started.
            LimitError: a bound or budget of the lineage refuses it.
            ModelError: the model's key is missing.
        """
        (agent,) = await self.spawn_below(None, [prompt], options)
        return agent

    async def spawn_below(self, parent: Node | None, prompts: Sequence[str], options: SpawnOptions) -> list[Agent]:
        """Start an agent on each of ``prompts``; what ``Swarm.spawn`` and ``Agent.spawn`` stand on."""
        self._check_open()
        prompts = [*each_of(prompts, "prompts")]
        await self._runtime.journal.room()
        if len(prompts) >= QUOTA:
            await self._runtime.pump.long_turn()
        uuid = options.get("uuid") if parent is None else None
        async with sole_session(self._runtime, uuid if isinstance(uuid, str) else ""):
            agents = self.spawn_below_nowait(parent, prompts, options)
        await self._runtime.journal.durable(self._runtime.append())
        return agents

    def spawn_below_nowait(
        self, parent: Node | None, prompts: Sequence[str], options: SpawnOptions, names: Sequence[str] = ()
    ) -> list[Agent]:
        """Do the same within the open group, whether or not there is room; ``names`` are used in place of one name."""
        self._check_open()
        runtime = self._runtime
        if parent is not None:
            runtime.residence.put_back(parent)
        profile = profile_of(runtime, parent, options)
        check_room(runtime, parent, len(prompts))
        name = names[0] if names else options.get("name") or "agent"
        cleaned = check_spawn(runtime, parent, prompts, name, profile)  # all of them, before the first is made
        made: list[Node | Head] = []
        if names:
            made += [spawn_nowait(runtime, parent, *each, profile) for each in zip(cleaned, names, strict=True)]
        else:
            made = spawn_alike(runtime, parent, cleaned, name, profile, options.get("uuid") or "")
        root = parent.root.session.uuid if parent is not None else ""
        return [Agent(self, each, root) for each in made]

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
            UsageError: on entering: a value that cannot be used; nothing was started. From the stream: the template
                asks for what the first item does not have; no agent was started.
            ClosedError: from the stream: an agent was interrupted, as the swarm is closing.
        """
        return open_map(self, prompt, items, options)

    def agent(self, address: int | str) -> Agent:
        """Return the handle of an agent in memory, or of one that waits for its first slot.

        ``address`` is an id, ``NAME.N``, a bare name that only one in memory has, or a root's uuid.

        Raises:
            UnknownAgentError: there is none, or several are called so; ``find`` looks in the store too.
        """
        runtime = self._runtime
        node = find(runtime, address)
        runtime.append()
        if node is not None:
            return Agent(self, node)
        row = self._pending(address)
        if row is None and (node := with_uuid(runtime, str(address))) is not None:
            return Agent(self, node)
        if row is None:
            raise UnknownAgentError(
                f"no agent {address!r} in this swarm's memory; await find({address!r}) brings in one that was finished "
                f"here, and resume({address!r}) one of an unfinished tree"
            )
        return row

    def _pending(self, address: int | str) -> Agent | None:
        """Return the handle of a pending agent that is not in memory, by its id or its name."""
        runtime = self._runtime
        rows = runtime.slots.rows
        place = rows.find(number_of(address))
        if place < 0:
            return None
        row = rows.row(place)
        name = name_of(row.kind.stem, row.agent)
        if address not in (row.agent, str(row.agent), name):
            return None
        known = runtime.residence.handles.get(row.agent)
        if isinstance(known, Agent):
            return known
        root = runtime.nodes[row.kind.parent].root
        head = Head(row.agent, row.kind.parent, root.id, name, "pending", True, row.seq, 0, profile=row.kind.profile)
        return Agent(self, head, root.session.uuid)

    async def find(self, address: int | str) -> Agent:
        """Return the handle of an agent, in memory or not. Nothing is started. Checkpoints.

        ``address`` is as for ``agent``. A tree of an earlier run that is unfinished has to be resumed first.

        Raises:
            UnknownAgentError: there is none, or it is in a tree that ``resume`` takes up.
        """
        await trio.lowlevel.checkpoint()
        node = find(self._runtime, address)
        self._runtime.append()
        if node is None:
            head = await find_head(self._runtime, address)
            if head.root not in self._runtime.unresumed:
                self._runtime.residence.taken_up.add(head.root)
            await self._runtime.residence.bring_in((head.agent,))
            node = self._runtime.nodes.get(head.agent)
            if node is None:
                raise UnknownAgentError(f"{head.name} is not taken up; resume({address!r}) does that")
        self._runtime.append()
        return Agent(self, node)

    def agents(self) -> list[AgentView]:
        """Return every agent in memory as it stands, and unfinished ones of the store as ``interrupted``.

        Of many that were finished, or that wait for their first slot, most are in the store alone: ``statistics`` has
        counts, and ``read_store`` all of them. Of those that were pending when the swarm was opened the first thousand
        are shown.
        """
        runtime = self._runtime
        views = [view_of(node) for node in runtime.nodes.values()]
        views += [view_of_head(head, owned=False) for head in runtime.unresumed.heads()]
        return with_descendants(sorted(views, key=lambda view: view.id))

    async def resume(self, address: int | str) -> Agent:
        """Bring the tree of an agent's root in from the store and let its unfinished agents go on; return the agent.

        An agent that was cancelled or closed takes mail again. ``address`` is an id, ``NAME.N`` or a root's uuid.
        Checkpoints.

        Raises:
            UnknownAgentError: the store has no such agent.
            UnknownToolError: an agent of the tree uses a tool that is not registered; nothing was started.
            UsageError, ModelError: or a model that is not to be had here.
        """
        self._check_open()
        runtime = self._runtime
        node = find(runtime, address)
        runtime.append()
        if node is None:
            head = await find_head(runtime, address)
            await resume_tree(runtime, head.root)
            await runtime.residence.bring_in((head.agent,))
            node = runtime.nodes.get(head.agent)
            if node is None:
                raise UnknownAgentError(f"no agent {address!r} in the store; nanotrio ls names those there are")
        while ending := [each for each in node.lineage() if each.sealed == "cancelled" and each.is_counted]:
            await wait_for(runtime, ending, "all", None)
        await runtime.residence.give_back_of(node)
        runtime.residence.put_back(node)
        reopen(runtime, node)
        await runtime.journal.durable(runtime.append())
        return Agent(self, node)

    async def fork(self, address: int | str, *, uuid: str = "") -> Agent:
        """Fork an agent, in memory or in the store, without taking it up; see ``Agent.fork``.

        ``address`` is as for ``resume``; ``uuid`` names the fork's session, in place of a new one. Checkpoints.

        Raises:
            UnknownAgentError: the store has no such agent.
            UnknownToolError: it uses a tool that is not registered; nothing was made.
            UsageError: no turn of it has ended, or there is a session of that uuid.
        """
        self._check_open()
        runtime = self._runtime
        a_text(uuid, "uuid")
        await runtime.journal.room()
        async with sole_session(runtime, uuid):
            node = find(runtime, address)
            runtime.append()
            if node is None:
                head = await find_head(runtime, address)
                await runtime.residence.bring_in((head.agent,))  # of a tree that goes on here
                node = runtime.nodes.get(head.agent)
            if node is not None:
                await runtime.transcripts.restore(node)
            made = await fork_stored(runtime, head, uuid) if node is None else fork_live(runtime, node, uuid)
        await runtime.journal.durable(runtime.append())
        return Agent(self, made)

    async def resume_all(self) -> list[Agent]:
        """Resume every root that has unfinished agents; return the roots' handles."""
        self._check_open()
        with self._runtime.slots.children_held():  # else those of the first root take what interrupted ones are to have
            return [await self.resume(root) for root in self._runtime.unresumed.roots()]

    async def flush(self) -> None:
        """Wait until everything that happened so far is durable. Checkpoints."""
        self._runtime.append()
        await self._runtime.journal.flush()

    def events(self) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[Event]]:
        """Watch the whole swarm: an async context manager over a stream of events."""
        return self._runtime.watchers.watch(None)

    @property
    def taken_from(self) -> Owner | None:
        """The process that lived and had the store when this swarm took it (``takeover=True``); else None."""
        return self._runtime.taken_from

    async def leftovers(self) -> list[Leftover]:
        """Return processes of a former owner's agents that run yet.

        It left them when it was killed; or it lives, the store was taken from it, and it ends them when it finds that
        out, as it next writes.
        """
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
            outcomes=dict(runtime.outcomes),
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
            if each.session.has_news:  # which had not gone back yet, so it is read
                runtime.wake(each)

"""An open swarm, for the program that uses it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import trio

from ..errors import ClosedError, UnknownAgentError, UsageError
from ..limits import Limits, nano_usd
from ..messages import clean_text
from ..records import Head, Profile
from ..tools import TREE_TOOLS, Leftover, Tool, find_leftovers, permission_mode, tighter, tool, tool_name
from .agent import Agent, view_of
from .events import Event
from .node import Node
from .outcome import AgentView
from .recovery import read_heads, resume_tree
from .result import schema_of
from .runtime import Runtime
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


class Swarm:
    """A tree of agents on one store; made by ``open_swarm``. Use it on the Trio thread that opened it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def spawn(
        self,
        prompt: str,
        *,
        name: str = "agent",
        model: str | None = None,
        system: str | None = None,
        tools: Sequence[Tool | Callable[..., Any] | str] | None = None,
        budget_usd: float | None = None,
        timeout_seconds: float | None = None,
        limits: Limits | None = None,
        directory: Path | str | None = None,
        permission_mode: str | None = None,
        result_type: Any = None,
        uuid: str = "",
    ) -> Agent:
        """Start a root agent on ``prompt`` and return its handle once the prompt is durable.

        What is not given is the swarm's. ``tools`` are tools, plain functions, or names of registered ones; the tree's
        own tools come with them, unless some of these are named: then exactly the named ones are given.
        ``budget_usd`` caps the agent and all its descendants over its whole life; ``timeout_seconds`` bounds each
        turn. ``uuid`` names the session in place of a new one. ``result_type`` (a type msgspec knows, or a JSON schema as a dict) is what ``submit_result`` is held to.

        Checkpoints. Cancelled, the agent may have been started.

        Raises:
            UsageError: a value that cannot be used; nothing was started.
            LimitError: a bound or budget of the lineage refuses it.
            ModelError: the model's key is missing.
        """
        agents = await self._spawn(
            None,
            [prompt],
            name=name,
            model=model,
            system=system,
            tools=tools,
            budget_usd=budget_usd,
            timeout_seconds=timeout_seconds,
            limits=limits,
            directory=directory,
            permission_mode=permission_mode,
            result_type=result_type,
            uuid=uuid,
        )
        return agents[0]

    async def _spawn(
        self,
        parent: Node | None,
        prompts: Sequence[str],
        *,
        name: str,
        model: str | None,
        system: str | None,
        tools: Sequence[Tool | Callable[..., Any] | str] | None,
        budget_usd: float | None,
        timeout_seconds: float | None,
        limits: Limits | None,
        directory: Path | str | None,
        permission_mode: str | None,
        result_type: Any,
        uuid: str = "",
    ) -> list[Agent]:
        self._check_open()
        await self._runtime.journal.room()
        runtime = self._runtime
        settings = runtime.settings
        bounds = limits or (parent.limits if parent else settings.limits)
        if timeout_seconds is not None:
            bounds = msgspec.structs.replace(bounds, turn_seconds=_positive(timeout_seconds, "timeout_seconds"))
        if budget_usd is not None or (parent is not None and limits is None):
            budget = None if budget_usd is None else nano_usd(_positive(budget_usd, "budget_usd"))
            bounds = msgspec.structs.replace(bounds, budget_nano=budget)
        above = parent.profile if parent else None
        if system is not None or above is None:
            system_seq = self._system(settings.system if system is None else system)
        else:
            system_seq = above.system
        profile = Profile(
            model=self._model_name(model, above),
            system=system_seq,
            tools=self._tool_names(tools, above),
            limits=bounds,
            directory=str(
                Path(directory).absolute() if directory else above.directory if above else settings.directory
            ),
            permission_mode=self._mode(permission_mode, above),
            result_schema=schema_of(result_type),
            denied_tools=above.denied_tools if above else settings.denied_tools,
            allowed_tools=above.allowed_tools if above else settings.allowed_tools,
        )
        check_room(runtime, parent, len(prompts))
        cleaned = [check_spawn(runtime, parent, prompt, name, profile) for prompt in prompts]
        nodes = [spawn_nowait(runtime, parent, prompt, name, profile, uuid) for prompt in cleaned]
        await runtime.journal.durable(runtime.append())
        return [Agent(self, node) for node in nodes]

    def _system(self, system: str) -> int:
        if not system:
            return 0
        system = self._runtime.redactor.text(clean_text(system))
        seq = self._runtime.burst.content(system.encode())
        self._runtime.systems[seq] = system
        return seq

    def _model_name(self, model: str | None, above: Profile | None) -> str:
        name = model or (above.model if above else None)
        if name is None:
            if self._runtime.settings.model is None:
                raise UsageError(
                    "no model was named; pass model= to open_swarm or spawn, as in 'anthropic/claude-sonnet-4-5'"
                )
            name = self._runtime.settings.model.name
        return name

    def _mode(self, mode: str | None, above: Profile | None) -> str:
        wanted = permission_mode(mode or self._runtime.settings.permission_mode)
        return wanted if above is None else tighter(wanted, permission_mode(above.permission_mode))

    def _tool_names(
        self, tools: Sequence[Tool | Callable[..., Any] | str] | None, above: Profile | None
    ) -> tuple[str, ...]:
        if tools is None:
            return above.tools if above else self._runtime.settings.tools
        names = dict.fromkeys([self._register(each) for each in tools])
        own = [each.spec.name for each in TREE_TOOLS]
        if not names.keys() & set(own):
            names.update(dict.fromkeys(own))
        for name in names:
            if above is not None and name not in above.tools and name in self._runtime.settings.tools:
                raise UsageError(f"a child cannot have the tool {name!r}, which its parent does not have")
        return tuple(names)

    def _register(self, each: Tool | Callable[..., Any] | str) -> str:
        return register_tool(self._runtime, each)

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
        reopen(runtime, node)
        await runtime.journal.durable(runtime.append())
        return Agent(self, node)

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
        return await find_leftovers(self._runtime.settings.token)

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
        )

    def _check_open(self) -> None:
        if self._runtime.is_closing:
            raise ClosedError("the swarm is closing; open it again to go on")


def register_tool(runtime: Runtime, each: Tool | Callable[..., Any] | str) -> str:
    """Enter a tool into the swarm's registry; return its name.

    Raises:
        UsageError: another tool of that name is registered, or none of that name is.
    """
    if isinstance(each, str):
        name = tool_name(each)
        if name not in runtime.tools:
            raise UsageError(f"no tool is called {each!r}; there are {', '.join(runtime.tools)}")
        return name
    made = each if isinstance(each, Tool) else tool(each)
    name = made.spec.name
    known = runtime.tools.setdefault(name, made)
    if known is not made and (known.function is None or known.function is not made.function):
        raise UsageError(f"two tools are called {name!r}; give one of them another name with @tool(name=...)")
    return name


def reopen(runtime: Runtime, node: Node) -> None:
    """Let a closed agent and its closed ancestors take mail again."""
    from ..turn import Restart  # noqa: PLC0415 - one use

    for each in node.lineage():
        each.sealed = None if each.sealed == "cancelled" else each.sealed
        each.stop = None
        each.is_told = False
        if each.session.status == "closed":
            runtime.absorb(each, Restart())


def _positive(value: float, what: str) -> float:
    if not value >= 0 or (what == "budget_usd" and math.isinf(value)):
        raise UsageError(f"{what} is {value:g}; give a positive number")
    return value


def view_of_head(head: Head, *, owned: bool, depth: int = 0) -> AgentView:
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
    )

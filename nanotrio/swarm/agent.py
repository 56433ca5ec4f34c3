"""The handle of an agent, for the program that uses the swarm."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
import trio

from ..budget import Ledger
from ..errors import ClosedError, UsageError
from ..given import a_text, whole
from ..limits import Limits
from ..records import Head, LimitsSet
from .caps import BudgetView, budget_of, set_cap
from .ending import end_children, end_trees
from .events import Event
from .mailroom import close_mailbox, deliver, wait_for
from .node import Node
from .outcome import AgentView, Outcome, outcome_of
from .spawning import SpawnOptions
from .views import view_of, view_of_head

if TYPE_CHECKING:
    from .swarm import Swarm

__all__ = ["Agent"]


class Agent:
    """One agent of an open swarm. A handle costs nothing and may be made again from ``swarm.agent(id)``.

    Attributes:
        id: its number in the store.
        name: ``NAME.N``, as people and models see it.
        uuid: of its root.
    """

    def __init__(self, swarm: Swarm, node: Node | Head, uuid: str = "") -> None:
        self._swarm = swarm
        self._runtime = swarm._runtime  # noqa: SLF001 - a handle is part of its swarm
        self.name = node.name
        if isinstance(node, Node):
            self._node: Node | None = node
            self._head: Head | None = None
            self.id = node.id
            self.uuid = node.root.session.uuid
        else:  # it is pending, and not in memory
            self._node = None
            self._head = node
            self.id = node.agent
            self.uuid = uuid
            self._runtime.residence.handles[node.agent] = self

    def __repr__(self) -> str:
        return f"<Agent {self.name} {self._node.session.status if self._node else 'pending'}>"

    def bind(self, node: Node) -> None:
        """The agent came into memory; said by the swarm."""
        self._node = node
        self._head = None

    async def _here(self) -> Node:
        """Return the agent's node, in memory at least until the next await. Checkpoints only where it has none."""
        if self._node is None:
            await self._runtime.residence.bring_in((self.id,))
            if self._node is None:
                raise self._interrupted()
        self._runtime.residence.put_back(self._node)
        self._runtime.append()
        return self._node

    async def wait(self) -> Outcome:
        """Wait until the agent has nothing left to do and no descendant runs; return its last turn's outcome.

        The outcome is durable when this returns. Cancelling it only ends the wait. Checkpoints.

        Raises:
            ClosedError: the agent was interrupted before its turn ended; it can be resumed.
        """
        if self._node is None and self._runtime.residence.is_row(self.id):
            await wait_for(self._runtime, (), "all", None, (self.id,))
        node = self._node
        if node is None:
            raise self._interrupted()
        await wait_for(self._runtime, (node,), "all", None)
        session = node.session
        if session.ended is None or node.sealed == "interrupted":
            raise self._interrupted()
        seq = session.last_seq
        if seq > self._runtime.journal.durable_seq:
            self._runtime.append()
            await self._runtime.journal.durable(seq)
        return outcome_of(session)

    def _interrupted(self) -> ClosedError:
        return ClosedError(f"{self.name} was interrupted before its turn ended; resume({self.id}) goes on from there")

    async def spawn(self, prompt: str, **options: Unpack[SpawnOptions]) -> Agent:
        """Start a child of this agent; see ``Swarm.spawn``. What is not given is the parent's."""
        (agent,) = await self._swarm.spawn_below(await self._here(), [prompt], options)
        return agent

    async def spawn_many(self, prompts: Sequence[str], **options: Unpack[SpawnOptions]) -> list[Agent]:
        """Start a child on each of ``prompts``, alike but for that; all of them or none, in one group of records.

        A thousand a call keeps the loop lively. See ``Swarm.spawn``; what is not given is the parent's.
        """
        return await self._swarm.spawn_below(await self._here(), prompts, options)

    async def send(self, text: str) -> None:
        """Send a text that the agent reads when its next turn begins; an idle agent begins one now.

        Durable when this returns.

        Raises:
            ClosedError: the agent was closed or cancelled.
            LimitError: its mailbox is full, or the text is too long.
            UsageError: the text is empty.
        """
        await self._mail("prompt", text)

    async def steer(self, text: str) -> None:
        """Send a text that the agent reads before its next model call, in the middle of a turn. Else as ``send``."""
        await self._mail("steer", text)

    async def _mail(self, kind: Any, text: str) -> None:
        if not a_text(text, "the text").strip():
            raise UsageError("the text is empty; nothing was sent")
        self._swarm._check_open()  # noqa: SLF001
        await self._runtime.journal.room()
        row_mail = self._runtime.residence.row_mail
        row = row_mail.open_row(self.id) if self._node is None else None
        if row is not None:
            row_mail.deliver(row, kind, None, text)
        else:
            deliver(self._runtime, await self._here(), kind, None, text)
        await self._runtime.journal.durable(self._runtime.append())

    async def fork(self) -> Agent:
        """Make a new root that goes on from where this agent's last turn ended, on the same store; nothing is copied.

        It has an id and a uuid of its own, the same profile, the limits as they are now, and the conversation up to
        the end of that turn, also where a further one is open. Its costs begin at 0, it has no children and no mail,
        and it is idle until it gets some: ``wait`` returns the outcome it went on from before. What a child may do is
        what its ancestors allowed it; their tightest cap becomes its own. Durable when this returns. Checkpoints.

        Raises:
            UsageError: no turn of the agent has ended.
            ClosedError: the swarm is closing.
        """
        return await self._swarm.fork(self.id)

    async def cancel(self) -> Outcome:
        """End the agent's turn as cancelled, and everything below it; return when all of it is gone.

        Every process of the subtree is ended too; what would not go within ``max_reap_seconds`` is named in
        ``survivors``. The agent takes no more mail, but ``resume`` still goes on from its id. Safe to call twice.
        """
        node = await self._here()
        remaining = await end_trees(self._runtime, [node], "cancelled", "cancelled by its user")
        await self._runtime.journal.durable(self._runtime.append())
        if node.session.ended is None:
            raise self._interrupted()
        outcome = outcome_of(node.session)
        return msgspec.structs.replace(outcome, survivors=(*outcome.survivors, *remaining)) if remaining else outcome

    async def interrupt(self) -> None:
        """End the agent's open turn as cancelled, and everything below it, and leave the agent open for more.

        Returns when all of it has ended; at once where nothing ran. No notice tells the agent of the descendants that
        this ended: the turn's outcome names them.
        """
        node = self._node
        if node is not None and node.has_task and node.scope is not None:
            node.stop = ("cancelled", "interrupted by its user")
            if node.stopped is None:
                node.stopped = trio.Event()
            stopped = node.stopped
            node.scope.cancel()
            await stopped.wait()
        elif node is not None and node.unfinished_children:
            await end_children(self._runtime, node, f"{node.name} was stopped: interrupted by its user")
        await self._runtime.journal.durable(self._runtime.append())

    async def close(self) -> None:
        """Cancel what runs, and take no more mail, nor does anyone below.

        Bounded by ``max_reap_seconds``, and safe to call twice.
        """
        node = await self._here()
        if node.session.status == "closed":
            await self._runtime.journal.durable(self._runtime.append())
            return
        if node.is_counted:
            await self.cancel()
            return
        for each in node.subtree():  # of those that left memory it is written down as they come back
            if each.session.status != "closed":
                reason = "closed by its user" if each is node else f"{node.name} is closed"
                close_mailbox(self._runtime, each, reason)
        await self._runtime.journal.durable(self._runtime.append())

    def budget(self) -> BudgetView:
        """Return what the agent and all below it have spent, of what, and which cap of its lineage is the tightest."""
        node, head = self._node, self._head
        if node is not None:
            return budget_of(node.ledger)
        assert head is not None
        profile = self._runtime.profile_values[head.profile]
        return budget_of(Ledger(self.name, profile.limits.budget_nano, self._runtime.nodes[head.parent].ledger))

    async def set_budget(self, budget_usd: float | None) -> None:
        """Set the agent's cap, in dollars over its whole life with its descendants; it holds from the next call on.

        A cap above the former one lets those go on who wait for it. One below what is spent already stops nobody in
        the middle of a call, and refuses each further one: that turn ends as ``budget_exceeded``, naming this agent.

        Raises:
            UsageError: the amount is negative, or the price of a model below is unknown.
            ClosedError: the swarm is closing.
        """
        self._swarm._check_open()  # noqa: SLF001
        set_cap(self._runtime, await self._here(), budget_usd)
        await self._runtime.journal.durable(self._runtime.append())

    async def set_max_steps(self, max_steps: int) -> None:
        """Set how many model calls a turn of the agent may have; it holds from the next call on.

        Raises:
            UsageError: the number is below 1.
        """
        max_steps = whole(max_steps, "max_steps", 1)
        node = await self._here()
        self._set_limits(node, msgspec.structs.replace(node.limits, max_steps=max_steps))
        await self._runtime.journal.durable(self._runtime.append())

    def _set_limits(self, node: Node, limits: Limits) -> None:
        node.limits = limits
        self._runtime.record(node, (LimitsSet(limits),))

    def view(self) -> AgentView:
        """Return the agent as it stands."""
        node = self._node
        if node is None:
            assert self._head is not None
            owned = self._runtime.residence.is_row(self.id)
            profile = self._runtime.profile_values.get(self._head.profile)
            view = view_of_head(self._head, owned=owned, profile=profile)
            return msgspec.structs.replace(view, waiting_for="a slot" if owned else "")
        view = view_of(node)
        if node.id not in self._runtime.nodes and any(map(node.was_closed_with, node.lineage())):
            return msgspec.structs.replace(view, status="closed")  # it is written down when the agent is used again
        return view

    @asynccontextmanager
    async def events(self) -> AsyncIterator[trio.MemoryReceiveChannel[Event]]:
        """Watch the agent and its descendants: an async context manager over a stream of events."""
        async with self._runtime.watchers.watch(await self._here()) as stream:
            yield stream

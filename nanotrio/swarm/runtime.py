"""What the parts of one open swarm share."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
import trio

from ..budget import Ledger
from ..errors import ClosedError, StoreError
from ..limits import Limits
from ..messages import ToolCall
from ..models import Model, RateGate, open_model
from ..records import Fact, Head, OutcomeStatus, Profile
from ..redactor import Redactor
from ..tools import AgentProcesses, PermissionMode, Tool
from ..turn import Input, absorb
from .burst import Burst
from .ceiling import Ceiling
from .departed import Departed
from .events import Event
from .node import Node, Start
from .pump import Parked, Pump
from .slots import Slots
from .unresumed import Unresumed
from .wait_graph import WaitGraph
from .watch import Watchers

if TYPE_CHECKING:
    from ..errors import NanotrioError
    from ..journal import Journal
    from ..models.transport import Client
    from ..stores import Owner, Store
    from .deadlines import Deadlines
    from .mailroom import Waiter
    from .residence import Residence
    from .transcripts import Transcripts
    from .tree import SwarmTree

__all__ = ["Approval", "Approver", "Durability", "Kind", "Permissions", "Runtime", "Settings"]

Durability: TypeAlias = Literal["effects", "async", "sync"]


PROVIDER_KEYS = frozenset(("ANTHROPIC_API_KEY", "OPENAI_API_KEY"))
"""Not handed to processes."""


class Approval(msgspec.Struct, frozen=True):
    """A call that a person is asked about."""

    agent: int
    name: str
    call: ToolCall
    reason: str


Approver: TypeAlias = Callable[[Approval], Awaitable[bool | None]]
"""Answers for a person; None where nobody can be asked, which denies the call and tells the model so."""


class Permissions(msgspec.Struct, frozen=True):
    """The rules of roots; a child's are never looser."""

    mode: PermissionMode
    allowed_tools: tuple[str, ...]
    denied_tools: tuple[str, ...]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a swarm was opened with; what a spawn does not say is taken from here."""

    model: Model | None = None
    system: str
    tools: tuple[str, ...] = ()
    """Given to an agent unless its own are named."""
    limits: Limits
    environment: Mapping[str, str]
    directory: Path
    permissions: Permissions
    durability: Durability
    approve: Approver | None


class Kind(msgspec.Struct, frozen=True):
    """What a profile comes to below a parent: made once for all children that are alike."""

    profile: Profile
    limits: Limits
    model: Model
    tools: dict[str, Tool]
    may_spawn: bool
    heads: dict[int, bytes] = {}
    """Requests up to their messages, by max_tokens; filled as they are made."""


class Runtime:
    """The state of one open swarm: plain data on one Trio thread."""

    journal: Journal
    burst: Burst
    deadlines: Deadlines
    transcripts: Transcripts
    residence: Residence
    tree: SwarmTree
    run_agent: Start
    taken_from: Owner | None = None
    """Who had the store, and lived, when this owner took it."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        max_active: int,
        token: str,
        output_directory: Path,
        ceiling: Ceiling | None = None,
    ) -> None:
        self.settings = settings
        self.ceiling = ceiling or Ceiling()
        self.store = store
        self.tools: dict[str, Tool] = {}
        self.pump = Pump()
        self.nodes: dict[int, Node] = {}
        """The registry: every agent that is in memory."""
        self.departed = Departed()
        """Agents that left the registry, and that somebody still has a handle of."""
        self.cold: dict[int, Head] = {}
        """Heads of agents that are in neither, where the store's own may be behind."""
        self.slots = Slots(max_active, self.pump, self.launch, self.has_room_for_live, self.nodes, self._on_short)
        self.watchers = Watchers()
        self.unresumed = Unresumed()
        """What the store held that was unfinished when it was opened, and was not taken up since."""
        self.next_agent = 1
        self.live = self.unfinished_roots = 0  # agents that have a task, be it a bare one
        self.outcomes: dict[OutcomeStatus, int] = {}
        """Agents that were done here, by outcome."""
        self.naming = trio.Lock()
        """Held while a session of a given uuid is looked for and made, so that there is one of it."""
        self.idle_waiters: list[Waiter] = []
        """Those who wait until no root is unfinished."""
        self.models: dict[str, Model] = {}
        self.gates: dict[str, RateGate] = {}
        self.profiles: dict[Profile, int] = {}
        self.profile_values: dict[int, Profile] = {}
        """The same, by the number of their record."""
        self.systems: dict[int, str] = {0: ""}
        self.heads: dict[tuple[str, int, tuple[str, ...], int, str], bytes] = {}
        """Requests up to their messages, by all that is in them: kinds that differ in other things share them."""
        self.waits = WaitGraph()
        self.budget_queues: dict[Ledger, deque[Parked]] = {}
        self.roots: trio.Nursery | None = None
        self.token = self.owner_token = token
        """Mark the processes of this swarm's agents: those of every owner of the store, and of this one alone."""
        self.no_processes = AgentProcesses(token, 0)
        """For calls that start none."""
        self.output_directory = output_directory
        inherited = settings.environment.items()
        self.process_environment = {name: value for name, value in inherited if name not in PROVIDER_KEYS}
        """What processes inherit."""
        self.redactor = Redactor(settings.environment)
        self.client: Client | None = None
        self.paths: dict[str, Path] = {}
        self.kinds: dict[tuple[object, ...], Kind] = {}
        """What agents of one profile below alike parents have in common."""
        self.is_closing, self.holders_due = False, 0.0  # and when those are told of that do not let it close
        self.fatal: NanotrioError | None = None
        self.lost: NanotrioError | None = None  # why not all could be written as the swarm was left

    def record(self, node: Node, facts: Iterable[Fact]) -> None:
        """Apply facts to a node's session and append them with the open group."""
        self.burst.add(node.session, tuple(facts))

    def absorb(self, node: Node, event: Input) -> None:
        """Record what ``event`` makes true for the node."""
        self.burst.add(node.session, absorb(node.session, event))

    def append(self) -> int:
        """Close the open group; return the number of the last record that was appended.

        Where the store is lost for good the group is dropped: the agents are about to be interrupted.
        """
        try:
            return self.burst.append()
        except StoreError:
            return self.journal.durable_seq

    async def durable(self, seq: int) -> None:
        """Wait, in an agent's task, until record ``seq`` is committed.

        If the store is lost for good this never returns: the swarm is being interrupted, and nothing more may happen.
        """
        if seq <= self.journal.durable_seq:
            return
        try:
            await self.journal.durable(seq)
        except (StoreError, ClosedError):
            await trio.sleep_forever()

    async def room(self) -> None:
        """Wait, in an agent's task, until the journal has room; as ``durable`` where the store is lost."""
        try:
            await self.journal.room()
        except (StoreError, ClosedError):
            await trio.sleep_forever()

    def emit(self, node: Node | None, event: Event) -> None:
        """Show an event to those who watch; call it only where ``watchers.count`` is not 0."""
        self.watchers.emit(node, event)

    def model(self, name: str) -> Model:
        """Return the model of that name, opened once.

        Raises:
            UnknownModelError, UsageError, ModelError: see ``models.open_model``.
        """
        model = self.models.get(name)
        if model is None:
            if self.client is None and not name.startswith("scripted"):
                from ..models.transport import make_client

                self.client = make_client(self.settings.environment)
            model = self.models[name] = open_model(name, environment=self.settings.environment, client=self.client)
        return model

    def close_client(self) -> None:
        """Close the connections to model servers."""
        if self.client is not None:
            from ..models.transport import close_client

            close_client(self.client)

    def path(self, directory: str) -> Path:
        """Return a directory as a path, made once."""
        path = self.paths.get(directory)
        if path is None:
            path = self.paths[directory] = Path(directory)
        return path

    def gate(self, node: Node) -> RateGate:
        """Return what holds back all who call the node's model."""
        gate = self.gates.get(node.model.name)
        if gate is None:
            gate = self.gates[node.model.name] = RateGate()
        return gate

    def has_room_for_live(self) -> bool:
        """Whether one more agent may be started, for their number and for the memory of the process."""
        if self.live >= self.settings.limits.max_live:
            return False
        if not self.ceiling.is_reached and self.ceiling.glance():
            self.transcripts.tell()
        return not self.ceiling.is_reached

    def launch(self, node: Node) -> None:
        """Start the own work of ``node`` in its parent's nursery, and whatever bare tasks are missing above it."""
        node.is_queued = False
        if node.sealed or self.is_closing or node.has_task:
            self.slots.release(node)
            return
        if not self.live:
            self.transcripts.stir()
        if not node.is_live:
            self.live += 1
        node.has_task = True
        node.is_gathering = False
        node.waiting_for = ""
        self._start(self.run_agent, node)

    def _start(self, start: Start, node: Node) -> None:
        """Start a task of ``node`` where it belongs; a nursery that is missing is opened first, from the top down."""
        parent = node.parent
        if parent is None:
            assert self.roots is not None
            self.roots.start_soon(start, node, name=node.name)
            return
        parent.tasks += 1
        if parent.nursery is not None:
            parent.nursery.start_soon(start, node, name=node.name)
        elif parent.to_start is not None:
            parent.to_start.append((start, node))
        else:
            if not parent.is_live:
                self.live += 1
            parent.to_start = [(start, node)]
            self._start(self._run_children, parent)

    @trio.lowlevel.enable_ki_protection
    async def _run_children(self, node: Node) -> None:
        """The bare task of ``node``: its children's nursery, open until the last task in it has ended."""
        try:
            async with trio.open_nursery() as nursery:
                node.nursery = nursery
                waiting, node.to_start = node.to_start, None
                for start, child in waiting or ():
                    nursery.start_soon(start, child, name=child.name)
        finally:
            self.task_ended(node)

    def work_ended(self, node: Node) -> None:
        """The own work of ``node`` is done, or has to wait for its children: it has no task of its own any more."""
        if node.has_task:
            node.has_task = False
            if not node.is_live:
                self.live -= 1
        node.scope = None
        self.slots.release(node)

    def task_ended(self, node: Node) -> None:
        """The last act of each task of ``node``; the last one in a nursery lets go of it."""
        parent = node.parent
        if parent is not None:
            parent.tasks -= 1
            if not parent.tasks:
                parent.nursery = None
                if not parent.is_live:
                    self.live -= 1
                    self.slots.hand_on()

    def wake(self, node: Node) -> None:
        """There is news for ``node``: one that has no task is queued for a slot; a task looks by itself."""
        if not node.has_task and not node.sealed:
            self.count(node)
            self.slots.enqueue(node)

    def count(self, node: Node) -> None:
        """Count ``node`` and its lineage as unfinished."""
        while not node.is_counted:
            node.is_counted = True
            self.residence.has_work(node)
            if node.parent is None:
                self.unfinished_roots += 1
                return
            node.parent.unfinished_children += 1
            node = node.parent

    def uncount(self, node: Node) -> None:
        """Count ``node`` as finished; its parent is told by ``settling``."""
        if not node.is_counted:
            return
        node.is_counted = False
        if self.waits.by_target:
            self.waits.ended(node.id)
        parent = node.parent
        if parent is not None:
            parent.unfinished_children -= 1
            if parent.on_child_end is not None:
                parent.on_child_end(node)
            return
        self.unfinished_roots -= 1
        if not self.unfinished_roots:
            for waiter in self.idle_waiters:
                waiter.notify()

    def dirty_heads(self, agents: Iterable[int]) -> list[Head]:
        """Return the heads of ``agents`` as they stand, for the journal."""
        heads = []
        for agent in agents:
            node = self.nodes.get(agent)
            if node is not None:
                heads.append(self.head_of(node))
            elif agent in self.cold:
                heads.append(self.cold[agent])
        return heads

    def head_of(self, node: Node) -> Head:
        """Return the head of an agent in memory, as it stands."""
        made = (node.children_made, node.descendants, self.next_agent - 1)
        return node.session.head(node.profile.model, *made)

    def _on_short(self) -> None:
        self.residence.stir()

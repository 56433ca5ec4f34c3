"""An agent in memory: its session, its place in the tree, and what its task is doing.

Theory of operation
-------------------
A node is plain data on one Trio thread; the functions in this room change it between two awaits, so nothing is locked.
Its life has three layers that must not be mixed up:

- ``session`` is the durable state; only facts change it.
- ``has_task`` says whether a task does its *own work*: a turn, unread mail, or the end to be written. It lives in the
  parent's ``nursery``, which a *bare* task of the parent holds open for as long as it has tasks in it: an agent whose
  turn has ended and whose descendants run has that one alone, and an agent without children has none.
- ``is_counted`` says that it is unfinished, and counted so by its parent; it follows the need for a task, not the task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import trio

    from ..budget import Ledger
    from ..limits import Limits
    from ..models import Model
    from ..records import Profile
    from ..session import Session
    from ..tools import AgentProcesses, Tool
    from .mailroom import Waiter
    from .runtime import Kind
    from .watch import Watcher

__all__ = ["Cause", "Node", "Start"]

Cause: TypeAlias = Literal["cancelled", "interrupted"]
"""Why a subtree is sealed: ``cancelled`` is written down, ``interrupted`` writes nothing and can be resumed."""


Start: TypeAlias = "Callable[[Node], Awaitable[None]]"
"""What a task of a node runs: its own work, or the nursery of its children."""


class Node:
    """One entry of the registry."""

    __slots__ = (
        "__weakref__",
        "asked_bytes",
        "asked_nano",
        "body_bytes",
        "children",
        "children_made",
        "descendants",
        "encoded",
        "has_slot",
        "has_task",
        "heads",
        "id",
        "input_tokens",
        "is_counted",
        "is_gathering",
        "is_queued",
        "is_told",
        "ledger",
        "left_processes",
        "limits",
        "may_spawn",
        "model",
        "nursery",
        "on_child_end",
        "parent",
        "pins",
        "processes",
        "profile",
        "retry_after_seconds",
        "rows",
        "scope",
        "sealed",
        "seen_seq",
        "session",
        "stop",
        "stopped",
        "tasks",
        "to_start",
        "told_turn",
        "tool_state",
        "tools",
        "unfinished_children",
        "waiters",
        "waiting_for",
        "watchers",
    )

    def __init__(self, session: Session, parent: Node | None, ledger: Ledger, kind: Kind) -> None:
        self.session = session
        self.id = session.agent
        """The agent's number in its store."""
        self.parent = parent
        self.ledger = ledger
        self.profile: Profile = kind.profile
        self.limits: Limits = kind.limits
        self.model: Model = kind.model
        self.tools: dict[str, Tool] = kind.tools
        self.may_spawn, self.heads = kind.may_spawn, kind.heads
        self.children: dict[int, Node] | None = None
        """Those in memory, by id."""
        self.children_made = 0
        """Spawned by it so far, in memory or not."""
        self.descendants = 0
        """Spawned below it so far; kept for roots alone."""
        self.rows = 0
        """Unfinished children that are not in memory: they wait for a slot as rows."""
        self.pins = 0
        """Calls that are about to use it, for which it stays in memory."""
        self.unfinished_children = 0
        self.on_child_end: Callable[[Node], None] | None = None
        """Called, without an await, with each child that is finished or interrupted."""
        self.is_counted = self.is_queued = self.has_slot = False
        self.is_gathering = False
        """Ends of its children wait a moment for more of them."""
        self.is_told = False
        """Its parent ends it, so its end is no news to it."""
        self.told_turn = session.turns if session.status in ("idle", "closed") else 0
        """The last turn whose end its parent was told of."""
        self.has_task = False
        """Its own work has a task."""
        self.nursery: trio.Nursery | None = None
        """Where the tasks of its children run; open while there are any."""
        self.tasks = 0
        """How many run in it, or wait for it to open."""
        self.to_start: list[tuple[Start, Node]] | None = None
        """Tasks that wait for it to open."""
        self.scope: trio.CancelScope | None = None
        self.waiting_for = ""
        self.waiters: list[Waiter] | None = None
        self.watchers: list[Watcher] | None = None
        self.sealed: Cause | None = None
        self.stop: tuple[Any, str] | None = None
        """The status and reason with which the open turn is to be stopped; the agent goes on."""
        self.stopped: trio.Event | None = None
        """Set once a stop has been written down, for who waits for that."""
        self.encoded: list[bytes] | None = None
        """The session's messages as the model's codec encodes them, where there are many."""
        self.asked_bytes = self.asked_nano = 0
        """Of the attempt in flight: the size of its request, 0 where there is none, and what is reserved for it."""
        self.seen_seq = 0
        """The last record when it was last looked at whether it waits."""
        self.body_bytes = self.input_tokens = 0
        """Size of the last answered request, in bytes and in tokens: the next estimate starts from there."""
        self.retry_after_seconds: float | None = None
        self.processes: AgentProcesses | None = None
        self.left_processes: list[AgentProcesses] | None = None  # of descendants that left memory
        self.tool_state: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """``NAME.N``."""
        return self.session.name

    @property
    def is_live(self) -> bool:
        """Whether it has a task, be it a bare one."""
        return self.has_task or self.nursery is not None or self.to_start is not None

    @property
    def root(self) -> Node:
        """The node at the top of the lineage."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def lineage(self) -> Iterator[Node]:
        """Yield the node and its ancestors, upwards."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def subtree(self) -> list[Node]:
        """Return the node and its descendants in memory, each after its parent."""
        nodes = [self]
        for node in nodes:
            if node.children:
                nodes.extend(node.children.values())
        return nodes

    def all_processes(self) -> list[AgentProcesses]:
        """Return what may have processes: the agent's own, and those of descendants that left memory."""
        own = [self.processes] if self.processes is not None and self.processes.has_started else []
        return [*own, *(self.left_processes or ())]

    def is_below(self, other: Node) -> bool:
        """Whether ``other`` is an ancestor."""
        return any(node is other for node in self.lineage()) and self is not other

    def was_closed_with(self, ancestor: Node) -> bool:
        """Whether the ancestor was closed since anything happened here, if only for a while: then all below was too."""
        return ancestor.session.closed_seq > self.session.last_seq

    def may_leave(self) -> bool:
        """Whether nothing holds a finished agent in memory."""
        session = self.session
        processes = self.processes
        return not (
            self.is_counted
            or self.is_live
            or self.is_queued
            or self.has_slot
            or self.pins
            or self.children
            or self.rows
            or self.waiters
            or self.watchers
            or self.on_child_end is not None
            or self.stopped is not None
            or (self.sealed is not None and session.status != "closed")
            or session.has_news
            or session.turn is not None
            or session.owes_report
            or (processes is not None and (processes.groups or processes.threads))
            or (self.parent is None and self.all_processes())
        )

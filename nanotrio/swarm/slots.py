"""Who may be active: slots, and the queue before them.

An active agent holds a slot. One that waits for a child, mail, a reservation or a rate limit gives it back; when it
returns it goes before new ones, whether its task waited or ended meanwhile. A slot that comes free is handed on in the
same moment, so nobody is woken to look.

Of those that wait to be started some hundreds are in memory; the others are ``rows``. Both stand in one order: an agent
in memory that is queued gets a ticket, the place of the row that will come next, and is started when the rows before
that have been. A row that is to be started and is not in memory yet holds up all behind it, until it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from .node import Node
from .pump import Parked, Pump
from .rows import Rows

__all__ = ["Slots"]

MAX_RESIDENT = 1_024
"""Pending agents in memory; further ones are rows."""
_PASSED = 4_096
AHEAD = 1_024
"""Rows that are brought into memory before it is their turn."""
_FETCHED = 256
"""So many at a time."""


class Slots:
    """The slots of one swarm.

    ``launch`` starts a pending agent in its own parent's nursery; ``has_room`` says whether one more may live. While
    nobody is active one is started in any case, or agents that wait for pending children would wait for ever.
    ``nodes`` is the registry of agents in memory, and ``on_short`` is called where rows are to be brought into it.
    """

    __slots__ = (
        "_has_room",
        "_launch",
        "_max_active",
        "_nodes",
        "_on_short",
        "_pending",
        "_pump",
        "_returning",
        "active",
        "ahead",
        "max_resident",
        "rows",
    )

    def __init__(
        self,
        max_active: int,
        pump: Pump,
        launch: Callable[[Node], None],
        has_room: Callable[[], bool],
        nodes: Mapping[int, Node] | None = None,
        on_short: Callable[[], None] = lambda: None,
    ) -> None:
        self._nodes = {} if nodes is None else nodes
        self._on_short = on_short
        self.rows = Rows()
        self.ahead = 0
        """All rows before this place are in memory, or were."""
        self.max_resident = MAX_RESIDENT
        self._has_room = has_room
        self._max_active = max_active
        self._pump = pump
        self._launch = launch
        self._pending: deque[tuple[int, Node]] = deque()
        self._returning: deque[tuple[Node, Parked | None]] = deque()
        """Tasks that are parked, and nodes whose task has ended meanwhile."""
        self.active = 0

    @property
    def max_active(self) -> int:
        """How many agents may be active at once."""
        return self._max_active

    @property
    def pending(self) -> int:
        """Agents that wait to be started."""
        return len(self._pending) + self.rows.waiting

    @property
    def are_rows_due(self) -> bool:
        """Whether a further pending agent is to be a row."""
        return len(self._pending) >= self.max_resident or self.rows.waiting > 0

    @property
    def is_short(self) -> bool:
        """Whether further rows are to be brought into memory."""
        rows = self.rows
        return rows.left > 0 and self.ahead - rows.at < AHEAD - _FETCHED and self.ahead < rows.end

    def enqueue(self, node: Node) -> None:
        """Start ``node`` when a slot is free; a node that is queued already stays where it is.

        One whose turn is open, or that has unfinished descendants, returns: it goes before new ones.
        """
        if node.is_queued:
            return
        node.is_queued = True
        if node.session.status in ("running", "settling") or node.unfinished_children:
            self._returning.append((node, None))
        else:
            self._pending.append((self.rows.end, node))
        self.hand_on()

    async def acquire(self, node: Node) -> None:
        """Take a slot for an agent that returns from waiting. A no-op without a checkpoint where it holds one."""
        if node.has_slot:
            return
        if self.active < self._max_active and not self._returning:
            self.active += 1
            node.has_slot = True
            return
        parked = Parked()
        self._returning.append((node, parked))
        try:
            await parked.wait()
        except BaseException:
            self.release(node)  # it may have been handed one while it was being cancelled
            raise

    def release(self, node: Node) -> None:
        """Give the slot back and hand it on. A no-op where the agent holds none."""
        if node.has_slot:
            node.has_slot = False
            self.active -= 1
        if self._pending or self._returning or self.rows.waiting:
            self.hand_on()

    def hand_on(self) -> None:
        """Hand out the slots that are free."""
        while self.active < self._max_active:
            if self._returning:
                self._return(*self._returning.popleft())
            elif (self._pending or self.rows.waiting) and (self.active == 0 or self._has_room()):
                node = self._next()
                if node is None:
                    return
                self._start(node)
            else:
                return

    def _return(self, node: Node, parked: Parked | None) -> None:
        if parked is None:
            if node.is_queued and not node.has_slot:
                self._start(node)
        elif parked.task is not None:
            if not node.has_slot:  # two calls of one agent may come back together
                self.active += 1
                node.has_slot = True
            self._pump.post(parked)

    def _start(self, node: Node) -> None:
        self.active += 1
        node.has_slot = True
        self._pump.post(partial(self._launch, node))

    def pass_ended(self) -> None:
        """Pass rows that were ended, some thousands, so that they are not in the way of a free slot."""
        rows = self.rows
        for _ in range(_PASSED):
            if not rows.waiting:
                return
            agent, was_taken = rows.first()
            node = self._nodes.get(agent)
            if not was_taken or (node is not None and node.is_queued and not node.has_slot):
                break
            rows.pass_first()
        self.hand_on()

    def _next(self) -> Node | None:
        """Take the next agent to be started; None where there is none, or it is not in memory yet."""
        rows, pending = self.rows, self._pending
        while True:
            node: Node | None
            if pending and pending[0][0] <= rows.at:
                node = pending.popleft()[1]
            elif rows.waiting:
                agent, was_taken = rows.first()
                if self.is_short:
                    self._on_short()
                if not was_taken:
                    return None
                rows.pass_first()
                node = self._nodes.get(agent)
            else:
                return None
            # It may have been ended, or stand here twice for having been ended.
            if node is not None and node.is_queued and not node.has_slot:
                return node

"""Who may be active: slots, and the queue before them.

An active agent holds a slot. One that waits for a child, mail, a reservation or a rate limit gives it back; when it
returns it goes before new ones, whether its task waited or ended meanwhile. A slot that comes free is handed on in the
same moment, so nobody is woken to look.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from .node import Node
from .pump import Parked, Pump

__all__ = ["Slots"]


class Slots:
    """The slots of one swarm.

    ``launch`` starts a pending agent in its own parent's nursery; ``has_room`` says whether one more may live. While
    nobody is active one is started in any case, or agents that wait for pending children would wait for ever.
    """

    __slots__ = ("_has_room", "_launch", "_max_active", "_pending", "_pump", "_returning", "active")

    def __init__(
        self, max_active: int, pump: Pump, launch: Callable[[Node], None], has_room: Callable[[], bool]
    ) -> None:
        self._has_room = has_room
        self._max_active = max_active
        self._pump = pump
        self._launch = launch
        self._pending: deque[Node] = deque()
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
        return len(self._pending)

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
            self._pending.append(node)
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
        if self._pending or self._returning:
            self.hand_on()

    def hand_on(self) -> None:
        """Hand out the slots that are free."""
        while self.active < self._max_active:
            if self._returning:
                self._return(*self._returning.popleft())
            elif self._pending and (self.active == 0 or self._has_room()):
                node = self._pending.popleft()
                if not node.is_queued or node.has_slot:  # it was ended, or stands here twice for having been ended
                    continue
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

"""Whatever is to happen to an agent at a time: one heap, one task.

Theory of operation
-------------------
A turn that is still open when its time is over is stopped. A settling agent whose children end is woken a moment after
the first of these ends, so that many together cost one turn.

The heap holds times, rounded up to a tick; what is due at one of them stands in one array, so a turn takes sixteen
bytes there. An entry stays when it has lost its meaning, since taking it out would mean a search; most turns end long
before their time. So once there are many, and twice as many as after the last sweep, those without meaning are swept
out, which costs each entry a constant share.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

import trio

from .node import Node
from .pump import Parked

if TYPE_CHECKING:
    from .runtime import Runtime

__all__ = ["Deadlines"]


GATHER_SECONDS = 0.25
"""How long the end of a child waits for others, while its parent has nothing else to do."""

_GATHERED = 0
"""In place of a turn's number."""

_TICKS = 64
"""Of a second; a power of two, so that rounding changes no time that is a whole number of them."""

_FAR_SECONDS = 1e12
"""No process lives so long; what is much more has no tick."""

_MIN_SWEEP = 1_024


class Deadlines:
    """Stops each turn that is still open when its time is over, and wakes those who gather."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._heap: list[float] = []
        self._due: dict[float, array[int]] = {}
        """For each time in the heap, pairs of an agent and the number of its turn."""
        self._count = 0
        self._sweep_at = _MIN_SWEEP
        self._parked: Parked | None = None

    def __len__(self) -> int:
        return self._count

    def start_turn(self, node: Node) -> None:
        """Let the node's open turn end ``turn_seconds`` after it began, less what ran before a restart."""
        turn = node.session.turn
        if turn is None:
            return
        left = node.limits.turn_seconds - turn.elapsed_us / 1e6
        if left > _FAR_SECONDS:
            return
        self._add(trio.current_time() + left, node.id, turn.number)

    def gather(self, node: Node) -> None:
        """Queue a settling node a moment from now; those who call again meanwhile change nothing."""
        if not node.is_gathering:
            node.is_gathering = True
            self._add(trio.current_time() + GATHER_SECONDS, node.id, _GATHERED)

    def _add(self, seconds: float, agent: int, what: int) -> None:
        if self._count >= self._sweep_at:
            self._sweep()
        at = math.ceil(seconds * _TICKS) / _TICKS
        due = self._due.get(at)
        if due is None:
            due = self._due[at] = array("q")
            heapq.heappush(self._heap, at)
            if self._heap[0] == at and self._parked is not None and self._parked.task is not None:
                trio.lowlevel.reschedule(self._parked.task)
                self._parked.task = None
        due.append(agent)
        due.append(what)
        self._count += 1

    def _sweep(self) -> None:
        """Keep what has a meaning."""
        kept: dict[float, array[int]] = {}
        self._count = 0
        for at, due in self._due.items():
            pairs = [pair for pair in _pairs(due) if self._node_of(*pair) is not None]
            if pairs:
                kept[at] = array("q", chain.from_iterable(pairs))
                self._count += len(pairs)
        self._due = kept
        self._heap = sorted(kept)  # which is a heap
        self._sweep_at = max(_MIN_SWEEP, 2 * self._count)

    async def run(self) -> None:
        """Do what is due as its time comes. Runs until cancelled."""
        while True:
            now = trio.current_time()
            while self._heap and self._heap[0] <= now:
                for agent, what in _pairs(self._due.pop(heapq.heappop(self._heap))):
                    self._count -= 1
                    node = self._node_of(agent, what)
                    if node is not None:
                        self._gathered(node) if what == _GATHERED else self._stop(node)
            self._parked = Parked()
            with trio.CancelScope(deadline=self._heap[0] if self._heap else float("inf")):
                await self._parked.wait()

    def _node_of(self, agent: int, what: int) -> Node | None:
        """Return whom an entry is about, None where it has lost its meaning."""
        node = self._runtime.nodes.get(agent)
        if node is None:
            return None
        if what == _GATHERED:
            return node if node.is_gathering else None
        turn = node.session.turn
        return node if turn is not None and turn.number == what else None

    def _gathered(self, node: Node) -> None:
        node.is_gathering = False
        if node.is_counted and node.session.unread:
            self._runtime.wake(node)

    def _stop(self, node: Node) -> None:
        if node.scope is None:
            return
        seconds = node.limits.turn_seconds
        node.stop = ("deadline_exceeded", f"turn_seconds of {node.name} reached ({seconds:g} s)")
        node.scope.cancel()


def _pairs(due: array[int]) -> Iterable[tuple[int, int]]:
    return zip(due[::2], due[1::2], strict=True)

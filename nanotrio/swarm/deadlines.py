"""The wall clock of turns: one heap, one task."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import trio

from .node import Node
from .pump import Parked

if TYPE_CHECKING:
    from .runtime import Runtime

__all__ = ["Deadlines"]


class Deadlines:
    """Stops each turn that is still open when its time is over."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._heap: list[tuple[float, int, int]] = []
        self._parked: Parked | None = None

    def start_turn(self, node: Node) -> None:
        """Let the node's open turn end ``turn_seconds`` after it began, less what ran before a restart."""
        turn = node.session.turn
        if turn is None:
            return
        left = node.limits.turn_seconds - turn.elapsed_us / 1e6
        if left == float("inf"):
            return
        entry = (trio.current_time() + left, node.id, turn.number)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry and self._parked is not None and self._parked.task is not None:
            trio.lowlevel.reschedule(self._parked.task)
            self._parked.task = None

    async def run(self) -> None:
        """Stop turns as their time comes. Runs until cancelled."""
        while True:
            now = trio.current_time()
            while self._heap and self._heap[0][0] <= now:
                _, agent, number = heapq.heappop(self._heap)
                self._stop(agent, number)
            self._parked = Parked()
            with trio.CancelScope(deadline=self._heap[0][0] if self._heap else float("inf")):
                await self._parked.wait()

    def _stop(self, agent: int, number: int) -> None:
        node: Any = self._runtime.nodes.get(agent)
        if node is None or node.session.turn is None or node.session.turn.number != number or node.scope is None:
            return
        seconds = node.limits.turn_seconds
        node.stop = ("deadline_exceeded", f"turn_seconds of {node.name} reached ({seconds:g} s)")
        node.scope.cancel()

"""Nodes that left the registry, for as long as somebody refers to them."""

from __future__ import annotations

from weakref import ref

from .node import Node

__all__ = ["Departed"]

_MIN_SWEEP = 1_024


class Departed:
    """A ``WeakValueDictionary`` of nodes by id, for many that nearly all are gone in the same moment.

    That one has a callback take each out; here dead entries are swept out together, once there are as many again as
    after the last sweep.
    """

    __slots__ = ("_refs", "_sweep_at")

    def __init__(self) -> None:
        self._refs: dict[int, ref[Node]] = {}
        self._sweep_at = _MIN_SWEEP

    def add(self, node: Node) -> None:
        """``node`` left the registry."""
        refs = self._refs
        refs[node.id] = ref(node)
        if len(refs) >= self._sweep_at:
            self._refs = {agent: each for agent, each in refs.items() if each() is not None}
            self._sweep_at = max(_MIN_SWEEP, 2 * len(self._refs))

    def get(self, agent: int) -> Node | None:
        """Return the agent's node where somebody still refers to it."""
        found = self._refs.get(agent)
        return None if found is None else found()

    def discard(self, agent: int) -> None:
        """The agent is in the registry again."""
        self._refs.pop(agent, None)

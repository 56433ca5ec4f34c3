"""Mail that goes back to senders out of memory: who closed with it unread, until they are brought in.

The closed agent's record says that it owes this, and what it has not read stays unread until the return and the
senders' notices are written in one group. So a crash before that leaves it owing, and its tree is resumed with it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from ..errors import NanotrioError, StoreDamagedError, StoreError
from .mailroom import return_unread, senders_of
from .node import Node

if TYPE_CHECKING:
    from .runtime import Runtime

__all__ = ["Returns"]

_SLICE = 256

_log = logging.getLogger("nanotrio")

Loader: TypeAlias = Callable[[Sequence[int]], Awaitable[None]]
"""Has agents in memory until the next await."""


class Returns:
    """The closed agents of one swarm that owe a return; they stay in memory, since they have unread mail."""

    __slots__ = ("_owing", "_runtime")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._owing: dict[int, Node] = {}

    def __bool__(self) -> bool:
        return bool(self._owing)

    def add(self, node: Node) -> None:
        """The agent closed, and a sender of what it has not read is not in memory."""
        self._owing[node.id] = node

    def clear(self) -> None:
        """Leave it to whoever opens the store next."""
        self._owing.clear()

    async def give_back_some(self, bring_in: Loader) -> None:
        """Give back what some of them have not read. Where a sender cannot be had the store goes on saying they owe it.

        Raises:
            StoreError: the senders cannot be read now.
        """
        for node in list(islice(self._owing.values(), _SLICE)):
            try:
                await self._give_back((node,), bring_in)
            except NanotrioError as error:  # as its tool or its model is not to be had here
                if isinstance(error, StoreError) and not isinstance(error, StoreDamagedError):
                    raise
                _log.warning("what %s has not read cannot go back before its tree is resumed: %s", node.name, error)
            self._owing.pop(node.id, None)

    async def give_back_of(self, node: Node, bring_in: Loader) -> None:
        """Give back what the agent and its ancestors have not read. Checkpoints only where somebody is brought in.

        Raises:
            StoreError, UnknownToolError: from ``bring_in``.
        """
        await self._give_back([each for each in node.lineage() if each.session.owes_return], bring_in)

    async def _give_back(self, nodes: Sequence[Node], bring_in: Loader) -> None:
        await bring_in([agent for node in nodes for agent in senders_of(node)])
        for node in nodes:
            if node.session.owes_return:
                return_unread(self._runtime, node, is_loaded=True)
        self._runtime.append()

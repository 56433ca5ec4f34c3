"""Watchers: bounded streams of events that may lose some and never slow an agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import trio

from .events import Event
from .node import Node

__all__ = ["Watcher", "Watchers"]

MAX_BUFFERED_EVENTS = 10_000
"""Events a watcher may be behind; newer ones are then lost to it."""

Watcher: TypeAlias = "trio.MemorySendChannel[Event]"


class Watchers:
    """Those who watch a swarm; ``count`` is 0 while nobody does, and then no event is made."""

    def __init__(self) -> None:
        self.count = 0
        self._all: list[Watcher] = []

    def is_watched(self, node: Node) -> bool:
        """Whether anybody would see an event of ``node``."""
        if not self.count:
            return False
        return bool(self._all) or any(each.watchers for each in node.lineage())

    def emit(self, node: Node | None, event: Event) -> None:
        """Hand ``event`` to all who watch the node, an ancestor, or the swarm."""
        for watcher in self._all:
            _send(watcher, event)
        for each in node.lineage() if node else ():
            for watcher in each.watchers or ():
                _send(watcher, event)

    @asynccontextmanager
    async def watch(self, node: Node | None) -> AsyncIterator[trio.MemoryReceiveChannel[Event]]:
        """Yield the events of ``node`` and its descendants, or of the whole swarm, from now on."""
        send, receive = trio.open_memory_channel[Event](MAX_BUFFERED_EVENTS)
        if node is not None and node.watchers is None:
            node.watchers = []
        watchers = self._all if node is None else node.watchers
        assert watchers is not None
        watchers.append(send)
        self.count += 1
        try:
            yield receive
        finally:
            self.count -= 1
            watchers.remove(send)
            send.close()
            receive.close()


def _send(watcher: Watcher, event: Event) -> None:
    try:
        watcher.send_nowait(event)
    except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
        return

"""Wakes tasks a few at a time, so that the loop never stalls.

Theory of operation
-------------------
Trio runs every runnable task in one pass, and lets nothing else run before the pass ends: 5,000 agents that all got
their reply take a quarter of a second. So an agent that is ready to work asks the pump for a turn. Each pass has a
quota of turns; whoever asks while some are left goes on at once, the others are parked in the order they came and
are let go by the pump's own task, which runs once a pass for as long as anybody asks. New agents are started out of
the same quota.

What takes milliseconds by itself, such as a call that spawns a thousand children, asks for a *long turn*: there is one
in a pass, so ten who spawn at once do not add up to one stall.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import trio

__all__ = ["Parked", "Pump"]

QUOTA = 128
"""An agent takes a turn for each reply, and one to be started: so many let the replies of a pass go on in it."""


class Parked:
    """A task that waits to be let go; ``task`` is None once it was, or was cancelled."""

    __slots__ = ("task",)

    def __init__(self) -> None:
        self.task: trio.lowlevel.Task | None = trio.lowlevel.current_task()

    async def wait(self) -> None:
        """Sleep until the pump lets this task go. Cancelled, it is forgotten."""
        await trio.lowlevel.wait_task_rescheduled(self._forget)

    def _forget(self, _: Any) -> trio.lowlevel.Abort:
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Pump:
    """Hands out turns on the loop, at most ``QUOTA`` a pass, and one long one."""

    __slots__ = ("_is_taken", "_left", "_ready", "_task")

    def __init__(self) -> None:
        self._ready: deque[Parked | Callable[[], None]] = deque()
        self._left = QUOTA
        self._is_taken = False
        """The pass has had its long turn."""
        self._task: trio.lowlevel.Task | None = None

    def post(self, item: Parked | Callable[[], None]) -> None:
        """Let a parked task go, or call a plain function, when its turn comes."""
        self._ready.append(item)
        self._stir()

    def take_turn(self) -> bool:
        """Take a turn while the pass has some left; return whether it had."""
        if self._left > len(self._ready):
            self._left -= 1
            self._stir()
            return True
        return False

    async def turn(self) -> None:
        """Wait for a turn; returns at once, without a checkpoint, while the pass has some left."""
        if self.take_turn():
            return
        parked = Parked()
        self._ready.append(parked)
        self._stir()
        await parked.wait()

    async def long_turn(self) -> None:
        """Wait for a turn of some milliseconds; as ``turn``, the first who asks in a pass goes on at once."""
        while self._is_taken:
            parked = Parked()
            self._ready.append(parked)
            self._stir()
            await parked.wait()
        self._is_taken = True
        self._stir()

    def _stir(self) -> None:
        task = self._task
        if task is not None:
            self._task = None
            trio.lowlevel.reschedule(task)

    async def run(self) -> None:
        """Let go what is ready, a quota a pass. Runs until cancelled."""

        def abort(_: Any) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            self._left = QUOTA
            self._is_taken = False
            ready = self._ready
            while ready and self._left > 0:
                item = ready.popleft()
                if isinstance(item, Parked):
                    if item.task is not None:
                        trio.lowlevel.reschedule(item.task)
                        item.task = None
                        self._left -= 1
                else:
                    item()
                    self._left -= 1
            if ready:
                await trio.lowlevel.checkpoint()
            else:
                self._task = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(abort)

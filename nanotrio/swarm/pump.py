"""Wakes tasks a few at a time, so that the loop never stalls.

Theory of operation
-------------------
Trio runs every runnable task in one pass, and lets nothing else run before the pass ends: 5,000 agents that all got
their reply take a quarter of a second. So an agent that is ready to work asks the pump for a turn. Each pass has a
quota of turns; whoever asks while some are left goes on at once, the others are parked in the order they came and
are let go by the pump's own task, which runs once a pass for as long as anybody is parked. Those it lets go run in the
pass after, so their turns are taken from that one's quota. New agents are started out of the same quota.

Trio runs the tasks of a pass in an order of its own, so the pump's task may be the first of one and the last of the
next. What tells the passes apart is an instrument: Trio calls it between them.

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

STARTS = 40
"""Of these, for new agents while there are any."""


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


class Pump(trio.abc.Instrument):
    """Hands out turns on the loop, at most ``QUOTA`` a pass, and one long one; Trio tells it of each pass.

    New agents come by the hundred; of them ``STARTS`` are let go in a pass, and those who went on before have the rest.
    """

    __slots__ = ("_is_taken", "_left", "_promised", "_ready", "_starts", "_task")

    def __init__(self) -> None:
        self._ready: deque[Parked] = deque()
        self._starts: deque[Callable[[], None]] = deque()
        self._left = QUOTA
        self._promised = 0
        """Turns of the next pass."""
        self._is_taken = False
        """The pass has had its long turn."""
        self._task: trio.lowlevel.Task | None = None

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - Trio's
        """A pass is over."""
        self._left = QUOTA - self._promised
        self._promised = 0
        self._is_taken = False

    def post(self, parked: Parked) -> None:
        """Let a parked task go when its turn comes."""
        self._ready.append(parked)
        self._stir()

    def post_start(self, start: Callable[[], None]) -> None:
        """Call a plain function, which starts an agent, when its turn comes."""
        self._starts.append(start)
        self._stir()

    def take_turn(self) -> bool:
        """Take a turn while the pass has some left; return whether it had."""
        if self._left > 0:
            self._left -= 1
            return True
        return False

    async def turn(self) -> None:
        """Wait for a turn; returns at once, without a checkpoint, while the pass has some left."""
        if not self.take_turn():
            await self._queue()

    async def long_turn(self) -> None:
        """Wait for a turn of some milliseconds; as ``turn``, the first who asks in a pass goes on at once."""
        while self._is_taken:
            await self._queue()
        self._is_taken = True

    async def _queue(self) -> None:
        parked = Parked()
        self.post(parked)
        await parked.wait()

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

        ready, starts = self._ready, self._starts
        trio.lowlevel.add_instrument(self)
        try:
            while True:
                new = min(len(starts), STARTS)
                left = QUOTA - new
                while ready and left > 0:
                    parked = ready.popleft()
                    if parked.task is not None:
                        trio.lowlevel.reschedule(parked.task)
                        parked.task = None
                        left -= 1
                self._promised = QUOTA - left
                for _ in range(new):
                    starts.popleft()()
                if ready or starts:
                    await trio.lowlevel.checkpoint()
                else:
                    self._task = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(abort)
        finally:
            trio.lowlevel.remove_instrument(self)

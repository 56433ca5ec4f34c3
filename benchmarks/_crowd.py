"""The simulated agents of the benchmarks: what a scripted model says to each, and who waits for it.

Each child has a task of 500 bytes of its own and a system prompt of 4 KB that all share. It asks three times: the first
reply sends a message to the sibling ``later`` places after it, the second is a pause, as a provider's long turn has it,
and is asked on; the third hands in the result. The last ``later`` of a root's children write to their parent.
"""

from __future__ import annotations

import math
import os
import signal
from array import array
from collections.abc import Awaitable
from typing import Any

import trio

import nanotrio
from nanotrio.messages import ToolCall
from nanotrio.models import Conversation, Late, Reply, ScriptedModel, reply_calls, reply_text

__all__ = ["SLICE", "SYSTEM", "Crowd", "CrowdModel", "die_in_time", "spawn_all", "spawn_children", "task_of"]

SLICE = 1_000
"""Children a call of spawn_many."""
SYSTEM = "You are one of many agents that work on one large job. " * 75
_LET_GO = 128
_PADDING = "Read the row, decide what kind of row it is, tell your sibling, and hand in what you found. " * 6
_PAUSE = reply_text("I have told my sibling.", stop="pause")
_TOOLS = ("send_message", "submit_result")


def task_of(root: int, row: int) -> str:
    """Return the task of a root's child, 500 bytes."""
    return f"child {root} {row} {_PADDING}"[:500]


class Crowd:
    """The script's side: counts who waits, and knows which agent is called what.

    The children of one call of ``spawn_many`` have consecutive ids, and a name is ``w.ID``; so the first id of each
    slice is all that is kept of a million names. Replies are held back until every root's first ``later`` children are
    spawned, so that there is a sibling to write to; from then on the spawners stay ahead.
    """

    def __init__(self, agents: int, roots: int, later: int) -> None:
        self.later = later
        self.counts = [agents // roots + (index < agents % roots) for index in range(roots)]
        self.active = min(later, agents)
        self._firsts = [array("q") for _ in range(roots)]
        self._ahead = 0
        self.peak_waiting = 0
        self.to_parent = 0
        self.early = 0
        """Replies whose sibling was not there yet; they write to the parent, and should be none."""
        self.asked = 0
        """Last requests of children."""
        self.done = 0
        """Results that were replied, where the model counts them."""
        self.kill_at = 0
        """Results after which the process is to die; who asks later than these gets no reply."""
        self.may_die = trio.Event()
        self.may_reply = False
        self.held = trio.lowlevel.ParkingLot()
        """Who asked before any may be replied to."""
        self.full = trio.Event()
        """As many wait as may be active."""

    def spawned(self, root: int, first: int) -> None:
        """Note a slice of a root's children by its first id."""
        firsts, count = self._firsts[root], self.counts[root]
        was_ahead = len(firsts) * SLICE >= min(count, self.later + SLICE)
        firsts.append(first)
        is_ahead = len(firsts) * SLICE >= min(count, self.later + SLICE)
        self._ahead += is_ahead and not was_ahead
        self.may_reply = self._ahead == len(self.counts)

    async def let_go(self) -> None:
        """Let those go who were held back, some a pass: all at once would hold up the loop."""
        while self.may_reply and self.held:
            self.held.unpark(count=_LET_GO)
            await trio.lowlevel.checkpoint()

    def script(self, conversation: Conversation) -> Reply | Late:
        """Answer a root or a child by its task."""
        kind, _, rest = conversation.task.partition(" ")
        if kind != "child":
            return reply_text("noted")
        steps = conversation.steps
        if steps == 1:
            return _PAUSE
        root_text, row_text, _ = rest.split(" ", 2)
        row = int(row_text)
        if steps == 0:
            to = self._name(int(root_text), row + self.later)
            return reply_calls(("send_message", {"to": to, "text": f"row {row} is done"}))
        result = reply_calls(("submit_result", {"result": f"row {row} is of kind {row % 7}"}))
        self.asked += 1
        return Late(result, math.inf) if self.kill_at and self.asked > self.kill_at else result

    def waits(self, count: int) -> None:
        """So many wait for the model."""
        if count > self.peak_waiting:
            self.peak_waiting = count
            if count >= self.active:
                self.full.set()

    def replied(self, reply: Reply) -> None:
        """Count a result."""
        if any(isinstance(part, ToolCall) and part.name == "submit_result" for part in reply.parts):
            self.done += 1
            if self.done == self.kill_at:
                self.may_die.set()

    def _name(self, root: int, row: int) -> str:
        if row < self.counts[root]:
            firsts = self._firsts[root]
            number, place = divmod(row, SLICE)
            if number < len(firsts):
                return f"w.{firsts[number] + place}"
            self.early += 1
        self.to_parent += 1
        return "parent"


class CrowdModel:
    """A scripted model that really suspends; ``counts_results`` for ``Crowd.done``, at the cost of a frame."""

    def __init__(self, crowd: Crowd, latency_seconds: float, *, counts_results: bool = False) -> None:
        self._crowd = crowd
        self._counts_results = counts_results
        self._model = ScriptedModel(crowd.script, name="scripted/bench", latency_seconds=latency_seconds)
        self.name = self._model.name
        self.price = self._model.price
        self.codec = self._model.codec

    @property
    def waiting(self) -> int:
        """How many agents wait for it."""
        return len(self._crowd.held) + self._model.waiting

    def attempt(self, body: bytes, emit: Any, *, idle_seconds: float) -> Awaitable[Reply]:
        """Ask the script, once every sibling is there that it may name."""
        self._crowd.waits(self.waiting + 1)
        if self._counts_results or not self._crowd.may_reply:
            return self._attempt_later(body, emit, idle_seconds)
        return self._model.attempt(body, emit, idle_seconds=idle_seconds)

    async def _attempt_later(self, body: bytes, emit: Any, idle_seconds: float) -> Reply:
        if not self._crowd.may_reply:
            await self._crowd.held.park()
            self._crowd.waits(self.waiting + 1)  # while it was let go it counted as neither held nor asking
        reply = await self._model.attempt(body, emit, idle_seconds=idle_seconds)
        self._crowd.replied(reply)
        return reply


async def die_in_time(swarm: nanotrio.Swarm, crowd: Crowd) -> None:
    """End this process by SIGKILL once ``crowd.kill_at`` results were handed in, and are durable."""
    await crowd.may_die.wait()
    await trio.lowlevel.checkpoint()  # so that the last of them is queued
    statistics = swarm.statistics()
    last = statistics.durable_seq + statistics.queued_records
    while swarm.statistics().durable_seq < last:  # noqa: ASYNC110 - a figure that has no event
        await trio.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)


async def spawn_all(swarm: nanotrio.Swarm, crowd: Crowd, **options: Any) -> list[nanotrio.Agent]:
    """Start the roots, and below each its children; return when all are spawned, durably."""
    roots = [await swarm.spawn(f"root {index}", name="root", **options) for index in range(len(crowd.counts))]
    async with trio.open_nursery() as spawners:
        for index, root in enumerate(roots):
            spawners.start_soon(spawn_children, root, index, crowd)
    return roots


async def spawn_children(root: nanotrio.Agent, index: int, crowd: Crowd) -> None:
    """Give a root its children, a slice at a time: the next one is made when this one is durable."""
    count = crowd.counts[index]
    for start in range(0, count, SLICE):
        prompts = [task_of(index, row) for row in range(start, min(count, start + SLICE))]
        children = await root.spawn_many(prompts, name="w", tools=_TOOLS)
        first = children[0].id
        if children[-1].id - first != len(prompts) - 1:
            raise SystemExit("the ids of one spawn_many are not consecutive, as this benchmark takes them to be")
        crowd.spawned(index, first)
        await crowd.let_go()

"""Transcripts of agents that wait: out of memory, and back.

Theory of operation
-------------------
An agent that waits for a model, for others or for mail needs its transcript only when it makes its next request, and
the store has it. One task, ``run``, looks at every agent now and then: whose last record is the one it had at the last
look has waited all the time between, and if that record is durable its messages are dropped (``Session.evict``). So no
wait is timed by itself, and an agent that works is never touched. Where memory is short the task looks every second,
evicts those first that have waited longest, and stops when there is enough again.

Freed memory goes back to the system by the page, and a page is free when all that lay on it is. So where some thousand
agents have tasks the messages of a short conversation are packed into one piece while its agent waits for the model
(``Session.pack``, in ``calls``): that costs some microseconds, halves what they take, and keeps them apart from the
many small things that outlive them.

Before a session is needed whole its agent calls ``restore``. A second task, ``load``, reads what is asked for, many at
a time, and works through long chains a slice at a time. A store that cannot be read at the moment is asked again.

Memory is also looked at whenever agents are started. While there is too little, ``Slots`` starts no new agent as long
as any is active; this task says so, once, and lets them go on when it is over.
"""

from __future__ import annotations

import gc
import logging
from collections import deque
from typing import TYPE_CHECKING

import trio

from ..errors import RecordError, StoreDamagedError, StoreError
from ..messages import Message
from ..records import Record
from ..session import Session
from .ceiling import give_back
from .events import MemoryShort
from .node import Node
from .pump import QUOTA, Parked

if TYPE_CHECKING:
    from .ceiling import Ceiling
    from .runtime import Runtime

__all__ = ["Transcripts"]

_log = logging.getLogger("nanotrio")

_TICK_SECONDS = 5.0
_SHORT_SECONDS = 1.0
"""The same while memory is short."""

_RETRY_SECONDS = 0.5
_SLICE_RECORDS = 500
_MANY_EVICTED = 1_000
"""So many make it worth while to give memory back to the system."""


class _Wanted:
    """A task that waits for the transcript of its agent."""

    __slots__ = ("error", "node", "parked")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.parked = Parked()
        self.error: StoreError | RecordError | None = None


class Transcripts:
    """Evicts and restores the transcripts of one swarm.

    Attributes:
        wait_seconds: how long an agent has waited at least when it is evicted; at most twice as long and a tick.
        max_resident: up to so many agents in memory nobody is evicted, but where memory is short.
    """

    def __init__(self, runtime: Runtime, ceiling: Ceiling) -> None:
        self._runtime = runtime
        self._ceiling = ceiling
        self._wanted: deque[_Wanted] = deque()
        self._loader: Parked | None = None
        self._watch: Parked | None = None
        self._looked_at = 0.0
        self.wait_seconds = 30.0
        self.max_resident = 1_000

    def stir(self) -> None:
        """There are agents with tasks again, or memory is short: look."""
        if self._watch is not None:
            self._runtime.pump.post(self._watch)
            self._watch = None

    async def run(self) -> None:
        """Look at memory, and at who waits. Sleeps while no agent has a task and nothing is left to evict."""
        runtime = self._runtime
        self._looked_at = trio.current_time()
        while True:
            self._watch = Parked()
            if runtime.live or self._ceiling.is_reached:
                with trio.move_on_after(_SHORT_SECONDS if self._ceiling.is_reached else _TICK_SECONDS):
                    await self._watch.wait()
            else:
                await self._watch.wait()
            self._watch = None
            if self._ceiling.look():
                self.tell()
            is_due = trio.current_time() >= self._looked_at + self.wait_seconds
            if self._ceiling.is_reached or (is_due and len(runtime.nodes) > self.max_resident):
                self._looked_at = trio.current_time()
                await self.look()

    def tell(self) -> None:
        """Memory has become short, or is no more: say so, and let new agents start again."""
        trouble = self._ceiling.trouble()
        if trouble:
            _log.warning(trouble)
            gc.collect()
        if self._runtime.watchers.count:
            self._runtime.emit(None, MemoryShort(0, trouble))
        if trouble:
            self.stir()
        else:
            self._runtime.slots.hand_on()

    async def look(self) -> int:
        """Evict whoever has had no record since the last look; return how many that were. Checkpoints now and then."""
        runtime = self._runtime
        nodes = list(runtime.nodes.values())
        is_short = self._ceiling.is_reached
        if is_short:
            nodes.sort(key=lambda node: node.session.updated_us)
        evicted = 0
        for index, node in enumerate(nodes, 1):
            session = node.session
            if session.last_seq == node.seen_seq:
                evicted += self.evict(node)
            node.seen_seq = session.last_seq
            if index % QUOTA == 0:
                await trio.lowlevel.checkpoint()
                if is_short and evicted and self._ceiling.look():
                    self.tell()
                    break
        if evicted >= _MANY_EVICTED:
            await trio.to_thread.run_sync(give_back)
        return evicted

    def evict(self, node: Node) -> bool:
        """Drop the node's transcript; return False where there is none, or it is not durable."""
        session = node.session
        if not (session.messages or session.packed) or session.last_seq > self._runtime.journal.durable_seq:
            return False
        session.evict()
        node.encoded = None
        return True

    async def restore(self, node: Node) -> None:
        """Bring back the transcript of ``node``. Checkpoints; cancelled, it may come back none the less.

        Raises:
            StoreDamagedError, RecordError: what the store holds is not what was evicted.
        """
        node.session.unpack()
        while node.session.evicted:
            wanted = _Wanted(node)
            self._wanted.append(wanted)
            if self._loader is not None:
                self._runtime.pump.post(self._loader)
                self._loader = None
            await wanted.parked.wait()
            if wanted.error is not None:
                raise wanted.error

    async def load(self) -> None:
        """Read what is asked for. Runs until cancelled."""
        while True:
            while self._wanted:
                some = [self._wanted.popleft() for _ in range(min(QUOTA, len(self._wanted)))]
                await self._load([each for each in some if each.parked.task is not None])
            self._loader = Parked()
            await self._loader.wait()

    async def _load(self, wanted: list[_Wanted]) -> None:
        while wanted:
            ends = [(each.node.session.evicted_seq, each.node.session.snapshot_seq) for each in wanted]
            try:
                chains = await self._runtime.store.load(ends)
            except StoreDamagedError as error:
                if len(wanted) > 1:  # find out whose it is
                    for each in wanted:
                        await self._load([each])
                else:
                    self._answer(wanted[0], error)
                return
            except StoreError as error:
                _log.warning("transcripts cannot be read, and are asked for again: %s", error)
                await trio.sleep(_RETRY_SECONDS)
                continue
            await self._put_back(wanted, ends, chains)
            return

    async def _put_back(self, wanted: list[_Wanted], ends: list[tuple[int, int]], chains: list[list[Record]]) -> None:
        records = 0
        for each, (seq, _), chain in zip(wanted, ends, chains, strict=True):
            session = each.node.session
            error = None
            try:
                messages = await self._replay(session.agent, chain)
                if session.evicted and session.evicted_seq == seq:  # nobody else had asked for the same
                    session.restore(messages)
            except RecordError as broken:
                error = broken
            self._answer(each, error)
            records += len(chain)
            if records >= _SLICE_RECORDS:
                records = 0
                await trio.lowlevel.checkpoint()

    async def _replay(self, agent: int, chain: list[Record]) -> list[Message]:
        session = Session(agent)
        for index, record in enumerate(chain, 1):
            session.apply(record)
            if index % _SLICE_RECORDS == 0:
                await trio.lowlevel.checkpoint()
        return session.messages

    def _answer(self, wanted: _Wanted, error: StoreError | RecordError | None) -> None:
        wanted.error = error
        self._runtime.pump.post(wanted.parked)

"""The queue of records and its one writer.

Theory of operation
-------------------
Agents append groups and go on; one task, ``Journal.run``, commits what is queued. A batch is cut between groups only,
so mail and the result of the call that sent it never part. While somebody waits for ``durable`` or ``flush`` the
writer commits at once; otherwise it lets 20 ms of records gather.

A batch that failed is tried again as it is, with the same number, until the store takes it: the answer of a commit
that was made may have been lost, and the store passes over a number it has seen. Meanwhile ``trouble`` says what is
wrong, nobody is told "durable", and appenders who ask for ``room`` wait at the bound. A lost fence or a damaged store
is final: ``failed`` is set, everyone who waits gets it, and appending raises it.

Heads are written in *rounds*. A round begins when enough records have passed, when nothing was appended for a while,
or for ``flush``; it notes the last number given out, takes the set of agents with records since the former round, and
writes their heads a few hundred a batch, or half as many as records wait, so that a round ends however fast new agents
come. Each batch of a round holds every record appended up to then, since heads show the live state and must not run
ahead of the log. With its last batch the store learns the number noted at the start: up to it all heads are true.

Some stores are held by a lease that commits renew. Where nothing was committed for ``renew_seconds`` an empty batch is,
so an idle owner keeps its store, and learns soon that another took it.

All is plain data of one Trio thread. Tasks wait by being parked in a dict; the writer wakes at most 256 a pass, so that
thousands of acknowledged agents do not become one long stall.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

import outcome
import trio

from .. import crash
from ..errors import ClosedError, FencedError, StoreDamagedError, StoreError
from ..records import Head, Record
from ..stores.store import Batch, Store, Tenure
from ..stores.tail import Tail
from .contents import Contents
from .due import DueHeads, Elsewhere, Here
from .limits import JournalLimits, JournalStatistics

__all__ = ["Journal"]

_WAKE_SLICE = 256
_RETRY_FIRST_SECONDS = 0.05
_RETRY_LAST_SECONDS = 1.0
_NEVER = sys.maxsize

_Waiters: TypeAlias = dict[trio.lowlevel.Task, int]


class Journal:
    """The one way records go into a store.

    ``heads`` is asked, on the loop, for the live heads of some agents: of every agent that had a record since the
    journal began, ended ones included, and of those in ``tail``, which is what the store holds after its last true
    heads (``read_tail``). Those that it leaves out are asked of ``elsewhere``, which may read the store; what that does
    not have yet ``due.given`` has. Between them they return one for each. Where ``elsewhere`` raises ``StoreError`` it
    is asked again. ``committed`` is told after each commit which heads it held.

    Attributes that may be read at any time, each cheaper than the method that waits for it:
        next_seq, durable_seq: the number the next record will get; up to which all are committed.
        is_full: whether ``room`` would wait.
        trouble: why the store does not take writes at the moment, empty when it does.
        failed: the final error, or None.
        due: agents whose newest heads the store may lack; ``mark`` there one whose head changed without a record.
    """

    def __init__(
        self,
        store: Store,
        tenure: Tenure,
        heads: Here,
        *,
        elsewhere: Elsewhere | None = None,
        tail: Tail | None = None,
        limits: JournalLimits | None = None,
        committed: Callable[[Sequence[Head]], None] | None = None,
    ) -> None:
        self._store = store
        self._committed = committed
        self.limits = limits or JournalLimits()
        self.next_seq = tenure.last_seq + 1
        self.durable_seq = tenure.last_seq
        self.heads_seq = tenure.heads_seq
        self.trouble = ""
        self.failed: StoreError | None = None
        self._closed = False
        self._gave_up = False

        self._groups: deque[Sequence[Record]] = deque()
        self._queued_records = 0
        self._queued_bytes = 0
        self._flight: Batch | None = None
        self._flight_bytes = 0
        self._batches = 0
        self._committed_bytes = 0
        self._renew_seconds = tenure.renew_seconds
        self._renew_at = math.inf

        self.due = DueHeads(heads, elsewhere)
        self._round_seq: int | None = None
        self._flush_seq = 0
        self._contents = Contents(self.limits.max_contents)
        if tail is not None:
            self.due.mark(tail.last_seq)
            for digest, seq in tail.contents.items():
                self._contents.remember(digest, seq)
        elif tenure.heads_seq < tenure.last_seq:
            raise ValueError("records follow the last true heads: read the store's tail and hand it over")

        self._writer: trio.lowlevel.Task | None = None
        self._parked = False
        # Appending wakes the writer when the queue holds this many records.
        self._wake_at = _NEVER
        self._durable_waiters: _Waiters = {}
        self._flush_waiters: _Waiters = {}
        self._room_waiters: _Waiters = {}
        self._changed = trio.Event()
        self._stopped = trio.Event()
        self._stopped.set()

    # Appending.

    @property
    def is_full(self) -> bool:
        """Whether ``room`` would wait."""
        limits = self.limits
        return (
            self.next_seq - self.durable_seq > limits.max_queued_records
            or self._queued_bytes + self._flight_bytes >= limits.max_queued_bytes
        )

    def append_nowait(self, group: Sequence[Record], heads: Sequence[Head] = ()) -> None:
        """Queue ``group``, whose numbers go on from ``next_seq`` without a gap; it is committed whole or not at all.

        ``heads`` are those of agents whose every record is in the group: they are committed with it, and nobody is
        asked for them. The journal keeps both sequences: do not change them afterwards. There is always room here;
        whoever makes many records waits in ``room`` first. Does not checkpoint.

        Raises:
            StoreError: the journal failed for good.
            ClosedError: it was closed.
            LimitError: a record is larger than ``max_record_bytes``.
        """
        if self._closed or self.failed is not None:
            raise self._why_not()
        seq = self.next_seq
        size = 0
        for record in group:
            if record.seq != seq:
                raise ValueError(f"a record numbered {record.seq} was appended where {seq} comes next")
            seq += 1
            size += len(record.facts)
        if size > self.limits.max_record_bytes:
            self.limits.check_sizes(group)
        self.due.appended(group, heads, seq - 1)
        if self._contents.fresh:
            self._contents.appended(group, self.next_seq)
        self.next_seq = seq
        self._groups.append(group)
        self._queued_bytes += size
        self._queued_records += len(group)
        if self._queued_records >= self._wake_at:
            self._wake()

    async def room(self) -> None:
        """Wait until the queue is below its bound. Checkpoints; on a hot path look at ``is_full`` first.

        Raises:
            StoreError, ClosedError: as ``append_nowait``.
        """
        if not self.is_full:
            await trio.lowlevel.checkpoint()
        while self.is_full:
            self._wake()
            await self._wait(self._room_waiters, 0)

    def content(self, body: bytes, at_us: int, group: list[Record]) -> int:
        """Return the number of a content record with ``body``, for the facts of ``group`` to refer to.

        Where none is known, one is added to ``group``, numbered to follow what stands there; so the group must begin
        at ``next_seq`` and be appended before anything is awaited. Does not checkpoint. Hashes the body: keep the
        number where the same value is used often.
        """
        return self._contents.find_or_add(body, at_us, group, self.next_seq)

    # Waiting.

    async def durable(self, seq: int) -> None:
        """Wait until record ``seq`` is committed. Checkpoints; on a hot path look at ``durable_seq`` first.

        Cancelling it only ends the wait.

        Raises:
            StoreError: it will never be, from here.
            ClosedError: the journal was closed before it was.
        """
        if seq >= self.next_seq:
            raise ValueError(f"record {seq} was not appended; the next is {self.next_seq}")
        if seq > self.durable_seq:
            self._wake()
            await self._wait(self._durable_waiters, seq)
        else:
            await trio.lowlevel.checkpoint()

    async def flush(self) -> None:
        """Wait until all that was appended so far is committed, and the heads with it. Checkpoints.

        Raises:
            StoreError, ClosedError: as ``durable``.
        """
        seq = self.next_seq - 1
        if self.heads_seq < seq:
            self._flush_seq = seq
            self._wake()
            await self._wait(self._flush_waiters, seq)
        else:
            await trio.lowlevel.checkpoint()

    async def wait_trouble_change(self, known: str) -> str:
        """Wait until ``trouble`` is not ``known``, and return it. Checkpoints."""
        await trio.lowlevel.checkpoint()
        while self.trouble == known:
            await self._changed.wait()
        return self.trouble

    async def wait_failed(self) -> StoreError:
        """Wait until the journal has failed for good, and return why. Checkpoints."""
        await trio.lowlevel.checkpoint()
        while self.failed is None:
            await self._changed.wait()
        return self.failed

    def statistics(self) -> JournalStatistics:
        """Return counts."""
        return JournalStatistics(
            queued_records=self.next_seq - 1 - self.durable_seq,
            queued_bytes=self._queued_bytes + self._flight_bytes,
            durable_seq=self.durable_seq,
            heads_seq=self.heads_seq,
            batches=self._batches,
            committed_bytes=self._committed_bytes,
            trouble=self.trouble,
        )

    # Writing.

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be the one writer, until ``aclose`` or cancellation, which leaves what is queued to ``aclose``.

        A store that fails does not end it: that shows in ``trouble`` and ``failed``.
        """
        if self._writer is not None:
            raise RuntimeError("a journal has one writer, and it runs already")
        self._writer = trio.lowlevel.current_task()
        self._stopped = trio.Event()
        self._renew_at = trio.current_time() + self._renew_seconds
        try:
            task_status.started()
            while self.failed is None and not self._closed:
                await self._gather()
                await self._write()
        finally:
            self._writer = None
            self._stopped.set()

    async def aclose(self, deadline: float) -> None:
        """Commit all that is queued, with heads, and take no more; give up at ``deadline`` (Trio's clock).

        Runs in a shield, so it works in a cancelled scope; the store stays open. Checkpoints.

        Raises:
            StoreError: some records could not be written; says how many and why.
        """
        self._closed = True
        self._flush_seq = self.next_seq - 1
        self._wake()
        with trio.CancelScope(deadline=deadline, shield=True):
            await self._stopped.wait()
            while self.failed is None and self._has_work():
                await self._write()
            await self._wake_waiters()
        self._gave_up = True
        lost = self.next_seq - 1 - self.durable_seq
        if self.failed is None and lost:
            self._end_waits(ClosedError("the journal was closed before the record was written"))
            raise StoreError(f"{lost} of the records could not be written by the end: {self.trouble or 'out of time'}")
        self._end_waits(self._why_not())
        if self.failed is not None:
            raise self._why_not()

    def _has_work(self) -> bool:
        return bool(self._flight or self._groups or self._round_seq is not None or self.heads_seq < self._flush_seq)

    async def _gather(self) -> None:
        """Wait until there is something to commit, and for a while until there is more."""
        if self._flight or self._round_seq is not None or self._flush_seq > self.heads_seq:
            await trio.lowlevel.checkpoint()
            return
        if not self._groups:
            idle = self.limits.heads_idle_seconds if self.due else math.inf
            if not await self._park(1, min(idle, max(self._renew_at - trio.current_time(), 0.0))):
                if self.due:
                    self._flush_seq = self.next_seq - 1
                return
        elif self._is_urgent():
            await trio.lowlevel.checkpoint()
        if not self._is_urgent():
            await self._park(self.limits.max_batch_records, self.limits.gather_seconds)

    def _is_urgent(self) -> bool:
        waited_for = self._durable_waiters or self._room_waiters or self._flush_seq > self.heads_seq
        return bool(waited_for) or self._closed

    async def _park(self, wake_at: int, seconds: float) -> bool:
        """Sleep until woken (True) or for ``seconds`` (False)."""
        if self._queued_records >= wake_at:
            await trio.lowlevel.checkpoint()
            return True
        self._wake_at = wake_at
        self._parked = True

        def abort(_: object) -> trio.lowlevel.Abort:
            self._parked = False  # Trio has rescheduled the task; a wake in the same pass must not do so again
            return trio.lowlevel.Abort.SUCCEEDED

        try:
            with trio.move_on_after(seconds) as scope:
                await trio.lowlevel.wait_task_rescheduled(abort)
        finally:
            self._parked = False
            self._wake_at = _NEVER
        return not scope.cancelled_caught

    def _wake(self) -> None:
        if self._parked and self._writer is not None:
            self._parked = False
            self._wake_at = _NEVER
            trio.lowlevel.reschedule(self._writer)

    async def _write(self) -> None:
        """Commit one batch, again and again until the store takes it or has failed for good."""
        if self._flight is None and await self._gather_heads():
            self._flight = self._cut()
        if self._flight is None:
            return
        batch = self._flight
        crash.pass_commit("before", batch.records, batch.heads)
        if not await self._insist(partial(self._store.commit, batch)):
            return
        crash.pass_commit("after", batch.records, batch.heads)
        self._settle(batch)
        crash.pass_point("before-acknowledgement", self.durable_seq)
        await self._wake_waiters()
        crash.pass_point("after-acknowledgement", self.durable_seq)

    async def _insist(self, act: Callable[[], Awaitable[None]]) -> bool:
        """Do it again and again until it is done; return False where it has failed for good, or was given up."""
        pause = _RETRY_FIRST_SECONDS
        while True:
            try:
                await act()
            except (FencedError, StoreDamagedError) as error:
                self._fail(error)
                return False
            except StoreError as error:
                self._tell(str(error))
                await trio.sleep(pause)
                if self._gave_up:
                    return False
                pause = min(pause * 2, _RETRY_LAST_SECONDS)
            else:
                return True

    async def _gather_heads(self) -> bool:
        """Begin a round where one is due, and have heads ready, in slices; return False where that failed for good."""
        is_due = self._flush_seq > self.heads_seq or self.next_seq - 1 - self.heads_seq >= self.limits.heads_records
        if self._round_seq is None and is_due:
            self.due.begin_round()
            self._round_seq = self.next_seq - 1
        while self.due.has_left:
            if not await self._insist(partial(self.due.ask, self.limits.heads_slice)):
                return False
            if self.due.ready >= self._queued_records // 2:
                break
            await trio.lowlevel.checkpoint()
        return True

    def _cut(self) -> Batch | None:
        """Take the next batch off the queue, None where there is nothing to write."""
        records, self._flight_bytes = self._take_groups(whole=self._round_seq is not None)
        heads = self.due.take(records[-1].seq if records else self.durable_seq)
        heads_seq: int | None = None
        if self._round_seq is not None and not self.due.has_left:
            heads_seq, self._round_seq = self._round_seq, None
        if not records and not heads and heads_seq is None and trio.current_time() < self._renew_at:
            return None
        return Batch(self._batches + 1, records, heads, heads_seq)

    def _take_groups(self, *, whole: bool) -> tuple[list[Record], int]:
        """Take all groups, or as many as make a batch; return their records and the bytes of their facts."""
        limits, groups = self.limits, self._groups
        records: list[Record] = []
        size = 0
        if whole or (self._queued_records <= limits.max_batch_records and self._queued_bytes <= limits.max_batch_bytes):
            for group in groups:
                records.extend(group)
            groups.clear()
            size = self._queued_bytes
        else:
            while groups and len(records) < limits.max_batch_records and size < limits.max_batch_bytes:
                group = groups.popleft()
                records.extend(group)
                size += sum([len(record.facts) for record in group])
        self._queued_bytes -= size
        self._queued_records -= len(records)
        return records, size

    def _settle(self, batch: Batch) -> None:
        self._flight = None
        self._batches = batch.number
        self._renew_at = trio.current_time() + self._renew_seconds
        self._committed_bytes += self._flight_bytes
        self._flight_bytes = 0
        if batch.records:
            self.durable_seq = batch.records[-1].seq
        self.due.committed(batch.heads)
        if batch.heads_seq is not None:
            self.heads_seq = batch.heads_seq
        if self.trouble:
            self._tell("")
        if self._committed is not None:
            self._committed(batch.heads)

    async def _wake_waiters(self) -> None:
        """Wake those whose wait is over, some hundreds a pass."""
        ready = [task for task, seq in self._durable_waiters.items() if seq <= self.durable_seq]
        ready += [task for task, seq in self._flush_waiters.items() if seq <= self.heads_seq]
        for start in range(0, len(ready), _WAKE_SLICE):
            if start:
                await trio.lowlevel.checkpoint()
            for task in ready[start : start + _WAKE_SLICE]:
                # It may have been cancelled meanwhile.
                if self._durable_waiters.pop(task, None) is not None or self._flush_waiters.pop(task, None) is not None:
                    trio.lowlevel.reschedule(task)
        while self._room_waiters and not self.is_full:
            for task in list(self._room_waiters)[:_WAKE_SLICE]:
                del self._room_waiters[task]
                trio.lowlevel.reschedule(task)
            await trio.lowlevel.checkpoint()

    async def _wait(self, waiters: _Waiters, seq: int) -> None:
        if self.failed is not None or (self._closed and self._writer is None):
            raise self._why_not()
        task = trio.lowlevel.current_task()
        waiters[task] = seq

        def abort(_: object) -> trio.lowlevel.Abort:
            waiters.pop(task, None)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    # Failing.

    def _tell(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            changed, self._changed = self._changed, trio.Event()
            changed.set()

    def _fail(self, error: StoreError) -> None:
        self.failed, self.trouble = error, ""
        self._tell(str(error))
        self._end_waits(error)

    def _end_waits(self, error: Exception) -> None:
        for waiters in (self._durable_waiters, self._flush_waiters, self._room_waiters):
            for task in waiters:
                trio.lowlevel.reschedule(task, outcome.Error(_again(error)))
            waiters.clear()

    def _why_not(self) -> Exception:
        if self.failed is not None:
            return _again(self.failed)
        return ClosedError("the journal was closed; nothing more can be appended")


def _again(error: Exception) -> Exception:
    """Another of the same, so that each task that gets it has a traceback of its own."""
    copy = type(error)(str(error))
    copy.__cause__ = error.__cause__
    return copy

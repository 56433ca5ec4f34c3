"""What stands below an agent, alone: a coroutine, a task of Trio, and beside them a goroutine."""

from __future__ import annotations

import gc
import shutil
import subprocess
import time
import tracemalloc
import types
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any

import outcome
import trio

from benchmarks._measures import pss_mb
from nanotrio.swarm.interpreter import tuned_interpreter

__all__ = ["BARE", "Meter", "run_bare"]

BARE = ("coroutine", "trio_task", "goroutine")


class Meter:
    """Bytes and seconds since the last look: resident ones, or, where allocations are traced, those of the heap."""

    def __init__(self, *, is_heap: bool) -> None:
        self._is_heap = is_heap
        if is_heap:
            tracemalloc.start()
        self.look()

    def look(self) -> None:
        """Begin anew."""
        self._bytes = self._now()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def _now(self) -> float:
        if not self._is_heap:
            return pss_mb() * 2**20
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    def bytes_each(self, count: int) -> dict[str, float]:
        """Return what each of ``count`` takes; garbage that the collector left stands in the resident size."""
        return {"heap_bytes" if self._is_heap else "resident_bytes": (self._now() - self._bytes) / count}

    def times(self, name: str, count: int) -> dict[str, float]:
        """Return how long each took; nothing where tracing allocations has made it several times as long."""
        if self._is_heap:
            return {}
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {f"{name}_us": wall / count * 1e6, f"{name}_cpu_us": cpu / count * 1e6}


def run_bare(subject: str, count: int, *, is_heap: bool) -> dict[str, Any]:
    """Measure one of ``BARE``; empty where it is not on this machine."""
    if subject == "goroutine":
        return {} if is_heap else _goroutines(count)
    with tuned_interpreter():
        return (
            _coroutines(count, Meter(is_heap=is_heap))
            if subject == "coroutine"
            else trio.run(_tasks, count, Meter(is_heap=is_heap))
        )


@types.coroutine
def _yield() -> Generator[None, None, None]:
    yield


async def _coroutine() -> None:
    while True:
        await _yield()


def _coroutines(count: int, meter: Meter) -> dict[str, Any]:
    made: list[Coroutine[Any, Any, None]] = [None] * count  # type: ignore[list-item]
    meter.look()
    for index in range(count):
        coroutine = made[index] = _coroutine()
        coroutine.send(None)
    times = meter.times("start", count)
    sizes = meter.bytes_each(count)
    meter.look()
    for coroutine in made:
        coroutine.send(None)
    return {"count": count, **sizes, **times, **meter.times("wake", count)}


class _Tasks:
    """Tasks that are parked, and how many of them are."""

    def __init__(self, count: int) -> None:
        self.tasks: list[trio.lowlevel.Task] = []
        self.left = count
        self.done = trio.Event()

    def expect(self, count: int) -> None:
        self.left = count
        self.done = trio.Event()

    async def park(self) -> None:
        self.tasks.append(trio.lowlevel.current_task())
        while True:
            self.left -= 1
            if not self.left:
                self.done.set()
            await trio.lowlevel.wait_task_rescheduled(_give_way)


def _give_way(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.SUCCEEDED


async def _tasks(count: int, meter: Meter) -> dict[str, Any]:
    parked = _Tasks(count)
    async with trio.open_nursery() as nursery:
        meter.look()
        for _ in range(count):
            nursery.start_soon(parked.park)
        await parked.done.wait()
        times = meter.times("start", count)
        sizes = meter.bytes_each(count)
        parked.expect(count)
        meter.look()
        for task in parked.tasks:
            trio.lowlevel.reschedule(task, outcome.Value(None))
        await parked.done.wait()
        times |= meter.times("wake", count)
        nursery.cancel_scope.cancel()
    return {"count": count, **sizes, **times}


def _goroutines(count: int) -> dict[str, Any]:
    import json

    go = shutil.which("go")
    if go is None:
        return {}
    source = Path(__file__).with_name("goroutine.go")
    done = subprocess.run([go, "run", str(source), str(count)], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))

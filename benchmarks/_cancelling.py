"""Cancelling a wide tree, and how long the loop stalls meanwhile."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import trio

import nanotrio
from benchmarks._crowd import SYSTEM, Crowd, CrowdModel, spawn_all
from benchmarks._measures import Stalls
from nanotrio.stores import open_store

__all__ = ["WAYS", "run_cancelled", "take_signals"]

WAYS = ("cancel", "scope", "sigint")


def take_signals() -> None:
    """Have SIGINT raise ``KeyboardInterrupt``, also where a shell started the process behind ``&``, with it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class _Cancelling:
    """One run: the clock is started by the canceller and stopped when all of the swarm is gone."""

    def __init__(self) -> None:
        self.stalls = Stalls()
        self.started = 0.0
        self.seconds = 0.0
        self.pending = 0

    def start(self, swarm: nanotrio.Swarm) -> None:
        self.pending = swarm.statistics().pending
        self.stalls.reset()
        self.started = time.perf_counter()

    def stop(self) -> None:
        """A second call changes nothing."""
        self.seconds = self.seconds or time.perf_counter() - self.started


async def run_cancelled(url: str, crowd: Crowd, active: int, way: str) -> dict[str, Any]:
    """Let ``active`` agents wait for the model and all others be pending, then end them.

    ``cancel`` is over when ``cancel()`` of every root has returned, with each agent's end durable; the others when
    ``open_swarm`` has been left, with every agent interrupted and everything that was queued durable.
    """
    run = _Cancelling()
    async with trio.open_nursery() as watchers:
        watchers.start_soon(run.stalls.run)
        with trio.CancelScope() as scope:
            try:
                await _fill_and_cancel(url, crowd, active, way, run, scope.cancel)
            except* KeyboardInterrupt:
                if way != "sigint":
                    raise
        run.stop()
        figures = run.stalls.figures()
        watchers.cancel_scope.cancel()
    store = await open_store(url, read_only=True)
    try:
        unfinished, after = 0, 0
        while heads := await store.heads(unfinished=True, after=after):
            unfinished += len(heads)
            after = heads[-1].agent
    finally:
        await store.aclose()
    return {
        "cancel": way,
        "waiting": crowd.peak_waiting,
        "pending": run.pending,
        "cancel_seconds": run.seconds,
        "unfinished_after": unfinished,
        **figures,
    }


async def _fill_and_cancel(
    url: str, crowd: Crowd, active: int, way: str, run: _Cancelling, cancel_scope: Callable[[], None]
) -> None:
    limits = nanotrio.Limits(max_live=active + len(crowd.counts) + 16, max_total=max(crowd.counts) + 1)
    model = CrowdModel(crowd, float("inf"))
    try:
        async with nanotrio.open_swarm(
            store=url, model=model, system=SYSTEM, limits=limits, max_active=active
        ) as swarm:
            roots = await spawn_all(swarm, crowd)
            await crowd.full.wait()
            await swarm.flush()
            await trio.sleep(0.5)
            run.start(swarm)
            if way == "cancel":
                async with trio.open_nursery() as nursery:
                    for root in roots:
                        nursery.start_soon(root.cancel)
                run.stop()
                return
            if way == "scope":
                cancel_scope()
            else:
                os.kill(os.getpid(), signal.SIGINT)
            await trio.sleep_forever()
    finally:
        if way != "cancel":
            run.stop()

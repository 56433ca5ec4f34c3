"""Python's collector of cycles, kept from looking again and again at what thousands of agents hold.

Theory of operation
-------------------
The collector looks at the young objects whenever some thousand more were made than freed. Freed ones count whatever
their age, so where agents end as fast as others begin, all that the active ones hold may have gathered by then: some
200,000 objects of 5,000 agents, which is a stall of 80 ms, and a twentieth of the time in all. The swarm itself leaves
no cycles behind, so there is nothing to find.

So once a look took long, the ones after it are passed over: what has gathered is *set aside* instead (``gc.freeze``,
which takes a microsecond however much it is). It is freed as ever when its last reference goes; only cycles stay. They
are looked for, among all that there is, when the process has grown so much that they may be the reason, or has reached
its ceiling, and whenever the program itself calls ``gc.collect``. That look is a stall, of some 200 ms with 5,000
agents, and rare for it.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import trio

from .ceiling import resident_bytes

__all__ = ["Collector"]

_LONG_SECONDS = 0.005
"""A look at the young that takes longer is the last one."""

_GROWTH = 2.0
_LEAST_GROWTH_BYTES = 512 << 20
"""So much the process has to grow, at least, before all is looked at."""

_BLOCK_BYTES = 64
"""About what a piece of memory has that Python gave out."""

_OLDEST = 2


class Collector:
    """While entered, passes over looks at the young once one took long; make it on the Trio thread, if there is one."""

    __slots__ = ("_began", "_is_asked", "_long_seconds", "_look_at_bytes", "_size", "_token", "passes_over")

    def __init__(self, *, long_seconds: float = _LONG_SECONDS, size: Callable[[], int] | None = None) -> None:
        self._long_seconds = long_seconds
        self._size = size or _size_bytes
        self._token = trio.lowlevel.current_trio_token() if trio.lowlevel.in_trio_run() else None
        self._began = 0.0
        self._look_at_bytes = 0.0
        self._is_asked = False
        self.passes_over = False
        """Whether the young are set aside unseen by now."""

    def __enter__(self) -> Self:
        gc.callbacks.append(self._on_look)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        gc.callbacks.remove(self._on_look)

    def _on_look(self, phase: str, info: dict[str, Any]) -> None:
        """Python is about to look, or has looked. Called in any thread, wherever an object is made."""
        if info["generation"] == _OLDEST:
            if phase == "start" and self.passes_over:
                gc.unfreeze()
        elif phase == "start":
            self._began = time.perf_counter()
            if self.passes_over:
                gc.freeze()
                if self._token is not None and not self._is_asked and self._size() >= self._look_at_bytes:
                    self._is_asked = True
                    self._token.run_sync_soon(self.look_at_all)
        elif not self.passes_over and time.perf_counter() - self._began >= self._long_seconds:
            self.passes_over = True
            self._note_size()

    def look_at_all(self) -> None:
        """Free all cycles that nobody refers to, whatever their age. A stall; does not checkpoint."""
        gc.collect()
        if self.passes_over:
            gc.freeze()
        self._note_size()
        self._is_asked = False

    def _note_size(self) -> None:
        size = self._size()
        self._look_at_bytes = max(size * _GROWTH, size + _LEAST_GROWTH_BYTES)


def _size_bytes() -> int:
    return resident_bytes() or sys.getallocatedblocks() * _BLOCK_BYTES

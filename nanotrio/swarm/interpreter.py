"""The interpreter, tuned for a swarm while one is open: its collector, and how soon a thread gets its turn.

Measured: at its defaults the collector costs a fifth of an agent's time, and stalls the loop for 50 ms and more, since
it looks again and again at what lives long. What exists when the swarm opens is set aside, the thresholds are changed,
and once many agents are at work the young are passed over (``collector.py``); values that cannot form cycles are not
tracked at all (``gc=False``). What a swarm leaves behind is in cycles, and would be set aside unseen by the next one
that opens; so where the process has grown by a quarter since then, and by much, all is looked at first.

A thread that wants the interpreter's lock asks for it after it has waited a whole switch interval, 5 ms by default. A
busy loop lets go of the lock for a microsecond in every pass, to look for events; a pass that is shorter than the
interval starts the thread's wait anew each time and takes the lock back before it has woken, so that the writer of the
journal may wait for as long as the loop is busy. With an interval shorter than a pass it gets its turn.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from .collector import Collector

__all__ = ["tuned_interpreter"]

_THRESHOLDS = (5_000, 2_000, 1_000)
_SWITCH_SECONDS = 0.001
_MUCH_BLOCKS = 100_000
"""Pieces of memory: of some thousand agents."""
_open = 0
_blocks = 0
"""How many there were when all was looked at, or when the first swarm was opened."""


@contextmanager
def tuned_interpreter() -> Iterator[None]:
    """Tune the interpreter for the block, and put it back as it was after the outermost one.

    A program that has set thresholds or a shorter switch interval of its own, or disabled the collector, keeps them.
    """
    global _open  # noqa: PLW0603 - the interpreter is one for the process
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    is_outermost = _open == 0
    tunes_collector = is_outermost and gc.isenabled() and thresholds[0] == 700
    _open += 1
    try:
        with ExitStack() as undo:
            if tunes_collector:
                _look_if_grown()
                gc.freeze()
                undo.callback(gc.unfreeze)
                gc.set_threshold(*_THRESHOLDS)
                undo.callback(gc.set_threshold, *thresholds)
                undo.enter_context(Collector())
            if is_outermost:
                sys.setswitchinterval(min(interval, _SWITCH_SECONDS))
                undo.callback(sys.setswitchinterval, interval)
            yield
    finally:
        _open -= 1


def _look_if_grown() -> None:
    global _blocks  # noqa: PLW0603
    blocks = sys.getallocatedblocks()
    if _blocks and blocks - _blocks >= max(_blocks // 4, _MUCH_BLOCKS):
        gc.collect()
        _blocks = sys.getallocatedblocks()
    _blocks = _blocks or blocks

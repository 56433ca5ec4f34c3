"""A bound on the processor time of code that a model has a hand in, and that cannot be awaited.

Matching a pattern, or trying the alternatives of a schema, may take a time that doubles with every letter, and nobody
else runs meanwhile. A timer of the process interrupts it: Python looks for signals between its instructions, and its
matcher of patterns does so too.
"""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

__all__ = ["CpuLimitError", "call_within"]

_AGAIN_SECONDS = 0.01
_T = TypeVar("_T")


class CpuLimitError(Exception):
    """The call took too long."""


def call_within(seconds: float, call: Callable[[], _T]) -> _T:
    """Return what ``call`` returns, unless the process has computed for ``seconds`` meanwhile.

    Signals reach the main thread alone, so in another thread there is no bound. A timer of the same kind that somebody
    has set goes on afterwards.

    Raises:
        CpuLimitError: it took longer, and was broken off.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    is_collecting = gc.isenabled()
    gc.disable()  # what is raised while an object is thrown away is lost, so none of others is
    former = signal.signal(signal.SIGVTALRM, _interrupt)
    left, interval = signal.setitimer(signal.ITIMER_VIRTUAL, seconds, _AGAIN_SECONDS)  # and if it is, there comes more
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, left, interval)
        signal.signal(signal.SIGVTALRM, former)
        if is_collecting:
            gc.enable()


def _interrupt(_: int, frame: FrameType | None) -> None:
    # In the frame of call_within itself it would come between the call and the timer's end.
    if frame is not None and frame.f_code is not call_within.__code__:
        raise CpuLimitError

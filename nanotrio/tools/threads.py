"""How many threads each kind of blocking work may take; the kinds never wait for each other."""

from __future__ import annotations

from typing import Literal, TypeAlias

import trio

__all__ = ["Work", "thread_limiter"]

Work: TypeAlias = Literal["function", "file", "scan"]
"""Synchronous tools, reads and writes of long files, and looks at the process table."""

_SIZES: dict[Work, int] = {"function": 64, "file": 4, "scan": 1}
_limiters: trio.lowlevel.RunVar[dict[Work, trio.CapacityLimiter]] = trio.lowlevel.RunVar("nanotrio_tool_threads")


def thread_limiter(work: Work) -> trio.CapacityLimiter:
    """Return this run's limiter for ``work``; made on first use."""
    try:
        limiters = _limiters.get()
    except LookupError:
        limiters = {}
        _limiters.set(limiters)
    limiter = limiters.get(work)
    if limiter is None:
        limiter = limiters[work] = trio.CapacityLimiter(_SIZES[work])
    return limiter

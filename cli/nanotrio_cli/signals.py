"""INT, TERM and HUP, as values on the loop.

A signal that the caller had set to be ignored (``nohup``, a background job of a plain shell) stays ignored.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import trio

from .exits import signal_code

__all__ = ["signal_name", "watch_signals"]

IMPATIENT_SECONDS = 2.0
"""A second signal within this time is taken for the first one's echo: shells and runners often send two."""


def signal_name(number: int) -> str:
    """Return ``SIGINT`` for 2."""
    return signal.Signals(number).name


async def watch_signals(  # noqa: ASYNC114 - the check has no list of ours
    on_signal: Callable[[int], bool], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Call ``on_signal`` with each signal until cancelled; it says whether the command is ending because of it.

    Once it is, a further signal ends the process at once, without waiting for processes to go.
    """
    wanted = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    if not wanted:
        task_status.started()
        await trio.sleep_forever()
    ending_since: float | None = None
    with trio.open_signal_receiver(*wanted) as received:
        task_status.started()
        async for number in received:
            if ending_since is None:
                if on_signal(number):
                    ending_since = trio.current_time()
            elif trio.current_time() - ending_since > IMPATIENT_SECONDS:
                os._exit(signal_code(number))

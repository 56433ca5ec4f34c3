"""How far a map is, on standard error: a bar that moves on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import time
from typing import Any, Self

import rich.console
import rich.progress

from nanotrio.swarm import MapStatistics

from .output import TerminalFile, write_error

__all__ = ["MapProgress"]

BAR_SECONDS = 0.1
PLAIN_SECONDS = 5.0


class MapProgress:
    """Told how far the map is, every ``seconds``; entered while it runs. ``total`` is None where nobody knows.

    ``is_shared`` says that standard output is written as well; where both are a terminal no bar is drawn.
    """

    def __init__(self, total: int | None, *, is_quiet: bool, is_shared: bool) -> None:
        self._total = total
        self._is_quiet = is_quiet
        console = rich.console.Console(file=TerminalFile(2), highlight=False)  # type: ignore[arg-type]  # all that rich uses
        is_live = console.is_terminal and not console.is_dumb_terminal and not (is_shared and os.isatty(1))
        self._bar: rich.progress.Progress | None = None
        if is_live and not is_quiet:
            self._bar = rich.progress.Progress(
                rich.progress.BarColumn(24),
                rich.progress.TextColumn("{task.description}"),
                console=console,
                auto_refresh=False,
                transient=True,
            )
        self._task: Any = None
        self._began = time.monotonic()
        self.seconds = BAR_SECONDS if self._bar is not None else PLAIN_SECONDS
        """How often to show it."""

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._task = self._bar.add_task("starting", total=self._total)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, line: str) -> None:
        """Say one line above the bar."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, soft_wrap=True)
        else:
            write_error(line)

    def show(self, now: MapStatistics, cost: str) -> None:
        """Show how far it is."""
        if self._is_quiet:
            return
        text = self._text(now, cost)
        if self._bar is not None:
            self._bar.update(self._task, completed=now.completed + now.failed, description=text, refresh=True)
        else:
            write_error(f"nanotrio: {text}")

    def _text(self, now: MapStatistics, cost: str) -> str:
        done = now.completed + now.failed
        seconds = time.monotonic() - self._began
        rate = (done - now.restored) / seconds if seconds > 0 else 0.0
        parts = [
            f"{done:,}/{self._total:,} done" if self._total is not None else f"{done:,} done",
            f"{now.failed:,} failed",
            f"{now.active:,} at work",
            cost,
            f"{rate:,.1f}/s",
        ]
        if self._total is not None:
            left = self._total - done
            parts.append(f"{_span(left / rate)} left" if rate else "time left unknown")
        return " · ".join(parts)


def _span(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"

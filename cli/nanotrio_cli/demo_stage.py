"""Where the demo is watched: a terminal with a bar that moves, or plain lines where there is none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self

import rich.console
import rich.padding
import rich.progress
import rich.text

from .demo_act import Progress
from .folded_tree import Line
from .money import cost_text
from .output import TerminalFile

__all__ = ["Bar", "Stage"]

_PLAIN_SECONDS = 1.0
_INDENT = 3
_STATUS_STYLES = {"completed": "green", "budget_exceeded": "yellow"}


class Stage:
    """Standard output, with styles where a terminal is there to show them."""

    def __init__(self) -> None:
        self.console = rich.console.Console(file=TerminalFile(1), highlight=False)  # type: ignore[arg-type]  # all that rich uses
        self.is_live = self.console.is_terminal and not self.console.is_dumb_terminal

    def title(self, text: str) -> None:
        """Say what comes next."""
        self.line()
        self._print(rich.text.Text(text, style="bold"), indent=0)

    def line(self, text: str = "", style: str = "") -> None:
        """Say one thing; an empty text is an empty line."""
        self._print(rich.text.Text(text, style=style))

    def exact(self, text: str) -> None:
        """Say what may be copied: no line end is put into it, however narrow the terminal."""
        self.console.print(rich.text.Text(" " * _INDENT + text), soft_wrap=True)

    def tree(self, lines: Sequence[Line]) -> None:
        """Show a folded tree."""
        for line in lines:
            if line.folded:
                self._print(rich.text.Text(line.branch + line.folded, style="dim"), cut=True)
                continue
            text = rich.text.Text(line.branch + line.name)
            text.append(f"  {line.status}", style=_STATUS_STYLES.get(line.status, "red"))
            text.append(f"  {line.cost}", style="dim")
            self._print(text.append(f"  {line.task}"), cut=True)

    def bar(self, total: int) -> Bar:
        """Return a bar for ``total`` agents, to be entered."""
        return Bar(self, total)

    def _print(self, text: rich.text.Text, *, indent: int = _INDENT, cut: bool = False) -> None:
        if self.is_live:
            text.no_wrap, text.overflow = cut, "ellipsis" if cut else "fold"
            self.console.print(rich.padding.Padding(text, (0, 0, 0, indent), expand=False) if text else text)
        else:
            self.console.print(rich.text.Text(" " * indent).append_text(text) if text else text, soft_wrap=True)


class Bar:
    """How far the swarm is; drawn at once on a terminal, said once a second elsewhere."""

    def __init__(self, stage: Stage, total: int) -> None:
        self._stage = stage
        self._total = total
        self._first: tuple[float, int] | None = None
        self._said = time.monotonic()
        self._bar: rich.progress.Progress | None = None
        self._task: Any = None
        self.last: Progress | None = None

    def __enter__(self) -> Self:
        if self._stage.is_live:
            self._bar = rich.progress.Progress(
                rich.progress.TextColumn("  "),
                rich.progress.BarColumn(24),
                rich.progress.TextColumn("{task.description}"),
                console=self._stage.console,
                auto_refresh=False,
            )
            self._task = self._bar.add_task("starting", total=self._total)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self.last is not None:
            self._stage.line(self._text(self.last))

    def say(self, text: str) -> None:
        """Say one thing above the bar."""
        self._stage.line(text)

    def show(self, progress: Progress) -> None:
        """Show how the agents stand now."""
        now = time.monotonic()
        self.last = progress
        if self._first is None:
            self._first = (now, progress.ended)
        if self._bar is not None:
            self._bar.update(self._task, completed=progress.ended, description=self._text(progress), refresh=True)
        elif now - self._said >= _PLAIN_SECONDS:
            self._said = now
            self._stage.line(self._text(progress))

    def _text(self, progress: Progress) -> str:
        seconds = time.monotonic() - self._first[0] if self._first else 0.0
        rate = (progress.ended - self._first[1]) / seconds if self._first and seconds > 0.2 else 0.0
        parts = [
            f"{progress.ended:,}/{self._total:,} ended",
            f"{progress.at_work:,} at work",
            f"{progress.refused:,} refused",
            cost_text(progress.cost_nano),
            f"{rate:,.0f}/s",
        ]
        return " · ".join(parts)

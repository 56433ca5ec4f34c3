"""A tree of agents as lines of text, big families folded.

Of a family larger than its share, those that need a look are shown first (failed, cut off, waiting, running) and the
completed ones are counted: ``… and 312 more completed``. Where the whole would still be too long, the deepest
generations are folded further.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from nanotrio.swarm.outcome import AgentView

from .money import view_cost
from .printable import one_line

__all__ = ["Line", "status_of", "tree_lines"]

_CALM = ("completed", "idle", "closed")
_RANK = {
    "failed": 0,
    "interrupted": 0,
    "budget_exceeded": 1,
    "deadline_exceeded": 1,
    "cancelled": 1,
    "running": 2,
    "settling": 2,
    "pending": 3,
}


class Line(msgspec.Struct, frozen=True, gc=False):
    """One line: the branches before it, and either an agent's columns or the count of what is folded."""

    branch: str
    name: str = ""
    status: str = ""
    cost: str = ""
    task: str = ""
    folded: str = ""

    def text(self, width: int = 0) -> str:
        """Return the line as plain text, cut to ``width`` columns where given."""
        if self.folded:
            whole = self.branch + self.folded
        else:
            whole = "  ".join(part for part in (self.branch + self.name, self.status, self.cost, self.task) if part)
        return whole if not width or len(whole) <= width else whole[: width - 1] + "…"


def status_of(view: AgentView) -> str:
    """How an agent stands, in one word: while it rests, how its last turn ended."""
    if view.status in ("idle", "closed") and view.outcome is not None:
        return view.outcome
    return view.status


def tree_lines(
    views: Sequence[AgentView], *, root: int | None = None, max_children: int = 12, max_lines: int = 100
) -> list[Line]:
    """Return the forest of ``views`` as lines, or the tree below ``root`` alone.

    A view whose parent is not among them counts as a root. At most about ``max_lines`` lines come back (each shown
    family needs one to say what it folds), and at most ``max_children`` members of one family are shown.
    """
    forest = _Forest(views)
    tops = [forest.views[root]] if root is not None else forest.tops
    depth = forest.depth(tops)
    shares = [max_children] * (depth + 1)
    if root is None:
        shares[0] = max(max_children, max_lines)
    while True:
        lines = forest.lines(tops, shares, max_lines)
        if lines is not None:
            return lines
        deepest = max((level for level, share in enumerate(shares) if share > (level == 0)), default=-1)
        if deepest < 0:
            return forest.lines(tops, shares, len(views) + 2) or []
        shares[deepest] //= 2


class _Forest:
    """Views by parent, in order of creation."""

    def __init__(self, views: Sequence[AgentView]) -> None:
        self.views = {view.id: view for view in views}
        self.children: dict[int, list[AgentView]] = {}
        self.tops: list[AgentView] = []
        for view in sorted(views, key=lambda view: view.id):
            if view.parent in self.views:
                self.children.setdefault(view.parent, []).append(view)
            else:
                self.tops.append(view)

    def depth(self, tops: Sequence[AgentView]) -> int:
        """Generations in the forest below ``tops``, 0 for none below them."""
        generations, level = 0, list(tops)
        while level := [child for view in level for child in self.children.get(view.id, ())]:
            generations += 1
        return generations

    def lines(self, tops: Sequence[AgentView], shares: Sequence[int], max_lines: int) -> list[Line] | None:
        """Return all lines, or None once they pass ``max_lines``."""
        lines: list[Line] = []
        stack: list[tuple[str, str, AgentView | str, int]] = self._family(tops, "", shares, 0)
        while stack:
            before, after, item, level = stack.pop()
            if len(lines) >= max_lines:
                return None
            if isinstance(item, str):
                lines.append(Line(branch=before, folded=item))
                continue
            lines.append(_line(item, before))
            family = self.children.get(item.id)
            if family:
                stack.extend(self._family(family, after, shares, level + 1))
        return lines

    def _family(
        self, family: Sequence[AgentView], before: str, shares: Sequence[int], level: int
    ) -> list[tuple[str, str, AgentView | str, int]]:
        """Return one family's entries, last first, each with the branches before it and before its children."""
        share = shares[level]
        shown, rest = list(family), []
        if len(family) > share:
            by_need = sorted(family, key=lambda view: (_RANK.get(status_of(view), 9), view.id))
            shown, rest = (sorted(by_need[:share], key=lambda view: view.id), by_need[share:])
        entries: list[AgentView | str] = list(shown)
        if rest:
            entries.append(self._count(rest, more=bool(shown)))
        last = len(entries) - 1
        made = []
        for index, entry in enumerate(entries):
            if level == 0 and not before:
                own, below = "", ""
            else:
                own, below = ("└─ ", "   ") if index == last else ("├─ ", "│  ")
            made.append((before + own, before + (below if level else ""), entry, level))
        made.reverse()
        return made

    def _count(self, rest: Sequence[AgentView], *, more: bool) -> str:
        counts = Counter(status_of(view) for view in rest)
        word = "more " if more else ""
        listed = ", ".join(f"{count:,} {word}{status}" for status, count in counts.most_common())
        below = sum(self._size(view) for view in rest)
        return f"… and {listed}" + (f", with {below:,} below" if below else "")

    def _size(self, view: AgentView) -> int:
        """Count descendants."""
        count, level = 0, [view]
        while level := [child for parent in level for child in self.children.get(parent.id, ())]:
            count += len(level)
        return count


def _line(view: AgentView, branch: str) -> Line:
    task = one_line(view.task, 60)
    if view.waiting_for and view.status not in _CALM:
        task = f"waits for {one_line(view.waiting_for, 40)} · {task}"
    return Line(branch=branch, name=printable_name(view.name), status=status_of(view), cost=view_cost(view), task=task)


def printable_name(name: str) -> str:
    """Return an agent's name, safe for a terminal."""
    return one_line(name, 60)

"""The tables and plots of docs/benchmarks.md, from the files of results.

``python -m benchmarks._tables`` rewrites what stands between the marks on the page, and the plots beside it. With
``shares FILE`` it first counts a profile that ``py-spy record -t -f raw`` made.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks._figures import GROUPS, Group, Spread, spread, text, trails
from benchmarks._plots import bars

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
PLOTS = ROOT / "docs" / "plots"
RESULTS = ROOT / "benchmarks" / "results"
MARKS = ("<!-- tables -->\n", "<!-- end of tables -->\n")

ROOMS = (
    (r"trio/", "Trio: tasks, scheduling, cancel scopes"),
    (r"nanotrio/(records|journal/|stores/)", "records, journal and store, on the loop"),
    (r"nanotrio/(session|turn|messages|budget|limits|redactor)", "session, turn and budget"),
    (r"nanotrio/models/", "models: encoding requests, the scripted model"),
    (r"benchmarks/", "the benchmark's own script and watchers"),
    (r"nanotrio/tools/", "tools: arguments, schemas, the tree's own calls"),
    (r"nanotrio/swarm/(spawning|opening|tree)", "spawning and the index of the tree"),
    (r"nanotrio/swarm/", "the life of an agent: slots, mail, dispatch, events"),
)


def room_of(stack: str) -> str:
    """Return the room of the innermost frame that belongs to one; "" for what is not the loop at work."""
    if "MainThread" in stack and "unrolled_run" in stack:
        for frame in reversed(stack.split(";")):
            place = frame.rpartition("(")[2]
            for pattern, name in ROOMS:
                if re.match(pattern, place):
                    return name
    return ""


def shares(lines: list[str]) -> dict[str, float]:
    """Return the share of each room in a profile of the loop, the largest first."""
    samples: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        samples[room_of(stack)] += int(count)
    del samples[""]
    total = samples.total()
    return {name: round(count / total, 3) for name, count in samples.most_common()}


def _rows(group: Group) -> list[tuple[Any, Spread]]:
    """Return the figures of a group that there are results for."""
    found = [(figure, spread(figure, RESULTS)) for figure in group.figures]
    return [(figure, ours) for figure, ours in found if ours is not None]


def plots() -> dict[str, str]:
    """Return each plot's file name and text."""
    made = {}
    for group in GROUPS:
        rows = _rows(group)
        if group.is_plotted and rows:
            lines = [(each.label, ours.median, max(each.reference, default=None), each.unit) for each, ours in rows]
            made[f"{group.name}.svg"] = bars(group.title, ("nanotrio", group.reference), lines)
    return made


def _table(group: Group) -> list[str]:
    lines = [f"### {group.title}", ""]
    rows = _rows(group)
    if group.is_plotted and rows:
        lines += [f"![{group.title}](plots/{group.name}.svg)", ""]
    has_reference = group.reference != "-"
    head = ["", "median", "spread", "bound", *([group.reference] if has_reference else [])]
    lines += ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    known = dict(rows)
    for figure in group.figures:
        ours = known.get(figure)
        cells = [f"{figure.label}, {figure.unit}" if figure.unit else figure.label]
        cells += [text(ours.median), ours.around] if ours else ["not measured", ""]
        cells.append(figure.bound(ours))
        cells += [figure.published] if has_reference else []
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _trailing() -> str:
    """Say where a reference is better."""
    behind = [
        f"{figure.label} ({group.title[0].lower()}{group.title[1:]}: {text(ours.median)} {figure.unit} against "
        f"{figure.published})"
        for group in GROUPS
        for figure, ours in _rows(group)
        if trails(figure, ours)
    ]
    if not behind:
        return "In none of the figures above that a reference published does it do better than what was measured here."
    return "Where the reference does better: " + "; ".join(behind) + "."


def _machines() -> list[str]:
    """Tell the machines and versions of what is shown."""
    seen: dict[str, None] = {}
    for name in sorted({figure.benchmark for group in GROUPS for figure in group.figures}):
        path = RESULTS / f"{name}.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            result = json.loads(line)
            if "machine" in result:
                had, runs = result["machine"], result["versions"]
                packages = ", ".join(f"{package} {number}" for package, number in runs.items())
                seen[
                    f"- {had['cores']} cores of {had['cpu']}, {had['memory_gb']} GB, Linux {had['kernel']}, "
                    f"{had['file_system']}; {packages}"
                ] = None
    return list(seen) or ["- no results yet"]


def tables() -> str:
    """Return what stands between the marks."""
    lines = ["Measured on:", "", *_machines(), ""]
    for group in GROUPS:
        lines += _table(group)
    lines += [_trailing(), "", "### Where the loop's time goes", "", "| | share |", "|---|---|"]
    profile = json.loads((RESULTS / "swarm-shares.json").read_text(encoding="utf-8"))
    lines += [f"| {name} | {share:.1%} |" for name, share in profile.items()]
    return "\n".join(lines) + "\n"


def filled(page: str) -> str:
    """Return the page with its tables."""
    begin, end = (page.index(mark) for mark in MARKS)
    return page[: begin + len(MARKS[0])] + "\n" + tables() + "\n" + page[end:]


def main(arguments: list[str]) -> None:
    """Do what the arguments say."""
    if arguments[:1] == ["shares"]:
        counted = shares(Path(arguments[1]).read_text(encoding="utf-8").splitlines())
        (RESULTS / "swarm-shares.json").write_text(json.dumps(counted, indent=1) + "\n", encoding="utf-8")
    PLOTS.mkdir(exist_ok=True)
    for name, plot in plots().items():
        (PLOTS / name).write_text(plot, encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The tables of docs/benchmarks.md, from the files of results.

``python -m benchmarks._tables`` rewrites what stands between the marks on the page. With ``shares FILE`` it first
counts a profile that ``py-spy record -t -f raw`` made.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
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


def figures(name: str) -> list[dict[str, Any]]:
    """Return the results of a benchmark, one a run."""
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def tables() -> str:
    """Return what stands between the marks."""
    runs = figures("swarm")
    rows = [
        ("CPU time an agent", "µs", [run["cpu_seconds"] / run["agents"] * 1e6 for run in runs]),
        ("wall time an agent", "µs", [run["us_per_agent"] for run in runs]),
        ("worst stall of the loop", "ms", [run["worst_stall_ms"] for run in runs]),
        ("the same in CPU time of the loop", "ms", [run["worst_stall_cpu_ms"] for run in runs]),
        ("memory at the peak", "MB", [run["peak_rss_mb"] for run in runs]),
        ("commits", "", [run["commits"] for run in runs]),
        ("size of the store", "MB", [run["store_mb"] for run in runs]),
        ("load of the machine before the run", "", [run["load"] for run in runs]),
    ]
    lines = [f"| {len(runs)} runs | median | least | most |", "|---|---|---|---|"]
    for name, unit, values in rows:
        cells = (f"{value:,.4g}" for value in (statistics.median(values), min(values), max(values)))
        lines.append(f"| {name}{f', {unit}' if unit else ''} | {' | '.join(cells)} |")
    lines += ["", "| Where the loop's time goes | share |", "|---|---|"]
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
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

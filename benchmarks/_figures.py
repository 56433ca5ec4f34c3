"""Which figures the page shows: where each stands in the results, and what the references published for it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["GROUPS", "ROUNDS", "Figure", "Group", "Spread", "spread", "text", "trails"]

ROUNDS = 3
"""The runs of a figure that are shown: the last ones."""


@dataclass(frozen=True, eq=False)
class Figure:
    """One line of a table."""

    label: str
    unit: str
    benchmark: str
    match: Mapping[str, Any]
    """What the result was made with."""
    path: str
    """Of the figure in the result, with dots."""
    bar: float
    """The most it may be; 0 where nothing is said."""
    reference: tuple[float, ...] = ()
    """What was published: one figure, or the ends of a range."""
    scale: float = 1.0
    is_floor: bool = False
    """The bound is the least that it has to reach."""

    def bound(self, ours: Spread | None) -> str:
        """Write the bound, and that it was missed, for people."""
        if not self.bar:
            return ""
        missed = ours is not None and (ours.median < self.bar if self.is_floor else ours.median > self.bar)
        return f"{'at least' if self.is_floor else 'at most'} {text(self.bar)}{', missed' if missed else ''}"

    @property
    def published(self) -> str:
        """What was published, for people."""
        return " to ".join(text(each) for each in self.reference) or "-"


@dataclass(frozen=True)
class Group:
    """A table and its plot."""

    name: str
    title: str
    reference: str
    """Whose figures stand beside ours."""
    figures: Sequence[Figure]
    is_plotted: bool = True


@dataclass(frozen=True)
class Spread:
    """A figure over its runs."""

    values: tuple[float, ...] = field(default=())

    @property
    def median(self) -> float:
        """The one in the middle."""
        return statistics.median(self.values)

    @property
    def around(self) -> str:
        """The least and the most, for people; how often, where there was one run."""
        if len(self.values) == 1:
            return "one run"
        return f"{text(min(self.values))} to {text(max(self.values))}, {len(self.values)} runs"


def text(value: float) -> str:
    """Write a number for people."""
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _at(agents: int, store: str, *, roots: int = 10, **more: Any) -> dict[str, Any]:
    return {"agents": agents, "roots": roots, "active": 5_000, "store": store, **more}


_HUNDRED_THOUSAND = (
    ("jsonl", 30, 68),
    ("sqlite", 30, 88),
    ("postgres", 40, 85),
    ("sqlite+rows", 50, 113),
    ("postgres+rows", 80, 246),
)
_MILLION = (("sqlite", 300, 2_801, 8.8), ("postgres", 400, 1_749, 6.8))


def _swarms() -> list[Figure]:
    made = [
        Figure(f"100,000 agents, {store}", "s", "swarm", _at(100_000, store, cancel=None), "seconds", bar, (published,))
        for store, bar, published in _HUNDRED_THOUSAND
    ]
    made += [
        Figure(f"1,000,000 agents, {store}", "s", "swarm", _at(1_000_000, store), "seconds", bar, (published,))
        for store, bar, published, _ in _MILLION
    ]
    return made


def _millions() -> list[Figure]:
    made = [
        Figure(f"peak memory, {store}", "MB", "swarm", _at(1_000_000, store), "peak_rss_mb", 600, (gigabytes * 1_000,))
        for store, _, _, gigabytes in _MILLION
    ]
    made += [
        Figure(f"reopened, {store}", "s", "swarm", _at(1_000_000, store), "reopen_seconds", 3, (published,))
        for store, published in (("sqlite", 102), ("postgres", 118))
    ]
    made.append(Figure("store, sqlite", "GB", "swarm", _at(1_000_000, "sqlite"), "store_mb", 3, (32,), 0.001))
    return made


def _of_one() -> list[Figure]:
    match = _at(100_000, "sqlite", cancel=None)
    return [
        Figure("given the disk to write", "KB", "swarm", match, "disk_written_mb", 10, (977,), 0.01),
        Figure("kept in the store", "KB", "swarm", match, "store_mb", 4, (62,), 0.01),
        Figure("commits", "", "swarm", match, "commits", 0.05, (16,), 1e-5),
    ]


def _memory() -> list[Figure]:
    match = {"count": 20_000}
    return [
        Figure("waiting, eight messages", "KB", "footprint", match, "waiting.resident_bytes", 10, (174,), 1e-3),
        Figure("the same, evicted", "KB", "footprint", match, "evicted.resident_bytes", 4.5, (39,), 1e-3),
    ]


def _recovery(store: str) -> list[Figure]:
    match = _at(100_000, store)
    return [
        Figure("killed at 50,000: 5,000 wait again", "s", "recovery", match, "killed_waiting_seconds", 1.5, (3.4,)),
        Figure("killed at 310 of 600: restored", "s", "recovery", match, "small_restored_seconds", 0.5, (0.7,)),
        Figure("killed at 310 of 600: all done", "s", "recovery", match, "small_all_done_seconds", 3.5, (5.4,)),
        Figure("10,000 ids of one tree, durable", "s", "recovery", match, "ids_one_call_seconds", 0.2, (0.7, 1.5)),
    ]


def _stalls() -> list[Figure]:
    match = _at(100_000, "sqlite", roots=1)
    runs = [(100_000, store) for store, *_ in _HUNDRED_THOUSAND] + [(1_000_000, store) for store, *_ in _MILLION]
    stalls = [
        Figure(f"{agents:,} agents, {store}", "ms", "swarm", _at(agents, store, cancel=None), "worst_stall_ms", 100)
        for agents, store in runs
    ]
    names = {"cancel": "cancelled by cancel()", "scope": "by the program's scope", "sigint": "by SIGINT"}
    for way, name in names.items():
        stalls.append(Figure(name, "ms", "swarm", {**match, "cancel": way}, "worst_stall_ms", 100))
        stalls.append(
            Figure(f"{name}: until all is gone", "s", "swarm", {**match, "cancel": way}, "cancel_seconds", 60)
        )
    return stalls


def _answers() -> list[Figure]:
    names = {
        "worst_send_ms": "a message, until it is durable",
        "look_ms": "all trees read from another process, as ls does",
        "interrupt_ms": "Ctrl-C, until the program's block is left",
    }
    return [
        Figure(f"{store}: {name}", "ms", "answers", {"store": store, "asked": 5_000}, path, 100)
        for store in ("sqlite", "postgres")
        for path, name in names.items()
    ]


def _idle() -> list[Figure]:
    match = {"count": 20_000}
    names = {
        "idle": "an agent idle on its mail",
        "kept": "the same, kept in memory",
        "fresh": "an agent at its first request",
        "trio_task": "a bare task of Trio",
        "coroutine": "a bare coroutine",
        "goroutine": "a bare goroutine",
    }
    made = []
    for name, label in names.items():
        heap, resident = ((601,), (2_700,)) if name in ("idle", "goroutine") else ((), ())
        bar = 600 if name == "idle" else 0
        made.append(Figure(f"{label}, heap", "B", "footprint", match, f"{name}.heap_bytes", bar, heap))
        made.append(Figure(f"{label}, resident", "B", "footprint", match, f"{name}.resident_bytes", 0, resident))
    return made


def _times() -> list[Figure]:
    match = {"count": 20_000}
    names = {"idle": "an agent", "trio_task": "a task of Trio", "coroutine": "a coroutine", "goroutine": "a goroutine"}
    made = []
    for name, label in names.items():
        start = "fresh" if name == "idle" else name
        made.append(Figure(f"{label}: to start one", "µs", "footprint", match, f"{start}.start_us", 0))
        made.append(Figure(f"{label}: to wake a million", "s", "footprint", match, f"{name}.wake_us", 0))
    return made


def _cost() -> list[Figure]:
    match = {"active": 1_000, "small": 10_000, "large": 100_000, "store": "sqlite"}
    names = {
        "small_us": "tree of 10,000",
        "large_us": "tree of 100,000",
        "spawn_us": "spawned, durably",
        "admit_and_settle_us": "admitted, and settled",
        "request_us": "a model request",
        "call_us": "a tool call",
        "mail_us": "a message to a sibling, with its call",
        "commit_us": "of all, the journal's writer, off the loop",
    }
    made = [Figure("100,000 against 10,000", "", "agent_cost", match, "ratio", 1.15)]
    return made + [Figure(name, "µs", "agent_cost", match, path, 0) for path, name in names.items()]


def _journal() -> list[Figure]:
    rows = (
        ("idle_records_per_second", "records a second, idle loop", 0.0),
        ("idle_to_bulk", "of the driver's bulk insert", 0.6),
        ("busy_records_per_second", "records a second, busy loop", 0.0),
        ("busy_loop_share", "share of the time left to agents", 0.0),
        ("busy_rows_records_per_second", "row by row in a thread, records a second", 0.0),
        ("busy_rows_loop_share", "share of the time left to agents, row by row", 0.0),
        ("busy_to_busy_rows", "times as many as row by row", 5.0),
    )
    return [
        Figure(f"{store}: {name}", "", "journal", {"store": store, "records": 200_005}, path, bar, is_floor=True)
        for store in ("sqlite", "jsonl", "postgres")
        for path, name, bar in rows
    ]


def _reopened() -> list[Figure]:
    made = []
    for store in ("sqlite", "postgres"):
        match = {"store": store, "finished": 1_000_000, "unfinished": 5_000}
        made.append(Figure(f"{store}: open_swarm", "s", "reopen", match, "reopen_seconds", 5))
        made.append(Figure(f"{store}: peak memory", "MB", "reopen", match, "peak_mb", 300))
        made.append(Figure(f"{store}: the heads of all read", "s", "reopen", match, "all_heads_seconds", 0))
    return made


GROUPS: tuple[Group, ...] = (
    Group("swarm", "A swarm, whole: ten roots, 5,000 active", "nanocode", _swarms()),
    Group("million", "What a million agents take", "nanocode", _millions()),
    Group("agent", "What one of 100,000 agents takes, on SQLite", "nanocode", _of_one()),
    Group("memory", "Memory of a child", "nanocode", _memory()),
    Group("recovery", "After a kill, on SQLite", "nanocode", _recovery("sqlite")),
    Group("recovery-postgres", "After a kill, on Postgres", "nanocode", _recovery("postgres"), is_plotted=False),
    Group("idle", "Memory of who does nothing", "Hanzo's goroutine", _idle()),
    Group("times", "To start one, and to wake a million", "-", _times(), is_plotted=False),
    Group("stalls", "The worst stall of the loop", "-", _stalls(), is_plotted=False),
    Group("answers", "The longest that 5,000 at work take to answer", "-", _answers(), is_plotted=False),
    Group("cost", "CPU of an agent, 1,000 active, on SQLite", "-", _cost(), is_plotted=False),
    Group("journal", "The journal beside the driver's own way", "-", _journal(), is_plotted=False),
    Group("reopen", "A killed store of 1,000,000 finished and 5,000 unfinished", "-", _reopened(), is_plotted=False),
)


def spread(figure: Figure, results: Path) -> Spread | None:
    """Return a figure's last runs; None where there is none."""
    path = results / f"{figure.benchmark}.jsonl"
    values = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        result = json.loads(line)
        if any(result.get(name) != wanted for name, wanted in figure.match.items()):
            continue
        value: Any = result
        for name in figure.path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            values.append(float(value) * figure.scale)
    return Spread(tuple(values[-ROUNDS:])) if values else None


def trails(figure: Figure, ours: Spread) -> bool:
    """Whether the reference is better."""
    return bool(figure.reference) and ours.median > min(figure.reference)

"""Every benchmark runs, in a tiny form, and the page of figures shows what the files of results say."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import benchmarks
from benchmarks import _figures, _plots, _tables
from benchmarks.__main__ import plan

ROOT = Path(benchmarks.__file__).parent.parent
STORES = ("sqlite", "sqlite+rows", "jsonl", "postgres")
SWARM_FIELDS = (
    "seconds",
    "agents_per_second",
    "peak_rss_mb",
    "peak_waiting",
    "store_mb",
    "disk_written_mb",
    "commits",
    "reopen_seconds",
    "worst_stall_ms",
)


def bench(tmp_path: Path, command: str) -> dict[str, Any]:
    name, *arguments = command.split()
    if "--store" in command and "postgres" not in command:  # whose user cannot enter a test's own folder
        arguments += ["--folder", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=55,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["benchmark"] == name
    return dict(result)


def check(result: dict[str, Any], *names: str) -> None:
    for name in names:
        assert isinstance(result[name], int | float), name
        assert result[name] >= 0, name
        assert math.isfinite(result[name]), name


@pytest.mark.parametrize("store", STORES)
def test_a_swarm_runs_on_each_store_and_prints_the_fields_of_its_contract(store: str, tmp_path: Path) -> None:
    result = bench(tmp_path, f"swarm --agents 300 --roots 3 --active 30 --store {store}")
    check(result, *SWARM_FIELDS)
    assert result["peak_waiting"] >= 0.95 * 30
    assert result["to_parent"] == 3 * 30
    assert result["early"] == 0
    assert list(tmp_path.iterdir()) == []


def test_a_named_store_stays_where_it_is(tmp_path: Path) -> None:
    check(bench(tmp_path, f"swarm --agents 50 --active 10 --store jsonl:{tmp_path / 'kept'}"), *SWARM_FIELDS)
    assert (tmp_path / "kept").stat().st_size > 0


@pytest.mark.parametrize("way", ["cancel", "scope", "sigint"])
def test_a_swarm_is_cancelled_in_each_way(way: str, tmp_path: Path) -> None:
    result = bench(tmp_path, f"swarm --agents 300 --active 30 --store sqlite --cancel {way}")
    check(result, "worst_stall_ms", "cancel_seconds")
    assert result["waiting"] == 30
    assert result["pending"] > 250
    assert result["unfinished_after"] == (0 if way == "cancel" else 301)


def test_recovery_tells_how_soon_a_killed_swarm_waits_again(tmp_path: Path) -> None:
    result = bench(tmp_path, "recovery --agents 400 --roots 2 --active 40 --second 0.1 --store sqlite")
    check(result, "killed_waiting_seconds", "small_restored_seconds", "small_all_done_seconds")
    check(result, "reopen_process_seconds", "reopen_peak_mb", "ids_one_call_seconds", "ids_ten_calls_seconds")
    assert result["killed_waiting"] == 40
    assert 200 <= result["killed_unfinished"] <= 202
    assert 400 * 290 // 600 <= result["small_unfinished"] <= 400 * 290 // 600 + 2


@pytest.mark.parametrize("subjects", [("evicted", "coroutine"), ("idle", "trio_task")])
def test_footprint_measures_each_subject_in_processes_of_its_own(subjects: tuple[str, str], tmp_path: Path) -> None:
    result = bench(tmp_path, f"footprint --count 300 --subjects {' '.join(subjects)}")
    for subject in subjects:
        if result[subject] is not None:
            assert result[subject]["resident_bytes"] != result[subject]["heap_bytes"]
            if subject != "idle":  # of a few idle agents less is left than there was before them
                assert result[subject]["heap_bytes"] > 0


def test_agent_cost_compares_two_sizes_and_takes_an_agent_apart(tmp_path: Path) -> None:
    command = "agent_cost --small 100 --large 200 --active 20 --rounds 1 --step-agents 100 --store sqlite"
    result = bench(tmp_path, command)
    check(result, "small_us", "large_us", "large_most_us", "ratio", "spawn_us")
    assert "commit_us" in result  # a difference of two runs, which noise may put below 0
    assert {"request_us", "call_us", "mail_us", "admit_and_settle_us"} <= result.keys()


@pytest.mark.parametrize("store", ["jsonl", "postgres"])
def test_the_journal_is_measured_beside_the_driver(store: str, tmp_path: Path) -> None:
    result = bench(tmp_path, f"journal --records 3000 --busy-records 1000 --repeats 1 --store {store}")
    check(result, "idle_to_bulk", "busy_to_busy_rows", "busy_loop_share", "busy_rows_loop_share")


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_store_is_reopened(store: str, tmp_path: Path) -> None:
    result = bench(tmp_path, f"reopen --finished 300 --unfinished 10 --store {store}")
    check(result, "reopen_seconds", "read_100_seconds", "peak_mb", "all_heads_seconds")
    assert (result["unfinished"], result["heads"]) == (10, 310)


def test_a_run_of_them_appends_results_with_machine_and_versions(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--size", "tiny", "--only", "journal", "--results", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True, timeout=55)
    line = json.loads((tmp_path / "journal.jsonl").read_text(encoding="utf-8"))
    assert line["machine"].keys() == {"cpu", "cores", "memory_gb", "kernel", "file_system"}
    assert {"python", "trio", "apsw", "psycopg"} <= line["versions"].keys()
    assert line["at"].startswith("20")
    assert len(line["fixed_loop_ms"]) == 2


@pytest.mark.parametrize("size", ["tiny", "default", "full"])
def test_every_command_of_the_plans_names_a_benchmark(size: str) -> None:
    for command in plan(size):
        assert (ROOT / "benchmarks" / f"{command.split()[0]}.py").exists()


def test_the_tables_and_plots_of_the_page_are_those_of_the_results() -> None:
    page = _tables.PAGE.read_text(encoding="utf-8")
    assert _tables.filled(page) == page, "run: python -m benchmarks._tables"
    for name, plot in _tables.plots().items():
        assert (_tables.PLOTS / name).read_text(encoding="utf-8") == plot, "run: python -m benchmarks._tables"


def test_a_figure_is_the_median_of_its_last_runs(tmp_path: Path) -> None:
    lines = [{"store": "sqlite", "a": {"b": value}} for value in (900, 1, 3, 2)]
    lines.append({"store": "jsonl", "a": {"b": 7}})
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    figure = _figures.Figure("x", "KB", "x", {"store": "sqlite"}, "a.b", 5, (1,), 0.5)
    found = _figures.spread(figure, tmp_path)
    assert found is not None
    assert found.values == (0.5, 1.5, 1)
    assert (found.median, found.around) == (1, "0.5 to 1.5, 3 runs")
    assert not _figures.trails(figure, found)
    assert _figures.trails(_figures.Figure("x", "KB", "x", {}, "a", 5, (0.9,)), found)
    assert _figures.spread(_figures.Figure("x", "KB", "x", {"store": "none"}, "a.b", 5), tmp_path) is None


def test_a_plot_is_a_document_with_a_bar_for_each_value() -> None:
    plot = ET.fromstring(_plots.bars("a < b", ("ours", "theirs"), [("one", 3, 70, "s"), ("two", 2_000, None, "s")]))
    rects = [each for each in plot.iter() if each.tag.endswith("rect")]
    assert len(rects) == 1 + 2 + 3
    widths = [float(each.get("width", "0")) for each in rects[3:]]
    assert widths[0] < widths[1] < widths[2]


def test_a_sample_counts_for_the_innermost_frame_of_a_room() -> None:
    loop = "thread (1): MainThread;run (trio/_core/_run.py:1);unrolled_run (trio/_core/_run.py:2)"
    lines = [
        f"{loop};ask_model (nanotrio/swarm/calls.py:42);encode_facts (nanotrio/records.py:343) 3",
        f"{loop};ask_model (nanotrio/swarm/calls.py:42);__init__ (<attrs generated>:3) 1",
        "thread (1): MainThread;<module> (benchmarks/swarm.py:1) 5",
        "thread (2): Trio thread;commit (nanotrio/stores/sqlite.py:1) 7",
    ]
    assert list(_tables.shares(lines).values()) == [0.75, 0.25]
    assert "journal" in next(iter(_tables.shares(lines)))

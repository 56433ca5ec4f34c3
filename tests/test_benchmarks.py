"""The page of benchmarks shows what the files of results say."""

from __future__ import annotations

from benchmarks import _tables


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    page = _tables.PAGE.read_text(encoding="utf-8")
    assert _tables.filled(page) == page, "run: python -m benchmarks._tables"


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

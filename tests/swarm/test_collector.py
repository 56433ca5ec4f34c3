"""Python's collector while a swarm is open: passed over, and asked after all where the process has grown."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from nanotrio.swarm import interpreter
from nanotrio.swarm.collector import Collector

_MB = 1 << 20


class Cycle:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def _collector_as_it_was() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(1_000_000, 1_000, 1_000)
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def dropped_cycle() -> weakref.ref[Cycle]:
    return weakref.ref(Cycle())


async def test_looks_go_on_while_they_are_short() -> None:
    with Collector(long_seconds=1_000):
        for _ in range(3):
            cycle = dropped_cycle()
            gc.collect(0)
            assert cycle() is None


async def test_after_a_long_look_the_young_are_set_aside_and_still_freed_by_their_last_reference() -> None:
    with Collector(long_seconds=0) as collector:
        gc.collect(0)
        assert collector.passes_over
        cycle, plain = dropped_cycle(), Cycle()
        plain.own = None  # type: ignore[assignment]
        gone = weakref.ref(plain)
        gc.collect(0)
        assert cycle() is not None
        assert gc.get_freeze_count() > 0
        del plain
        assert gone() is None


async def test_a_programs_own_collect_finds_what_was_set_aside() -> None:
    with Collector(long_seconds=0):
        gc.collect(0)
        cycle = dropped_cycle()
        gc.collect(0)
        assert cycle() is not None
        gc.collect()
        assert cycle() is None


async def test_all_is_looked_at_once_the_process_has_grown_and_then_only_after_it_has_grown_again() -> None:
    size = 100 * _MB
    with Collector(long_seconds=0, size=lambda: size):
        gc.collect(0)
        cycle = dropped_cycle()
        size = 611 * _MB
        gc.collect(0)
        await trio.testing.wait_all_tasks_blocked()
        assert cycle() is not None, "it has not grown by 512 MB"
        size = 612 * _MB
        gc.collect(0)
        await trio.testing.wait_all_tasks_blocked()
        assert cycle() is None
        cycle = dropped_cycle()
        gc.collect(0)
        await trio.testing.wait_all_tasks_blocked()
        assert cycle() is not None
        size = 1_224 * _MB
        gc.collect(0)
        await trio.testing.wait_all_tasks_blocked()
        assert cycle() is None


def test_what_one_swarm_after_another_leaves_in_cycles_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_MUCH_BLOCKS", 0)
    monkeypatch.setattr(interpreter, "_blocks", 0)
    gc.set_threshold(700, 10, 10)  # others are a program's own, which it keeps
    left: list[weakref.ref[Cycle]] = []
    with interpreter.tuned_interpreter():
        pass
    grown = sys.getallocatedblocks() // 2
    for _ in range(3):
        with interpreter.tuned_interpreter():
            gc.set_threshold(1_000_000, 1_000, 1_000)
            cycle = Cycle()
            cycle.held = [float(number) for number in range(grown)]  # type: ignore[attr-defined]
            left.append(weakref.ref(cycle))
            del cycle
        gc.set_threshold(700, 10, 10)
    assert [each() is None for each in left] == [True, True, False]

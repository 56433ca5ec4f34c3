"""A crash at every named point, one after the other, on every kind of store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nanotrio.testing import CRASH_POINTS, CrashRunner, Forks, Trial

ONCE = {"before-takeover", "after-takeover", "before-resume", "after-resume", "before-close", "after-close"}
"""Points that one process may pass only once."""

COUNTS = {"before-cancel": 1, "after-cancel": 1, "before-heads": 1, "after-heads": 1} | dict.fromkeys(ONCE, 1)
"""Which pass is the last one, where it is not the third."""


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_crash_there_loses_nothing_and_repeats_nothing(
    point: str, new_url: Callable[[], str], tmp_path: Path, nanotrio_forks: Forks
) -> None:
    size = {"roots": 2, "children": 5, "milliseconds": 2}
    trial = Trial(store=new_url(), effects=str(tmp_path / "effects"), seed=7, data=size)
    runner = CrashRunner("tests.crash.swarm_program:main", trial, forks=nanotrio_forks, repeatable=["put"])
    if point in ONCE:  # there is something to take over
        assert runner.kill_at("after-effect", 3).killed
    crash = runner.kill_at(point, COUNTS.get(point, 3))
    assert crash.killed, f"{point} was not passed: {crash.output}"
    runner.kill_at(point)  # and again, if it comes so far
    runner.finish()
    assert runner.counts.finished + runner.counts.unknown == runner.counts.dispatched
    if point in {"after-intent", "before-effect", "after-effect"}:
        assert runner.counts.between
        assert runner.counts.unknown

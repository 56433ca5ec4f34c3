"""A swarm of 200 agents with tools, killed at random instants on each kind of store, goes on and ends as it should."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nanotrio.testing import CrashCounts, CrashRunner, Forks, Trial
from tests import counts

SEED = int(os.environ.get("NANOTRIO_SEED", "20"))
PROGRAM = "tests.crash.swarm_program:main"
SIZE = {"roots": 4, "children": 48, "milliseconds": 10}


def runner(url: str, folder: Path, seed: int, forks: Forks) -> CrashRunner:
    trial = Trial(store=url, effects=str(folder / f"effects-{seed}"), seed=seed, data=SIZE)
    return CrashRunner(PROGRAM, trial, seed=seed, forks=forks, repeatable=["put"])


def test_a_killed_swarm_loses_nothing_and_repeats_nothing(
    new_url: Callable[[], str], tmp_path: Path, nanotrio_forks: Forks, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    whole = runner(new_url(), tmp_path, SEED, nanotrio_forks)
    commits = whole.finish().acknowledgements
    assert whole.counts.unknown == 0

    total = CrashCounts(SEED)
    kind = ""
    while total.kills < counts.SWARM_KILLS:
        url = new_url()
        kind = url.partition(":")[0]
        trial = runner(url, tmp_path, chance.randrange(1 << 31), nanotrio_forks)
        for _ in range(chance.choice((1, 1, 1, 2))):  # some are killed again while they are taken up
            trial.kill_at_random(commits)
        trial.finish()
        total.add(trial.counts)
        Path(trial.trial.effects).unlink(missing_ok=True)
        _remove(url)
    with capsys.disabled():
        sys.stderr.write(f"\nswarm under SIGKILL on {kind}: {total}\n")
    assert total.between >= total.kills * 3 // 10
    assert total.unknown >= total.between


def _remove(url: str) -> None:
    """Remove the files of a store, so that hundreds do not fill the disk."""
    kind, _, place = url.partition(":")
    if not kind.startswith("postgres"):
        path = Path(place)
        for file in path.parent.glob(f"{path.name}*"):
            if file.is_file():
                file.unlink()

"""The real job, killed at random instants and in the middle of its effects, ends as if nobody had killed it."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from tests import counts
from tests.crash.job_run import MODELS, Trial, measure, plan, run_trial, summary
from tests.servers.server_process import server_process
from tests.stores.kinds import KINDS, Place

SEED = int(os.environ.get("NANOTRIO_SEED", "20"))


@pytest.mark.deadline(1800)
@pytest.mark.parametrize("kind", KINDS if counts.SOAK else ["sqlite", "jsonl", "postgres"])
def test_a_killed_job_continues_to_the_same_end(
    kind: str, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    trials: list[Trial] = []
    with server_process("job", tmp_path / "requests.jsonl", latency_seconds=0.01) as server:
        timings = [
            measure(tmp_path / f"clean{number}", server, model, place(kind, f"clean{number}.store"))
            for number, model in enumerate(MODELS)
        ]
        while sum(trial.killed for trial in trials) < counts.JOB_KILLS:
            number = len(trials)
            wire = number // 5 % 2 if counts.JOB_KILLS > 8 else number % 2
            kills = plan(chance, timings[wire], number)
            url = place(kind, f"trial{number}.store")
            trials.append(run_trial(tmp_path / f"trial{number}", server, MODELS[wire], kills, url))

    done = sum(trial.killed for trial in trials)
    between = sum(trial.between for trial in trials)
    with capsys.disabled():
        sys.stderr.write(f"\n{summary(SEED, kind, trials)}\n")
    problems = {number: (trial.kills, trial.problems) for number, trial in enumerate(trials) if trial.problems}
    assert not problems
    assert between >= done * 3 // 10
    assert sum(trial.before for trial in trials) <= done // 4, "most kills must fall into the work"
    assert sum(trial.unknown for trial in trials) >= between

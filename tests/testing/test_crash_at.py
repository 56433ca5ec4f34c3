"""A process dies where it is told to, by SIGKILL, and what it promised before is known."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

import nanotrio
from nanotrio import crash
from nanotrio.errors import UsageError
from nanotrio.models import ScriptedModel, reply_text
from nanotrio.testing import (
    CRASH_POINTS,
    Forks,
    Kill,
    Trial,
    arm_from_environment,
    crash_at,
    disarm,
    log_effects,
    run_until_killed,
)
from nanotrio.testing.trial import find_program, name_of

ROOT = Path(__file__).parents[2]


async def count_to_three(trial: Trial) -> None:
    """Three agents, one after the other."""
    sys.stdout.write("counting\n")
    sys.stdout.flush()
    model = ScriptedModel([reply_text("done")])
    async with nanotrio.open_swarm(store=trial.store, model=model, environment={}) as swarm:
        for _ in range(3):
            await (await swarm.spawn("work")).wait()


def fails(trial: Trial) -> None:
    raise RuntimeError(f"as {trial.data['word']}")


def a_trial(folder: Path, **data: object) -> Trial:
    return Trial(store=f"sqlite:{folder / 'swarm.db'}", effects=str(folder / "effects"), data=data)


def test_nothing_is_armed_by_itself() -> None:
    assert crash.here is None
    arm_from_environment({})
    assert crash.here is None


def test_arming_is_taken_back() -> None:
    crash_at("before-commit")
    assert crash.here is not None
    disarm()
    assert crash.here is None


@pytest.mark.parametrize(
    ("point", "count", "words"), [("nowhere", 1, "no crash point is called 'nowhere'"), ("after-mail", 0, "count")]
)
def test_a_point_that_is_not_there_is_refused(point: str, count: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        crash_at(point, count)
    assert crash.here is None


def test_a_kill_at_an_unknown_point_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no crash point"):
        run_until_killed(count_to_three, a_trial(tmp_path), Kill(point="nowhere"))
    assert not list(tmp_path.iterdir())


def test_a_process_of_its_own_is_killed_at_the_count_that_was_asked_for(tmp_path: Path) -> None:
    died = run_until_killed(count_to_three, a_trial(tmp_path), Kill(point="before-spawn", count=3))
    assert (died.killed, died.exit_code) == (True, -signal.SIGKILL)
    assert died.output == "counting\n"
    assert died.acknowledged > 0
    assert died.acknowledgements > 1


def test_a_fork_is_killed_in_the_same_way(tmp_path: Path, nanotrio_forks: Forks) -> None:
    trial = a_trial(tmp_path)
    died = run_until_killed(count_to_three, trial, Kill(point="after-commit", count=2), forks=nanotrio_forks)
    assert (died.killed, died.acknowledgements) == (True, 1)  # the second batch was committed and not acknowledged


def test_without_a_kill_the_program_comes_to_its_end(tmp_path: Path, nanotrio_forks: Forks) -> None:
    ended = run_until_killed(count_to_three, a_trial(tmp_path), forks=nanotrio_forks)
    assert (ended.killed, ended.exit_code) == (False, 0)


def test_a_random_kill_waits_for_acknowledgements(tmp_path: Path, nanotrio_forks: Forks) -> None:
    died = run_until_killed(count_to_three, a_trial(tmp_path), Kill(acknowledgements=2), forks=nanotrio_forks)
    assert died.acknowledgements >= 2


@pytest.mark.parametrize("forked", [False, True])
def test_a_program_that_fails_says_why(tmp_path: Path, nanotrio_forks: Forks, forked: bool) -> None:
    ended = run_until_killed(fails, a_trial(tmp_path, word="said"), forks=nanotrio_forks if forked else None)
    assert (ended.killed, ended.exit_code) == (False, 1)
    assert "RuntimeError: as said" in ended.output


def test_a_program_that_hangs_is_ended_at_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"neither died nor ended within 0.5 s"):
        run_until_killed(["sleep", "600"], a_trial(tmp_path), deadline_seconds=0.5)


def test_a_command_line_arms_itself(tmp_path: Path) -> None:
    code = (
        "import nanotrio.testing, tests.testing.test_crash_at as t, trio, sys; nanotrio.testing.arm_from_environment();"
        "trio.run(t.count_to_three, nanotrio.testing.Trial(store=sys.argv[1], effects=''))"
    )
    trial = a_trial(tmp_path)
    died = run_until_killed([sys.executable, "-c", code, trial.store], trial, Kill(point="after-settle"))
    assert died.killed, died.output
    assert died.acknowledged > 0


def test_a_program_is_found_by_its_name() -> None:
    assert name_of(count_to_three) == f"{Path(__file__).absolute()}:count_to_three"
    assert find_program("tests.testing.test_crash_at:count_to_three").__name__ == "count_to_three"
    with pytest.raises(UsageError, match="no function 'lost'"):
        find_program("tests.testing.test_crash_at:lost")
    with pytest.raises(UsageError, match="is no Python file"):
        find_program("/nowhere/lost.py:main")
    with pytest.raises(UsageError, match="at the top of its file"):
        name_of(lambda trial: trial)


def test_a_logged_tool_is_still_the_same_tool(tmp_path: Path) -> None:
    async def look(what: str) -> str:
        """Look. what: at what."""
        return what

    made = log_effects(look, tmp_path / "effects")
    assert (made.spec.name, made.function) == ("look", look)


def test_every_point_is_passed_by_name_in_the_sources_and_no_other_is() -> None:
    texts = [path.read_text() for path in (ROOT / "nanotrio").rglob("*.py") if path.name != "crash.py"]
    named = {point for point in CRASH_POINTS if any(f'"{point}"' in text for text in texts)}
    sides = {f"{side}-{what}" for side in ("before", "after") for what in ("commit", "heads")}  # crash.pass_commit
    assert named | sides == set(CRASH_POINTS)

"""The demo, with few agents: it kills its own swarm, finishes it, and accounts for every agent."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import trio

from nanotrio import AgentView, read_store
from nanotrio_cli.demo_accounts import Interim, read_accounts
from nanotrio_cli.demo_job import MIN_AGENTS, REGISTER, job_of, make_plan
from tests.invocation import COMMAND, environment_in, processes_below, run_command

AGENTS = 60
NO_INTERIM = Interim(ended={}, at_work=0, not_begun=0)


def run_demo(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return run_command(["demo", *flags], cwd=folder, environment=environment_in(folder / "home", {}))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("demo")
    return folder, run_demo(folder, "--agents", str(AGENTS), "--store", f"sqlite:{folder}/swarm.db")


def views(folder: Path) -> list[AgentView]:
    return trio.run(read_store, f"sqlite:{folder}/swarm.db")


@pytest.mark.parametrize("agents", [MIN_AGENTS, 21, 39, 60, 61, 240, 999, 1_000, 10_000])
def test_a_plan_has_exactly_the_agents_that_were_asked_for(agents: int) -> None:
    plan = make_plan(agents)
    assert 1 + len(plan.months) + sum(month.pages for month in plan.months) == agents
    assert plan.capped in plan.months
    if agents >= 1_000:
        assert 1 + plan.capped.pages <= agents // 10


def test_every_agent_is_accounted_for(played: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = played
    assert (done.returncode, done.stderr) == (0, ""), done.stderr

    found = views(folder)
    outcomes = Counter(view.outcome for view in found)
    plan = make_plan(AGENTS)
    capped = next(view for view in found if view.name.startswith(plan.capped.name))
    refused = [view for view in found if view.outcome == "budget_exceeded"]

    assert len(found) == AGENTS
    assert set(outcomes) == {"completed", "budget_exceeded"}
    assert all(view.status == "idle" for view in found)
    assert capped in refused
    assert all(capped.id in (view.id, view.parent) for view in refused)
    assert 2 <= len(refused) <= 1 + plan.capped.pages
    assert capped.spent_nano + capped.uncertain_nano <= plan.cap_usd * 1e9


def test_what_is_told_is_what_the_store_says(played: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = played
    outcomes = Counter(view.outcome for view in views(folder))
    told = f"{AGENTS} agents: {outcomes['completed']} completed, {outcomes['budget_exceeded']} refused"
    assert told in done.stdout
    assert re.search(r"SIGKILL to process \d+\n +The store it leaves: (\d+) agents had ended", done.stdout)
    assert "\x1b" not in done.stdout
    assert f"sqlite:{folder}/swarm.db" in done.stdout


def test_the_counts_are_of_all_agents_also_where_another_process_finishes(
    played: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, done = played
    first, second = done.stdout.split("takes the store over")
    counted = [re.findall(rf"(\d+)/{AGENTS} ended", act)[-1] for act in (first, second)]
    assert AGENTS // 2 <= int(counted[0]) <= int(counted[1]) == AGENTS


def test_what_the_agents_did_outside_was_done_once(played: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = played
    completed = [view for view in views(folder) if view.outcome == "completed"]
    register = Counter((folder / "swarm.almanac" / REGISTER).read_text().split())
    signers = {view.name.rpartition(".")[0] for view in completed if job_of(view.task) == "signature"}
    writers = {view.name.rpartition(".")[0] for view in completed if job_of(view.task) == "file"}
    assert register == dict.fromkeys(signers, 1)
    assert {path.stem for path in (folder / "swarm.almanac" / "pages").iterdir()} == writers
    assert not processes_below(folder)


def test_what_it_says_to_type_next_works(played: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = played
    environment = environment_in(folder / "home", {})
    typed = re.findall(r"^ +python\S* -m nanotrio_cli ((?:tree|show) \S+) --store", done.stdout, re.MULTILINE)
    assert len(typed) >= 2
    for line in typed:
        shown = run_command(
            [*line.split(), "--store", f"sqlite:{folder}/swarm.db"], cwd=folder, environment=environment
        )
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.strip()


def test_accounts_that_do_not_add_up_are_found(played: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = played
    plan, directory = make_plan(AGENTS), folder / "swarm.almanac"
    url = f"sqlite:{folder}/swarm.db"
    twice = (directory / REGISTER).read_text().split()[0]

    def problems(agents: int = AGENTS, interim: Interim = NO_INTERIM, where: Path = directory) -> tuple[str, ...]:
        return trio.run(read_accounts, url, plan, agents, where, interim).problems

    assert problems() == ()
    assert any("61 agents were asked for" in problem for problem in problems(61))
    assert any("had ended as failed" in one for one in problems(interim=Interim({1: (1, "failed", 0)}, 0, 0)))
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / REGISTER).write_text(f"{twice}\n{twice}\n")
    outside = problems(where=folder / "elsewhere")
    assert f"{twice} stands 2 times in the register instead of once" in outside
    assert any("was never written" in problem for problem in outside)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_everything_below_it(tmp_path: Path, number: int, code: int) -> None:
    process = subprocess.Popen(
        [*COMMAND, "demo", "--agents", str(AGENTS), "--store", f"sqlite:{tmp_path}/swarm.db"],
        cwd=tmp_path,
        env=environment_in(tmp_path / "home", {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if " at work" in line:
                break
        process.send_signal(number)
        rest, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code, errors
    assert errors == ""
    assert "Nothing of it runs any more" in rest
    assert not processes_below(tmp_path)


def test_nobody_reading_ends_it_quietly(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [*COMMAND, "demo", "--agents", str(AGENTS), "--store", f"sqlite:{tmp_path}/swarm.db"],
        cwd=tmp_path,
        env=environment_in(tmp_path / "home", {}),
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write_end)
    os.read(read_end, 1)
    os.close(read_end)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (1, "")
    assert not processes_below(tmp_path)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--agents", "5"], 2, "--agents 5 is not between 20 and 10,000"),
        (["--agents", "many"], 2, "'many'"),
        (["--quick"], 2, "'--quick'"),
        (["--store", "nowhere"], 2, "did you mean sqlite:nowhere"),
        (["--store", "sqlite:there.db"], 1, "exists already"),
    ],
)
def test_a_wrong_value_is_told_in_one_line(tmp_path: Path, flags: list[str], code: int, said: str) -> None:
    (tmp_path / "there.db").write_text("mine")
    done = run_demo(tmp_path, *flags)
    assert done.returncode == code
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "there.db"]
    assert (tmp_path / "there.db").read_text() == "mine"

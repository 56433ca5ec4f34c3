from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import trio

from nanotrio.tools import AgentProcesses, bash, find_leftovers
from nanotrio.tools.processes import MARK, join_marks
from tests.tools.contexts import TOKEN, call, environments, eventually, make_context, marked, processes_of, reap


async def until_marked(count: int, *agents: int) -> None:
    wanted = {f"{MARK}={TOKEN}:{agent}".encode() for agent in agents}
    await eventually(lambda: sum(bool(wanted & set(value.split(b"\0"))) for _, value in environments()) >= count)


async def test_what_left_its_group_and_lost_its_parent_is_found_by_its_mark(tmp_path: Path) -> None:
    context = make_context(tmp_path, 41)
    await call(
        bash, context, command="(setsid sleep 600 >/dev/null 2>&1 &); (setsid setsid sleep 601 >/dev/null 2>&1 &)"
    )
    await until_marked(2, 41)

    assert await reap(context) == [()]
    assert marked(context) == []


async def test_what_cleared_its_environment_is_found_by_its_group(tmp_path: Path) -> None:
    context = make_context(tmp_path, 42)
    output = await call(bash, context, command="env -i sleep 600 >/dev/null 2>&1 & echo $!")
    pid = int(output.content)
    await eventually(lambda: Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00600\x00")

    assert await reap(context) == [()]
    assert is_gone(pid)


async def test_what_cleared_its_environment_and_left_its_session_is_found_by_its_parent(tmp_path: Path) -> None:
    context = make_context(tmp_path, 44)
    script = "env -i setsid sh -c 'sleep 600 & echo $! > pid; wait' & wait"
    await call(bash, context, command=f'bash -c "{script}" >/dev/null 2>&1 & true'.replace("$", "\\$"))
    await eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip().isdecimal())
    pid = int((tmp_path / "pid").read_text())

    assert await reap(context) == [()]
    await eventually(lambda: is_gone(pid))


async def test_what_a_cancelled_command_hid_from_its_session_and_its_mark_is_found(tmp_path: Path) -> None:
    context = make_context(tmp_path, 45)
    command = "env -i setsid sh -c 'echo $$ > hidden; exec sleep 600' & sleep 601"
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(call, bash, context, command=command))
            hidden = tmp_path / "hidden"
            await eventually(lambda: hidden.exists() and hidden.read_text().strip().isdecimal())
            scope.cancel()
    pid = int(hidden.read_text())
    assert not is_gone(pid)

    assert await reap(context) == [()]
    await eventually(lambda: is_gone(pid))


async def test_many_agents_are_reaped_together_and_others_are_left_alone(tmp_path: Path) -> None:
    contexts = [make_context(tmp_path, agent) for agent in range(50, 70)]
    for context in contexts:
        await call(bash, context, command="setsid sleep 600 >/dev/null 2>&1 & sleep 600 >/dev/null 2>&1 & true")
    await until_marked(40, *range(50, 70))
    ended, kept = contexts[:19], contexts[19]

    started = time.monotonic()
    assert await reap(*ended) == [()] * 19
    assert time.monotonic() - started < 3

    assert not any(map(marked, ended))
    assert len(marked(kept)) == 2
    await reap(kept)


async def test_what_forks_all_the_time_is_ended_too(tmp_path: Path) -> None:
    context = make_context(tmp_path, 43)
    script = "while :; do setsid sh -c 'sleep 0.02; exec sleep 600' & sleep 0.02; done"
    await call(bash, context, command=f'setsid bash -c "{script}" >/dev/null 2>&1 & true')
    await until_marked(3, 43)

    assert await reap(context) == [()]
    assert marked(context) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
async def test_what_may_not_be_killed_is_named(tmp_path: Path) -> None:
    script = """
import os, sys, trio
from nanotrio.tools import AgentProcesses
processes = AgentProcesses("other", 1)
processes.note(int(sys.argv[1]))
os.setuid(65534)
print(trio.run(processes.reap, 0.2))
"""
    theirs = await trio.lowlevel.open_process(["sleep", "600"], start_new_session=True)
    command = [sys.executable, "-c", script, str(theirs.pid)]
    result = await trio.run_process(command, capture_stdout=True, check=False)
    theirs.kill()
    await theirs.wait()

    assert result.stdout.decode() == f"('process {theirs.pid} (sleep) runs as another user',)\n"


async def test_a_dead_swarms_processes_are_found_by_its_token(tmp_path: Path) -> None:
    assert await find_leftovers(f"{TOKEN}none") == []
    context = make_context(tmp_path, 44)
    await call(bash, context, command="setsid sleep 600 >/dev/null 2>&1 & true")
    await until_marked(1, 44)

    (left,) = [leftover for leftover in await find_leftovers(TOKEN) if leftover.agent == 44]
    assert left.command == "sleep"
    assert marked(context) == [left.pid]
    await reap(context)


async def test_a_swarm_within_a_swarm_keeps_the_outer_mark(tmp_path: Path) -> None:
    outer = make_context(tmp_path, 45)
    inherited = dict(join_marks({}, outer.processes.marks()))
    inner = make_context(tmp_path, 46, environment=inherited)
    assert join_marks(inherited, inner.processes.marks()) == {MARK: f"{TOKEN}:45;{TOKEN}:46"}
    output = await call(bash, inner, command="setsid sleep 600 >/dev/null 2>&1 & echo $!")
    await eventually(lambda: Path(f"/proc/{int(output.content)}/comm").read_text() == "sleep\n")

    assert await reap(outer) == [()]
    assert is_gone(int(output.content))


async def test_an_agent_that_started_nothing_costs_nothing() -> None:
    processes = AgentProcesses("token", 1)

    with trio.CancelScope() as scope:
        scope.cancel()  # any checkpoint would end here
        assert await processes.reap(5) == ()
    assert not scope.cancelled_caught


async def test_groups_are_forgotten_once_empty(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    for _ in range(3):
        await call(bash, context, command="true")
    assert processes_of(context).groups == frozenset()

    for pid in range(4_000_000, 4_000_100):  # above any number in use here, as a rule
        context.processes.note(pid)
    assert len(processes_of(context).groups) <= 33


def is_gone(pid: int) -> bool:
    """Dead, though perhaps a zombie that somebody else has to collect."""
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def test_a_number_of_no_process_is_gone() -> None:
    child = subprocess.Popen(["sleep", "600"])
    assert not is_gone(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert is_gone(child.pid)

"""Cancelling a parent ends its whole subtree and every process below it, whoever cancels."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio

import nanotrio
from nanotrio.tools import bash
from nanotrio_cli.opening import MAX_ACTIVE
from tests import counts
from tests.invocation import COMMAND, environment_in, processes_below
from tests.servers.brains import sleepers
from tests.servers.model_server import ModelServer, open_model_server
from tests.servers.server_process import server_process
from tests.swarm.sleeping_program import MODEL

GROUPS = counts.SUBTREE // 10
PROMPT = f"{GROUPS} groups of 9 sleepers"
DESCENDANTS = GROUPS * 10
WITHIN_SECONDS = 3.0
START_SECONDS = 60.0


def _sleeping(directory: Path) -> int:
    return sum(line == "sleep 600" for line in processes_below(directory))


def _wait_until_sleeping(directory: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while _sleeping(directory) < count:
        assert time.monotonic() < deadline, f"{_sleeping(directory)} of {count} sleep"
        assert process.poll() is None, "\n".join(process.communicate())
        time.sleep(0.02)


def _swarm(directory: Path) -> AbstractAsyncContextManager[nanotrio.Swarm]:
    store = f"sqlite:{directory / 'swarm.db'}"
    return nanotrio.open_swarm(store=store, model=MODEL, tools=[bash], directory=directory)


@asynccontextmanager
async def _server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ModelServer]:
    async with open_model_server(sleepers) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server


async def _all_sleep(directory: Path) -> None:
    with trio.fail_after(START_SECONDS):
        while _sleeping(directory) < DESCENDANTS:  # noqa: ASYNC110 - only /proc knows what other processes do
            await trio.sleep(0.02)


async def test_cancelling_the_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        _server(monkeypatch) as server,
        _swarm(tmp_path) as swarm,
    ):
        parent = await swarm.spawn(PROMPT)
        await _all_sleep(tmp_path)
        start = trio.current_time()
        await parent.cancel()
        seconds = trio.current_time() - start
        left = processes_below(tmp_path)
        outcome = await parent.wait()
        assert not server.refusals

    assert left == []
    assert seconds < WITHIN_SECONDS
    assert outcome.status == "cancelled"


async def test_cancelling_the_users_own_scope_interrupts_and_it_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _server(monkeypatch) as server:
        start = 0.0
        with trio.CancelScope() as scope:
            async with _swarm(tmp_path) as swarm:
                parent = await swarm.spawn(PROMPT)
                await _all_sleep(tmp_path)
                start = trio.current_time()
                scope.cancel()
                await parent.wait()
        seconds = trio.current_time() - start
        assert scope.cancelled_caught
        assert processes_below(tmp_path) == []
        assert seconds < WITHIN_SECONDS

        async with _swarm(tmp_path) as swarm:
            views = swarm.agents()
            assert {view.status for view in views} == {"interrupted"}
            assert len(views) == DESCENDANTS + 1
            await swarm.resume_all()
            outcome = await (await swarm.resume(parent.id)).wait()
        assert outcome.status == "completed"
        assert outcome.result == "Everybody has slept."
        assert not server.refusals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_the_command(tmp_path: Path, number: signal.Signals) -> None:
    with server_process("sleepers", tmp_path / "requests.jsonl") as server:
        command = [*COMMAND, "-p", PROMPT, "--model", MODEL, "--dangerously-skip-permissions"]
        environment = environment_in(tmp_path / "home", server.environment())
        directory = tmp_path / "work"
        directory.mkdir()
        with subprocess.Popen(
            [*command, "--store", f"sqlite:{tmp_path / 'swarm.db'}"],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                _wait_until_sleeping(directory, min(DESCENDANTS, MAX_ACTIVE), process)
                start = time.monotonic()
                process.send_signal(number)
                output, errors = process.communicate(timeout=10)
                seconds = time.monotonic() - start
            finally:
                process.kill()
        assert processes_below(directory) == []

    assert process.returncode == 128 + number
    assert "Traceback" not in output + errors
    assert seconds < WITHIN_SECONDS


def test_ctrl_c_in_a_users_program(tmp_path: Path) -> None:
    directory = tmp_path / "work"
    directory.mkdir()
    with server_process("sleepers", tmp_path / "requests.jsonl") as server:
        environment = environment_in(tmp_path / "home", server.environment())
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.swarm.sleeping_program",
                f"sqlite:{tmp_path / 'swarm.db'}",
                str(directory),
                PROMPT,
            ],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                _wait_until_sleeping(directory, DESCENDANTS, process)
                start = time.monotonic()
                process.send_signal(signal.SIGINT)
                output, errors = process.communicate(timeout=10)
                seconds = time.monotonic() - start
            finally:
                process.kill()
        assert processes_below(directory) == []

    assert output.splitlines()[-1] == "KeyboardInterrupt", errors
    assert seconds < WITHIN_SECONDS

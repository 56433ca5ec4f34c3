"""Runs the real job through the command, kills it, and continues it until it is done.

Theory of operation
-------------------
One *trial* is a fresh repository and store. The command is started on the job's prompt and SIGKILLed by a ``Kill``: so
many seconds after its first request, or in the middle of the Nth step with a visible effect (the step's ``begin`` line
is in the log of effects and its shell still sleeps, so the kill falls between an intent and its result), or while it
still starts. A busy machine starts a process late: an instant counted from the start alone would often come before
anything was written. Some trials kill the first continuation as well. Then ``-c -p continue`` runs to its end, and
everything that can be looked at from outside is looked at: the repository, the log of effects, the store, and what the
strict server was sent.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import msgspec
import psycopg
import trio

from nanotrio.errors import StoreError
from nanotrio.stores import open_store
from nanotrio.stores.postgres_address import parse_postgres_url
from nanotrio.testing.calls import Calls, read_calls
from tests.invocation import COMMAND, environment_in
from tests.job.brain import SUMMARY
from tests.job.repository import PROMPT, JobRepository, make_repository
from tests.servers.request_log import changed_results
from tests.servers.server_process import ServerProcess

__all__ = ["MODELS", "Kill", "Timing", "Trial", "measure", "plan", "run_trial", "summary"]

MODELS = ("anthropic/claude-sonnet-4-5", "openai-chat/gpt-4.1")
"""One for each wire."""

_RUN_SECONDS = 120.0
_POLL_SECONDS = 0.002
_MAX_CONTINUES = 3


class Kill(msgspec.Struct, frozen=True):
    """When to kill: ``seconds`` after the first request where ``step`` is 0, else after the begin of that step."""

    seconds: float
    step: int = 0
    starting: bool = False
    """Counted from the start of the process instead."""


class Timing(msgspec.Struct, frozen=True):
    """How long a run takes that nobody kills."""

    first_seconds: float
    """From its start to its first request."""
    whole_seconds: float


class Trial(msgspec.Struct, kw_only=True):
    """What one trial has shown."""

    kills: tuple[Kill, ...]
    between: int = 0
    """Kills that fell between an intent and its result."""
    before: int = 0
    """Kills that came before the prompt was durable."""
    late: int = 0
    """Kills that came after the command had ended, and so were none."""
    dispatched: int = 0
    finished: int = 0
    unknown: int = 0
    problems: list[str] = []

    @property
    def killed(self) -> int:
        """Processes that were killed."""
        return len(self.kills) - self.late


class _Setting(msgspec.Struct, frozen=True):
    """Where a trial runs."""

    repository: JobRepository
    model: str
    url: str
    environment: Mapping[str, str]

    def command(self, *prompt: str) -> list[str]:
        flags = [
            "--model",
            self.model,
            "--store",
            self.url,
            "--dangerously-skip-permissions",
            "--output-format",
            "json",
        ]
        return [*COMMAND, *prompt, *flags]

    def start(self, *prompt: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*prompt),
            cwd=self.repository.path,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def _setting(parent: Path, server: ServerProcess, model: str, url: str) -> _Setting:
    if url.startswith("postgres"):
        url += f"&application_name={parent.name}-{uuid4()}"
    return _Setting(
        repository=make_repository(parent),
        model=model,
        url=url,
        environment=environment_in(parent / "home", server.environment()),
    )


def measure(parent: Path, server: ServerProcess, model: str, url: str) -> Timing:
    """Run the job once, on a new store at ``url``, without a kill; it must end well."""
    setting = _setting(parent, server, model, url)
    before = len(server.requests())
    start = time.monotonic()
    with setting.start("-p", PROMPT) as process:
        while len(server.requests()) == before and process.poll() is None:
            time.sleep(_POLL_SECONDS)
        first = time.monotonic() - start
        output, errors = process.communicate(timeout=_RUN_SECONDS)
        whole = time.monotonic() - start
    assert process.returncode == 0, errors
    assert json.loads(output.splitlines()[-1])["result"] == SUMMARY, output
    assert setting.repository.problems() == []
    return Timing(first, whole)


def plan(chance: random.Random, timing: Timing, number: int) -> tuple[Kill, ...]:
    """Return the kills of trial ``number``: two of five in a step, one of ten at the start, one of five twice."""
    working = timing.whole_seconds - timing.first_seconds
    in_step = number % 5 in (1, 3)
    if in_step:
        first = Kill(chance.uniform(0.0, 0.1), step=chance.randint(1, 3))
    elif number % 10 == 5:
        first = Kill(chance.uniform(0.0, timing.first_seconds), starting=True)
    else:
        first = Kill(chance.uniform(0.0, working * 0.95))
    if number % 5 == 4:
        return first, Kill(chance.uniform(0.0, working * 0.6))
    return (first,)


def run_trial(parent: Path, server: ServerProcess, model: str, kills: tuple[Kill, ...], url: str) -> Trial:
    """Run one trial, on a new store at ``url``, and return what it has shown."""
    setting = _setting(parent, server, model, url)
    trial = Trial(kills=kills)
    marks = [len(server.requests())]
    crash = Calls()
    for kill in kills:
        if not _killed(setting, server, kill, crash):
            trial.late += 1
        crash = _calls(setting)
        trial.between += bool(crash.open_effects())
        trial.before += not crash.started
        marks.append(len(server.requests()))
    _finish(setting, crash, trial)
    after = _calls(setting)
    trial.problems += after.problems_after(crash)
    trial.problems += setting.repository.problems()
    requests = server.requests()
    trial.problems += [
        f"request {seen.number} was refused: {seen.problem}" for seen in requests[marks[0] :] if seen.problem
    ]
    # Across a kill a result may change into an unknown one: it was told before it was durable. What was durable may
    # not change, and problems_after sees to that.
    for start, stop in itertools.pairwise([*marks, len(requests)]):
        changed = changed_results(requests[start:stop])
        trial.problems += [f"{key} was told differently: {told}" for key, told in changed.items()]
    trial.dispatched = sum(after.intended.values())
    trial.unknown = len(after.unknown())
    trial.finished = len(set(after.intended) & set(after.ended) - after.unknown())
    return trial


def _calls(setting: _Setting) -> Calls:
    async def read() -> Calls:
        try:
            store = await open_store(setting.url, read_only=True)
        except StoreError as error:
            if "there is no" not in str(error):
                raise
            return Calls()
        try:
            return await read_calls(store)
        finally:
            await store.aclose()

    return trio.run(read)


def _wait_for_server(url: str) -> None:
    """Wait until the server is done with the client that was killed: what that had sent is committed all the same."""
    if url.startswith("postgres"):
        parameters = parse_postgres_url(url).parameters
        count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        name = parameters.pop("application_name")
        with psycopg.connect(**parameters, autocommit=True) as connection:
            deadline = time.monotonic() + _RUN_SECONDS
            while connection.execute(count, (name,)).fetchone() != (0,):
                assert time.monotonic() < deadline, "the server does not let go of a client that is dead"
                time.sleep(_POLL_SECONDS)


def _prompt(crash: Calls) -> tuple[str, ...]:
    return ("-c", "-p", "continue") if crash.started else ("-p", PROMPT)


def _killed(setting: _Setting, server: ServerProcess, kill: Kill, crash: Calls) -> bool:
    """Start or continue the job and kill it; False where it ended before."""
    begins = _begun(setting)
    logged = server.log.stat().st_size
    with setting.start(*_prompt(crash)) as process:
        try:
            deadline = time.monotonic() + _RUN_SECONDS
            while not kill.starting and process.poll() is None and time.monotonic() < deadline:
                if _begun(setting) - begins >= kill.step and server.log.stat().st_size > logged:
                    break
                time.sleep(_POLL_SECONDS)
            process.wait(kill.seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            _wait_for_server(setting.url)
            return True
        finally:
            process.kill()
            process.communicate()  # an orphan may hold the pipe for the rest of its step
    return False


def _begun(setting: _Setting) -> int:
    return sum(line.startswith("begin ") for line in setting.repository.effect_lines())


def _finish(setting: _Setting, crash: Calls, trial: Trial) -> None:
    """Continue until the model says that all is done; it should take one run."""
    for _ in range(_MAX_CONTINUES):
        with setting.start(*_prompt(crash)) as process:
            try:
                output, errors = process.communicate(timeout=_RUN_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                output, errors = process.communicate()
                trial.problems.append(f"the continuation did not end: {output[-500:]} {errors[-500:]}")
        if process.returncode == 0:
            result = json.loads(output.splitlines()[-1])["result"]
            if result != SUMMARY:
                trial.problems.append(f"the continuation ended with {result!r}")
            return
        trial.problems.append(f"the continuation ended with exit code {process.returncode}: {errors[-500:]}")


def summary(seed: int, kind: str, trials: list[Trial]) -> str:
    """Return the counts on a kind of store in one line."""

    def total(name: str) -> int:
        return sum(int(getattr(trial, name)) for trial in trials)

    return (
        f"job under SIGKILL on {kind}: seed {seed}, {total('killed')} kills, "
        f"{total('between')} between intent and result, "
        f"{total('before')} before the prompt was durable, {total('late')} more came after the end; effects: "
        f"{total('dispatched')} dispatched, {total('finished')} finished, {total('unknown')} unknown"
    )

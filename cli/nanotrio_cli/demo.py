"""``nanotrio demo``: a thousand scripted agents run, are killed half way, and finish. No key, no server.

The swarm runs in a process of its own (``demo_act``), which this one kills with SIGKILL once half of the agents have
ended; a second one takes the store over. What is told at the end is read back from the store and the file system
(``demo_accounts``), and where it does not add up the exit code is 1.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Self

import msgspec
import trio

from nanotrio import read_store
from nanotrio.stores import parse_url

from .arguments import DemoOptions
from .data_folder import DataFolder
from .demo_accounts import Accounts, Interim, read_accounts, read_interim
from .demo_act import Progress, Report, TakenOver
from .demo_job import MIN_AGENTS, REGISTER, make_plan
from .demo_stage import Stage
from .exits import FAILED, OK, CommandError, CommandLineError, signal_code
from .folded_tree import tree_lines
from .money import cost_text
from .output import write_error
from .sessions import check_url, shown_url
from .signals import watch_signals

__all__ = ["run"]

_MAX_AGENTS = 10_000
_END_SECONDS = 8.0
"""How long an act that is told to leave may take, with what its agents run."""

_decode_report = msgspec.json.Decoder(Report).decode


def run(options: DemoOptions) -> int:
    """Play the demo and return the exit code: 0 where every agent is accounted for.

    Raises:
        CommandLineError: a value of the command line cannot be used; nothing was written.
        CommandError: the store is there already, or an act failed.
    """
    if options.rest:
        raise CommandLineError(f"nanotrio demo takes no {options.rest[0]!r}; nanotrio demo --help lists what there is")
    if not MIN_AGENTS <= options.agents <= _MAX_AGENTS:
        raise CommandLineError(f"--agents {options.agents} is not between {MIN_AGENTS} and {_MAX_AGENTS:,}")
    if options.store is not None:
        check_url(options.store)
    return trio.run(_Demo(options).run)


class _Demo:
    def __init__(self, options: DemoOptions) -> None:
        self._agents = options.agents
        self._given = options.store
        self._session = str(uuid.uuid4())
        self._url = options.store or f"sqlite:{DataFolder(os.environ).new_run(self._session)}"
        path = parse_url(self._url).path
        if path.exists():
            raise CommandError(f"{path} exists already; the demo wants a store of its own, so give another path")
        self._directory = path.with_name(f"{path.stem}.almanac")
        self._plan = make_plan(options.agents)
        self._stage = Stage()
        self._scope = trio.CancelScope()
        self._signal = 0
        self._has_orphans = False
        """Commands of the killed process may still run: none of them takes two seconds."""

    async def run(self) -> int:
        code = FAILED
        async with trio.open_nursery() as nursery:
            await nursery.start(watch_signals, self._on_signal)
            with self._scope:
                code = await self._play()
            nursery.cancel_scope.cancel()
        if self._signal:
            still = "Its last commands end within two seconds" if self._has_orphans else "Nothing of it runs any more"
            self._stage.line()
            self._stage.line(f"Stopped. {still}; what it had done is in")
            self._stage.exact(f"  {shown_url(self._url)}")
            return signal_code(self._signal)
        return code

    def _on_signal(self, number: int) -> bool:
        self._signal = number
        self._scope.cancel()
        return True

    async def _play(self) -> int:
        stage, plan = self._stage, self._plan
        started = time.monotonic()
        self._make_directory()
        writers = sum(month.pages for month in plan.months)
        stage.line(
            f"{self._agents:,} scripted agents make an almanac: 1 root, {len(plan.months)} editors, "
            f"{writers:,} writers."
        )
        stage.line("Half way their process is killed, and a second one finishes the work. No key, no server.")
        interim = await self._first_act()
        await self._second_act()
        seconds = time.monotonic() - started
        accounts = await read_accounts(self._url, plan, self._agents, self._directory, interim)
        self._tell_of_recovery(accounts)
        stage.title("4  The tree")
        stage.tree(tree_lines(await read_store(self._url), max_children=6, max_lines=30))
        stage.title("5  The accounts")
        self._tell_accounts(accounts, seconds)
        if accounts.problems:
            more = len(accounts.problems) - 1
            also = f" (and {more} more)" if more else ""
            write_error(
                f"nanotrio: the demo's accounts do not add up: {accounts.problems[0]}{also}; see {shown_url(self._url)}"
            )
            return FAILED
        self._tell_what_next(accounts)
        return OK

    def _make_directory(self) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True)
        except OSError as error:
            advice = "give --store sqlite:PATH with another path"
            raise CommandError(f"{self._directory} cannot be made: {error.strerror}; {advice}") from None

    async def _first_act(self) -> Interim:
        """Run the swarm until half of it has ended, and kill it."""
        stage, plan = self._stage, self._plan
        async with _Act(self._url, self._directory, self._session, self._agents) as act:
            stage.title(f"1  The swarm starts, in process {act.pid}")
            stage.line("Writers write files, run commands, and tell the next one where they stopped.")
            stage.line(
                f"{plan.capped.name.capitalize()} may spend ${plan.cap_usd:.2f}, which is too little for its pages."
            )
            with stage.bar(self._agents) as bar:
                async for report in act.reports():
                    if not isinstance(report, Progress):
                        continue
                    bar.show(report)
                    if report.spawned >= self._agents and report.ended >= self._agents // 2:
                        break
                else:
                    await act.wait()
                    raise CommandError(act.why("the swarm ended before it could be killed"))
            act.kill()
            self._has_orphans = True
        stage.title(f"2  SIGKILL to process {act.pid}")
        interim = await read_interim(self._url)
        stage.line(
            f"The store it leaves: {len(interim.ended):,} agents had ended, {interim.at_work:,} were in the middle of "
            f"a turn, {interim.not_begun:,} had not begun."
        )
        return interim

    async def _second_act(self) -> None:
        """Let another process finish the work."""
        stage = self._stage
        async with _Act(self._url, self._directory, self._session, self._agents) as act:
            stage.title(f"3  Process {act.pid} takes the store over")
            with stage.bar(self._agents) as bar:
                async for report in act.reports():
                    match report:
                        case TakenOver():
                            self._has_orphans = False
                            bar.say(_processes_ended(report.processes_ended))
                        case Progress():
                            bar.show(report)
            if await act.wait():
                raise CommandError(act.why("the second process could not finish the work"))

    def _tell_of_recovery(self, accounts: Accounts) -> None:
        stage = self._stage
        woken = f"; {accounts.woken:,} more were woken by mail" if accounts.woken else ""
        stage.line(f"{accounts.kept:,} agents that had ended stayed as they were{woken}.")
        stage.line(f"{accounts.agents - accounts.kept - accounts.woken:,} went on where their records stop.")
        if accounts.told:
            stage.line(
                f"{len(accounts.told):,} of these {'was' if len(accounts.told) == 1 else 'were'} told "
                '"outcome unknown" of a call that the kill cut off, and '
                "looked before doing it again."
            )

    def _tell_accounts(self, accounts: Accounts, seconds: float) -> None:
        stage = self._stage
        capped = accounts.capped.name if accounts.capped else self._plan.capped.name
        stage.line(
            f"{accounts.agents:,} agents: {accounts.completed:,} completed, {accounts.refused:,} refused, "
            f"all of them {capped} and its writers."
        )
        if accounts.refusal:
            stage.line(f'"{accounts.refusal}"', "dim")
        stage.line(
            f"{accounts.files:,} files; {accounts.signatures:,} signatures in {REGISTER}, each writer's exactly once; "
            f"{accounts.mails:,} messages between siblings."
        )
        uncertain = accounts.uncertain_nano
        also = f", and up to {cost_text(uncertain)} for calls the kill cut off" if uncertain else ""
        stage.line(f"{cost_text(accounts.cost_nano)} by list price{also}; nothing was billed. {seconds:.1f} s in all.")
        stage.line("Store and pages:")
        stage.exact(f"  {shown_url(self._url)}")
        stage.exact(f"  {self._directory}")

    def _tell_what_next(self, accounts: Accounts) -> None:
        """Say what a person may type now, as it works in their shell."""
        command = _command()
        session = self._session[:8]
        store = f" --store {shlex.quote(shown_url(self._given))}" if self._given else ""
        rows = [(f"{command} tree {session}{store}", "more of the tree")]
        if accounts.told:
            name = f"{session}/{accounts.told[0].name}"
            rows.append((f"{command} show {name}{store}", "told of an unknown outcome"))
        if accounts.first_refused:
            name = f"{session}/{accounts.first_refused.name}"
            rows.append((f"{command} show {name}{store}", "refused by the budget"))
        rows.append((f'{command} -p "Hello" --model scripted/echo', "a prompt of yours, without a key"))
        self._stage.title("What to type next")
        width = max(len(typed) for typed, _ in rows)
        for typed, about in rows:
            self._stage.exact(f"{typed:<{width}}  # {about}")


class _Act:
    """A process that plays one act; leaving the block ends it, and what its agents run, if it has not ended."""

    def __init__(self, url: str, directory: Path, session: str, agents: int) -> None:
        self._arguments = [url, str(directory), session, str(agents)]
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the act
        self._process: trio.Process | None = None
        self._was_killed = False

    async def __aenter__(self) -> Self:
        # Its own session: a Ctrl-C reaches it through us alone, once.
        self._process = await trio.lowlevel.open_process(
            [sys.executable, "-m", f"{__package__}.demo_act", *self._arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        with trio.CancelScope(shield=True):
            if self._running.poll() is None and not self._was_killed:
                self._running.terminate()
            with trio.move_on_after(_END_SECONDS) as patience:
                await self._running.wait()
            if patience.cancelled_caught:
                self._running.kill()
                await self._running.wait()
            assert self._running.stdout is not None
            await self._running.stdout.aclose()
        self._errors.close()

    @property
    def _running(self) -> trio.Process:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        """Its number."""
        return self._running.pid

    def kill(self) -> None:
        """Send SIGKILL."""
        self._was_killed = True
        self._running.kill()

    async def wait(self) -> int:
        """Wait for its end; return its exit code."""
        return await self._running.wait()

    async def reports(self) -> AsyncIterator[Report]:
        """Yield what it reports until it ends."""
        stdout = self._running.stdout
        assert stdout is not None
        rest = b""
        async for chunk in stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield _decode_report(line)

    def why(self, what: str) -> str:
        """Return what went wrong with it, in one line."""
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return f"{what} (exit code {self._running.returncode}){f': {said[-1]}' if said else ''}"


def _processes_ended(count: int) -> str:
    if not count:
        return "No process of the killed one's agents was left."
    what = "process" if count == 1 else "processes"
    return f"{count:,} {what} that the killed one's agents had left running: ended."


def _command() -> str:
    """Return how the command is called from this shell."""
    typed = sys.argv[0]
    name = Path(typed).name
    if name not in ("nanotrio", "nt"):
        return f"{Path(sys.executable).name} -m nanotrio_cli"
    found = shutil.which(name)
    return name if found and Path(found).resolve() == Path(typed).resolve() else shlex.quote(typed)

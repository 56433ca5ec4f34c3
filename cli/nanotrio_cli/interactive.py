"""``nanotrio`` on a terminal: opens the terminal and a swarm, and hands both to the REPL, session after session."""

from __future__ import annotations

import functools
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import trio

from nanotrio import Agent, Swarm

from .approvals import Approvals
from .arguments import RunOptions
from .data_folder import DataFolder
from .exits import OK, signal_code
from .faults import FaultLog
from .line_terminal import LineTerminal
from .money import view_cost
from .opening import Place, begin, choose_place, leftovers, open_place, take_up
from .printable import one_line
from .prompt_terminal import PromptTerminal
from .repl import Session, repl
from .rules import rules_of
from .sessions import Skipped, read_trees, roots
from .signals import watch_signals
from .terminal import EndOfInputError, Terminal
from .transcript import Piece

__all__ = ["run_interactive"]

_LISTED_SESSIONS = 20


def run_interactive(options: RunOptions, environment: Mapping[str, str], directory: Path) -> int:
    """Talk on standard input and output, which are a terminal; return the exit code."""
    with FaultLog(environment, lambda _: None):  # the transcript tells of both in its own place
        return trio.run(_Interactive(options, environment, directory).run)


class _Interactive:
    def __init__(self, options: RunOptions, environment: Mapping[str, str], directory: Path) -> None:
        self._options = options
        self._environment = environment
        self._directory = directory
        self._scope = trio.CancelScope()
        self._signal = 0
        self._terminal: Terminal | None = None

    async def run(self) -> int:
        async with trio.open_nursery() as nursery:
            await nursery.start(watch_signals, self._on_signal)
            with self._scope:
                try:
                    async with AsyncExitStack() as stack:
                        self._terminal = terminal = await self._open_terminal(stack)
                        await self._sessions(terminal)
                except* EndOfInputError:
                    self._signal = self._signal or signal.SIGHUP
            nursery.cancel_scope.cancel()
        return signal_code(self._signal) if self._signal else OK

    def _on_signal(self, number: int) -> bool:
        if number == signal.SIGINT and self._terminal is not None and self._terminal.interrupt():
            return False
        self._signal = number
        self._scope.cancel()
        return True

    async def _open_terminal(self, stack: AsyncExitStack) -> Terminal:
        if self._environment.get("TERM", "dumb") in ("dumb", ""):
            return LineTerminal(self._environment)
        history = None if self._options.no_session else DataFolder(self._environment).history()
        return await stack.enter_async_context(PromptTerminal(self._environment, history=history))

    async def _sessions(self, terminal: Terminal) -> None:
        """Run the REPL on one session after another, as ``/resume`` asks."""
        place: Place | None = await choose_place(self._options, self._environment, self._directory)
        options = self._options
        while place is not None:
            place = await self._one_session(terminal, options, place)
            options = msgspec.structs.replace(options, prompt=None, fork_session=False)

    async def _find(self, wanted: str) -> Place:
        """Return the place of the session that ``/resume`` names."""
        options = msgspec.structs.replace(
            self._options, resume=wanted, continue_newest=False, session_id=None, no_session=False, fork_session=False
        )
        place = await choose_place(options, self._environment, self._directory)
        rules_of(options, place)
        return place

    async def _one_session(self, terminal: Terminal, options: RunOptions, place: Place) -> Place | None:
        rules = rules_of(options, place)
        approvals = Approvals(rules)
        session: Session[Place] | None = None
        try:
            async with open_place(
                options, place, self._environment, self._directory, rules.mode, approvals.approve
            ) as swarm:
                left = [] if place.found is None else await leftovers(swarm)
                session = Session(
                    begin=functools.partial(self._begin, swarm, place),
                    approvals=approvals,
                    list_sessions=self._list_sessions,
                    find=self._find,
                    agent=None if place.found is None else await take_up(options, swarm, place, place.found),
                    first=options.prompt,
                )
                await self._greet(terminal, place, left)
                return await repl(terminal, swarm, session)
        finally:
            if session is None or session.agent is None:
                place.forget_if_empty()

    async def _begin(self, swarm: Swarm, place: Place, prompt: str) -> Agent:
        return await begin(swarm, place, prompt)

    async def _greet(self, terminal: Terminal, place: Place, left: list[str]) -> None:
        found = place.found
        text = "nanotrio, /help lists the commands\n"
        if found is not None:
            text += f"{'fork' if place.is_fork else 'session'} {place.session_id}: {one_line(found.view.task, 60)}\n"
            text += "".join(f"{line}\n" for line in left)
        terminal.show([Piece("note", text)])
        await terminal.drain()

    async def _list_sessions(self) -> list[str]:
        many = self._options.store is None
        urls = DataFolder(self._environment).stores() if many else [self._options.store or ""]
        lines: list[str] = []
        skipped = Skipped(of_many=many)
        for url in urls:
            lines += [
                f"{view.uuid}  {view_cost(view)}  {one_line(view.task, 60)}"
                for view in roots(await read_trees(url, skipped))
                if view.directory == str(self._directory)
            ]
            if len(lines) >= _LISTED_SESSIONS:
                break
        return lines[:_LISTED_SESSIONS] + skipped.lines

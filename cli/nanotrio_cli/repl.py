"""The conversation at a terminal: a function of a terminal and a swarm.

It knows neither descriptors nor signals nor where sessions lie; whoever calls it hands these in. One turn runs at a
time. While it runs, one task shows events, one asks what tools may do, one waits for Ctrl-C, and the screen belongs to
one of them at a time; the turn is over once the tree below the root has settled.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

from nanotrio import Agent, Outcome, Swarm
from nanotrio.errors import NanotrioError, StoreError
from nanotrio.swarm.events import Event, TurnFinished

from .approvals import Approvals, Request
from .exits import CommandError
from .faults import foreseen
from .folded_tree import tree_lines
from .money import cost_text, view_cost
from .printable import one_line, printable
from .result import result_text, spending
from .terminal import EndOfInputError, InterruptedInputError, Terminal
from .transcript import Piece, Style, Transcript

__all__ = ["Session", "repl"]

_COMMAND = re.compile(r"/[A-Za-z][A-Za-z-]*(?=\s|$)")
_LAST_EVENTS_SECONDS = 1.0
"""How long the end of a turn waits for its last events: they may have been lost."""

_INTERRUPT_SECONDS = 10.0
_AGAIN_SECONDS = 0.02
"""The end of a child is told to its parent, which begins a turn to read of it; that turn is interrupted too."""

_HELP = """\
Enter sends; Esc Enter, or \\ and Enter, begins a new line.
Ctrl-C interrupts a turn, Ctrl-D leaves.
/help          this
/agents        the tree of agents as it stands
/resume [ID]   list this folder's sessions, or go on with one
/cost          what this session cost
/exit          leave; the session stays and nanotrio -c goes on with it
"""


Place = TypeVar("Place")


@dataclass
class Session(Generic[Place]):
    """What a REPL works on; a ``Place`` is whatever its caller can open a session by."""

    begin: Callable[[str], Awaitable[Agent]]
    """Spawns the root with its first prompt."""
    approvals: Approvals
    list_sessions: Callable[[], Awaitable[list[str]]]
    """Returns this folder's sessions, a line each."""
    find: Callable[[str], Awaitable[Place]]
    """Returns the place of the session with that id; its errors are shown and the talk goes on."""
    agent: Agent | None = None
    """The root, once there is one; set from the start where a session goes on."""
    first: str | None = None
    """A prompt to begin with."""


async def repl(terminal: Terminal, swarm: Swarm, session: Session[Place]) -> Place | None:
    """Talk until the person leaves; return the place of the session they want to go on with, or None.

    On return no turn runs. Cancelled from outside, the running turn is left to the swarm's own ending.

    Raises:
        NanotrioError: the store was lost, or the swarm broke.
    """
    return await _Repl(terminal, swarm, session).run()


class _Repl(Generic[Place]):
    def __init__(self, terminal: Terminal, swarm: Swarm, session: Session[Place]) -> None:
        self._terminal = terminal
        self._swarm = swarm
        self._session = session
        self._screen = trio.Lock()
        self._is_interrupted = False
        self._commands: dict[str, Callable[[], Awaitable[None]]] = {
            "/help": self._help,
            "/agents": self._agents,
            "/cost": self._cost,
        }

    async def run(self) -> Place | None:
        if self._session.agent is not None:
            await self._turn(None)
        first, self._session.first = self._session.first, None
        if first is not None:
            await self._turn(first)
        while True:
            try:
                text = (await self._terminal.ask()).strip()
            except InterruptedInputError:
                continue
            except EndOfInputError:
                return None
            if not text:
                continue
            word = _COMMAND.match(text)
            if word is None:
                await self._turn(text)
                continue
            argument = text[word.end() :].strip()
            if word[0] in ("/exit", "/quit"):
                return None
            if word[0] == "/resume" and argument:
                place = await self._find(argument)
                if place is not None:
                    return place
                continue
            await self._command(word[0])

    def _say(self, style: Style, text: str) -> None:
        self._terminal.show([Piece(style, text + "\n")])

    async def _find(self, wanted: str) -> Place | None:
        try:
            return await self._session.find(wanted)
        except (CommandError, NanotrioError) as error:
            self._say("error", one_line(str(error), 1_000))
            await self._terminal.drain()
            return None

    async def _command(self, word: str) -> None:
        if word == "/resume":
            for line in await self._session.list_sessions() or ["there are no sessions of this folder yet"]:
                self._say("answer", line)
        elif word in self._commands:
            await self._commands[word]()
        else:
            self._say("error", f"there is no command {word}; /help lists them")
        await self._terminal.drain()

    async def _help(self) -> None:
        self._say("answer", _HELP.rstrip())

    async def _agents(self) -> None:
        agent = self._session.agent
        if agent is None:
            self._say("note", "no agents yet: the first prompt makes one")
            return
        root = agent.view().root or agent.id
        views = [view for view in self._swarm.agents() if root in (view.root, view.id)]
        for line in tree_lines(views, root=root):
            self._say("answer", line.text(self._terminal.width))

    async def _cost(self) -> None:
        agent = self._session.agent
        if agent is None:
            self._say("note", "nothing yet")
            return
        root = agent.view()
        models = spending(view for view in self._swarm.agents() if root.id in (view.root, view.id))
        self._say("answer", f"session {root.uuid}: {view_cost(root)}")
        for name, one in sorted(models.items()):
            cost = cost_text(one.cost_nano, unpriced=one.unpriced, uncertain_nano=one.uncertain_nano)
            tokens = f"{one.usage.input:,} in, {one.usage.output:,} out"
            cached = f", cache {one.usage.cache_read:,} read, {one.usage.cache_write:,} written"
            self._say("answer", f"  {printable(name)}: {cost}; {tokens}{cached}")

    async def _turn(self, text: str | None) -> None:
        """Run one turn to its end and show it; None follows the one that runs, or shows the last answer again."""
        try:
            outcome = await self._watched(text)
        except Exception as error:
            known = foreseen(error)
            if not isinstance(known, NanotrioError) or isinstance(known, StoreError):
                raise
            self._say("error", one_line(str(known), 1_000))
        else:
            self._close_turn(outcome)
        await self._terminal.drain()

    async def _watched(self, text: str | None) -> Outcome:
        async with self._swarm.events() as events:
            agent = self._session.agent
            if agent is None:
                assert text is not None
                agent = self._session.agent = await self._session.begin(text)
            elif text is not None:
                await agent.send(text)
            self._is_interrupted = False
            transcript = Transcript(agent.id, width=self._terminal.width)
            told = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._show, events, transcript, told)
                nursery.start_soon(self._answer_requests, agent)
                nursery.start_soon(self._obey_interrupts, agent)
                outcome = await agent.wait()
                if text is not None or not transcript.is_blank:
                    with trio.move_on_after(_LAST_EVENTS_SECONDS):
                        await told.wait()
                nursery.cancel_scope.cancel()
            self._terminal.show(transcript.end_line())
            if text is None and transcript.is_blank and outcome.last_text:
                self._say("answer", printable(outcome.last_text))
            return outcome

    async def _show(self, events: AsyncIterator[Event], transcript: Transcript, told: trio.Event) -> None:
        async for event in events:
            async with self._screen:
                self._terminal.show(transcript.pieces(event))
                await self._terminal.drain()
            if isinstance(event, TurnFinished) and event.agent == transcript.root:
                told.set()

    def _close_turn(self, outcome: Outcome) -> None:
        if self._is_interrupted or outcome.status == "cancelled":
            self._say("note", "interrupted; the session goes on")
        elif outcome.status == "completed":
            text = result_text(outcome)
            if text.strip() != outcome.last_text.strip():
                self._say("answer", printable(text))
        else:
            self._say("error", one_line(f"{outcome.status}: {outcome.reason}", 1_000))

    async def _obey_interrupts(self, agent: Agent) -> None:
        while True:
            await self._terminal.wait_interrupt()
            self._is_interrupted = True
            with trio.move_on_after(_INTERRUPT_SECONDS):
                while agent.view().status not in ("idle", "closed"):
                    await agent.interrupt()
                    await trio.sleep(_AGAIN_SECONDS)

    async def _answer_requests(self, agent: Agent) -> None:
        async for request in self._session.approvals.requests.clone():
            if request.gone.is_set():
                continue
            if self._session.approvals.is_allowed(request):
                request.answer(allowed=True)
                continue
            async with self._screen:
                await self._ask_about(request, agent)

    async def _ask_about(self, request: Request, agent: Agent) -> None:
        """Ask, as long as the agent waits; Ctrl-C says no and interrupts the turn."""
        self._terminal.show([Piece("prompt", request.question())])
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_once_gone, request, nursery.cancel_scope)
                key = await self._terminal.choose("allow? y(es) n(o) a(lways) ", "yna")
                if key == "a":
                    self._session.approvals.allow_always(request)
                request.answer(allowed=key in "ya")
                nursery.cancel_scope.cancel()
        except* InterruptedInputError:
            request.answer(allowed=False)
            await agent.interrupt()


async def _cancel_once_gone(request: Request, scope: trio.CancelScope) -> None:
    await request.gone.wait()
    scope.cancel()

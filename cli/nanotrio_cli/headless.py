"""``nanotrio -p``: one prompt, the tree it grows, and a record of how it ended.

The command waits until the whole tree has settled, at most ``--max-wait-seconds``. A signal, the ceiling or a reader
that has gone interrupt the work: nothing final is written, the store is flushed and closed, and a later run goes on.
Only then is the final record printed, so what it says is on disk.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from nanotrio import Agent, AgentView, Approval, Outcome, Swarm
from nanotrio.errors import NanotrioError
from nanotrio.swarm.events import BudgetWarned, MessageReplied, TurnFinished

from .arguments import RunOptions
from .exits import FAILED, OK, CommandError, OutputClosedError, signal_code
from .faults import FaultLog, foreseen
from .opening import Place, begin, choose_place, go_on_hint, leftovers, open_place, result_schema, take_up
from .output import Output, encode_line, write_error
from .printable import printable
from .result import Ending, Spending, result_record, result_text, spending
from .rules import Rules, rules_of
from .signals import signal_name, watch_signals
from .stream import StreamRecords
from .transcript import Transcript

__all__ = ["run_headless"]

_LAST_EVENTS_SECONDS = 1.0
_NAMED_CHILDREN = 5


def run_headless(options: RunOptions, prompt: str, environment: Mapping[str, str], directory: Path) -> int:
    """Run ``prompt`` and return the exit code.

    Raises:
        CommandLineError: a value of the command line cannot be used; nothing was written.
        OutputClosedError: the reader has gone before the result was written.
    """
    schema = result_schema(options)
    with FaultLog(environment, write_error):
        return trio.run(_Run(options, prompt, environment, directory, schema).run)


class _Run:
    def __init__(
        self,
        options: RunOptions,
        prompt: str,
        environment: Mapping[str, str],
        directory: Path,
        schema: dict[str, Any] | None,
    ) -> None:
        self._options = options
        self._prompt = prompt
        self._environment = environment
        self._directory = directory
        self._schema = schema
        self._started = time.monotonic()
        self._scope = trio.CancelScope()
        self._output = Output()
        self._signal = 0
        self._reader_gone = False
        self._place: Place | None = None
        self._rules: Rules | None = None
        self._swarm: Swarm | None = None
        self._views: Sequence[AgentView] = ()
        self._before: dict[str, Spending] = {}
        self._outcome: Outcome | None = None
        self._error = ""
        self._steps = 0
        self._denials: list[dict[str, Any]] = []

    async def run(self) -> int:
        async with trio.open_nursery() as nursery:
            await nursery.start(watch_signals, self._on_signal)
            nursery.start_soon(self._watch_reader)
            with self._scope:
                try:
                    await self._conduct()
                except Exception as error:
                    known = foreseen(error)
                    if not isinstance(known, NanotrioError | CommandError):
                        raise
                    self._error = str(known)
            nursery.cancel_scope.cancel()
        if self._reader_gone:
            raise OutputClosedError
        return await self._finish()

    def _on_signal(self, number: int) -> bool:
        self._signal = number
        self._error = f"interrupted by {signal_name(number)}"
        self._leave()
        return True

    async def _watch_reader(self) -> None:
        await self._output.wait_closed()
        self._reader_gone = True
        self._leave()

    def _leave(self) -> None:
        """Interrupt the work; the swarm flushes and closes on its way out."""
        if self._swarm is not None:
            self._views = self._swarm.agents()
        self._scope.cancel()

    async def _conduct(self) -> None:
        self._place = place = await choose_place(self._options, self._environment, self._directory)
        self._rules = rules = rules_of(self._options, place)
        began = False
        try:
            async with open_place(
                self._options, place, self._environment, self._directory, rules.mode, self._answer
            ) as self._swarm:
                options = self._options
                watches = options.output_format != "text" or options.verbose or options.max_budget_usd is not None
                if watches:
                    async with self._swarm.events() as events:
                        agent = await self._start(self._swarm, place)
                        began = True
                        await self._watch(agent, events)
                else:
                    agent = await self._start(self._swarm, place)
                    began = True
                    await self._wait(agent)
                self._views = self._swarm.agents()
        finally:
            self._swarm = None
            if not began:
                place.forget_if_empty()

    async def _start(self, swarm: Swarm, place: Place) -> Agent:
        found = place.found
        if found is None:
            return await begin(swarm, place, self._prompt, self._schema)
        for line in await leftovers(swarm):
            write_error(f"nanotrio: {line}")
        if self._options.output_format != "text" and not place.is_fork:
            self._before = spending(await found.read_tree())
        agent = await take_up(self._options, swarm, place, found)
        if found.view.status == "interrupted" and not place.is_fork:
            await agent.steer(self._prompt)
        else:
            await agent.send(self._prompt)
        return agent

    async def _wait(self, agent: Agent) -> None:
        seconds = self._options.max_wait_seconds
        with trio.move_on_after(seconds) as ceiling:
            self._outcome = await agent.wait()
        if ceiling.cancelled_caught:
            self._error = f"after {seconds:g} s (--max-wait-seconds) the tree had not settled"
            self._leave()
            await trio.lowlevel.checkpoint()

    async def _watch(self, agent: Agent, events: trio.MemoryReceiveChannel[Any]) -> None:
        told = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell, agent, events, told)
            await self._wait(agent)
            with trio.move_on_after(_LAST_EVENTS_SECONDS):
                await told.wait()
            nursery.cancel_scope.cancel()

    async def _tell(self, agent: Agent, events: trio.MemoryReceiveChannel[Any], told: trio.Event) -> None:
        """Count steps, and show events in the form that was asked for."""
        streams = self._options.output_format == "stream-json"
        records = StreamRecords(agent.uuid, partial_messages=self._options.partial_messages)
        transcript = Transcript(agent.id, everything=True)
        if streams:
            self._output.add(encode_line(self._opening(records, agent)))
        async for event in events:
            if isinstance(event, MessageReplied) and event.agent == agent.id:
                self._steps += 1
            if streams:
                for record in records.records(event):
                    self._output.add(encode_line(record))
                await self._output.drain()
            if self._options.verbose:
                text = "".join(piece.text for piece in transcript.pieces(event) if piece.style != "answer")
                for line in text.splitlines():
                    write_error(line)
            elif isinstance(event, BudgetWarned):
                write_error(f"nanotrio: {event.message}")
            if isinstance(event, TurnFinished) and event.agent == agent.id:
                told.set()

    def _opening(self, records: StreamRecords, agent: Agent) -> dict[str, Any]:
        assert self._rules is not None
        view = agent.view()
        return records.opening(
            directory=view.directory, model=view.model, tools=view.tools, permission_mode=self._rules.mode
        )

    async def _answer(self, approval: Approval) -> bool | None:
        """Say what the command line says; nobody is there to ask."""
        await trio.lowlevel.checkpoint()
        assert self._rules is not None
        if self._rules.allow(approval):
            return True
        call = approval.call
        self._denials.append(
            {
                "tool_name": call.name,
                "tool_use_id": call.id,
                "agent": approval.name,
                "tool_input": _json(call.arguments),
            }
        )
        return None

    async def _finish(self) -> int:
        place = self._place
        hint = ""
        if place is not None and self._views and (self._signal or self._outcome is None):
            hint = go_on_hint(self._options, place)
            cut = [view.name for view in self._own(self._views) if view.parent and not _rests(view)]
            if cut:
                named = ", ".join(cut[:_NAMED_CHILDREN])
                rest = len(cut) - _NAMED_CHILDREN
                self._error += f"; cut off: {named}" + (f" and {rest} more" if rest > 0 else "")
        if hint:
            self._error += f"; go on with: {hint}"
        ending = Ending(
            session_id=place.session_id if place is not None else "",
            duration_ms=round((time.monotonic() - self._started) * 1000),
            outcome=self._outcome,
            error=self._error,
            steps=self._steps if place is not None and place.found is not None else self._all_steps,
            models=await self._models(),
            denials=self._denials,
            wants_structure=self._schema is not None,
        )
        await self._write(ending)
        return signal_code(self._signal) if self._signal else FAILED if ending.is_error else OK

    @property
    def _all_steps(self) -> int:
        """Of a session's first run; the turn that a later one goes on with may have begun before it."""
        return max(self._steps, self._outcome.steps if self._outcome else 0)

    def _own(self, views: Sequence[AgentView]) -> list[AgentView]:
        """Return those of this run's tree; a store may hold other ones."""
        session = self._place.session_id if self._place is not None else ""
        roots = {view.id for view in views if view.uuid == session}
        return [view for view in views if view.root in roots or view.id in roots]

    async def _models(self) -> dict[str, Spending]:
        """Return what this run spent, by model."""
        if self._options.output_format == "text" or self._place is None or not self._views:
            return {}
        found = self._place.found
        if found is None or self._place.is_fork:
            return spending(self._own(self._views))
        after = spending(await found.read_tree())
        left = {name: one - self._before.get(name, Spending()) for name, one in after.items()}
        return {name: one for name, one in left.items() if one != Spending()}

    async def _write(self, ending: Ending) -> None:
        with trio.CancelScope(shield=True):
            if self._options.output_format != "text":
                self._output.add(encode_line(result_record(ending)))
            elif not ending.is_error and self._outcome is not None:
                text = result_text(self._outcome)
                if _is_terminal():
                    text = printable(text)
                self._output.add((text if text.endswith("\n") else text + "\n").encode("utf-8", "replace"))
            if ending.is_error:
                write_error(f"nanotrio: {ending.reason}")
            await self._output.drain()


def _rests(view: AgentView) -> bool:
    return view.status in ("idle", "closed")


def _is_terminal() -> bool:
    import os

    return os.isatty(1)


def _json(text: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text

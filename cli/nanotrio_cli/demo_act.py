"""One act of the demo, in a process of its own: run the swarm, or take it over and finish it, and report on stdout.

``python -m nanotrio_cli.demo_act URL DIRECTORY SESSION AGENTS`` begins the session where the store has none, and goes
on with it where it has. Reports are JSON lines. The process leaves, with everything below it ended and nothing final
written, on a signal or when nobody reads its reports any more.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
import trio

from nanotrio import Agent, Limits, Swarm, open_swarm, read_store
from nanotrio.tools import standard_tools

from .demo_job import demo_model, make_plan
from .exits import FAILED, OK, OutputClosedError, signal_code
from .output import Output
from .signals import watch_signals

__all__ = ["Progress", "Report", "TakenOver"]

_REPORT_SECONDS = 0.1
_MAX_OUTPUT_TOKENS = 2_048


class Progress(msgspec.Struct, frozen=True, gc=False, tag="progress"):
    """How the agents stand."""

    spawned: int
    ended: int
    refused: int
    at_work: int
    cost_nano: int


class TakenOver(msgspec.Struct, frozen=True, gc=False, tag="taken_over"):
    """The store is this process's now, and what the killed one's agents left running has been ended."""

    processes_ended: int


Report: TypeAlias = Progress | TakenOver


class _Act:
    def __init__(self, url: str, directory: Path, session: str, agents: int) -> None:
        self._url = url
        self._directory = directory
        self._session = session
        self._agents = agents
        self._output = Output()
        self._scope = trio.CancelScope()
        self._signal = 0

    async def run(self) -> int:
        async with trio.open_nursery() as nursery:
            await nursery.start(watch_signals, self._on_signal)
            nursery.start_soon(self._watch_reader)
            with self._scope:
                await self._play()
            nursery.cancel_scope.cancel()
        if self._signal:
            return signal_code(self._signal)
        return FAILED if self._scope.cancelled_caught else OK

    def _on_signal(self, number: int) -> bool:
        self._signal = number
        self._scope.cancel()
        return True

    async def _watch_reader(self) -> None:
        await self._output.wait_closed()
        self._scope.cancel()

    async def _play(self) -> None:
        async with open_swarm(
            store=self._url,
            model=demo_model(),
            tools=standard_tools(),
            limits=Limits(max_output_tokens=_MAX_OUTPUT_TOKENS, max_live=self._agents + 1),
            max_active=max(12, self._agents // 6),
            directory=self._directory,
        ) as swarm:
            root = await self._root(swarm)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._report_often, swarm)
                await root.wait()
                nursery.cancel_scope.cancel()
            await self._say(await self._progress(swarm))

    async def _root(self, swarm: Swarm) -> Agent:
        unfinished = swarm.agents()
        if not unfinished:
            return await swarm.spawn(make_plan(self._agents).prompt, name="almanac", uuid=self._session)
        # First of all: a command that outlived its agent must not go on beside the agent that is told to look.
        await self._say(TakenOver(len(await swarm.end_leftovers())))
        return await swarm.resume(self._session)

    async def _report_often(self, swarm: Swarm) -> None:
        while True:
            await self._say(await self._progress(swarm))
            await trio.sleep(_REPORT_SECONDS)

    async def _progress(self, swarm: Swarm) -> Progress:
        """Count all agents: most of those that have ended, or have not begun, are in the store alone."""
        views = await read_store(self._url)
        ended = [view for view in views if view.outcome is not None and view.status in ("idle", "closed")]
        # An ended agent's cost is in its parent's already.
        costs = (view.spent_nano for view in views if not view.parent or view.status not in ("idle", "closed"))
        return Progress(
            spawned=len(views),
            ended=len(ended),
            refused=sum(view.outcome == "budget_exceeded" for view in ended),
            at_work=swarm.statistics().active,
            cost_nano=sum(costs),
        )

    async def _say(self, report: Report) -> None:
        self._output.add(msgspec.json.encode(report) + b"\n")
        await self._output.drain()


def main(argv: Sequence[str]) -> int:
    """Play one act."""
    url, directory, session, agents = argv
    try:
        return trio.run(_Act(url, Path(directory), session, int(agents)).run)
    except OutputClosedError:
        return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What a kill costs: how soon a swarm is where it was, and how soon it is done.

- ``killed``: a swarm of ``--agents`` with ``--active`` at work is ended by SIGKILL when half of them are done. A new
  process opens the store and resumes all; the time runs from its start to ``--active`` agents waiting for the model
  again, which does not answer any more.
- ``small``: 600 agents at once, each request answered after a second, are ended by SIGKILL when 310 have handed in
  their result, durably. In a new process, from its start: ``restored`` when everyone who was unfinished waits for the
  model again, ``children_done`` when the last child has been answered, ``all_done`` when the root, which is told of
  its children's ends by further turns of its own, has ended too, durably.
- ``reopen``: the store of a swarm of ``--agents`` that ended is opened by a new process and 100 random agents are read
  (benchmarks.reopen, with a writer that closes its store).
- ``ids``: one tree's 10,000 ids assigned, and durable: ``spawn_many`` of so many tasks of 500 bytes, in one call and in
  ten, with one agent at work so that nothing else is measured.

    python -m benchmarks.recovery --agents 100000 --store sqlite
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from typing import Any

import trio

import nanotrio
from benchmarks._crowd import SYSTEM, Crowd, CrowdModel, die_in_time, spawn_all, task_of
from benchmarks._measures import peak_mb, print_result
from benchmarks._places import KINDS, Place, add_store_arguments, opened_place
from benchmarks.reopen import measured

PARTS = ("killed", "small", "reopen", "ids")
SMALL = 600
SMALL_DONE = 310
IDS = 10_000
_TRIES = 3


class _Watched:
    """A resumed swarm's progress, as times since the process's start."""

    def __init__(self, started: float) -> None:
        self._started = started
        self.figures: dict[str, float] = {"imported_seconds": self._now()}

    def _now(self) -> float:
        return time.monotonic() - self._started

    def note(self, name: str) -> None:
        self.figures[name] = self._now()


async def _run(url: str, crowd: Crowd, active: int, latency_seconds: float) -> None:
    """Run a swarm that is to be killed."""
    limits = nanotrio.Limits(max_live=active + len(crowd.counts) + 16, max_total=max(crowd.counts) + 1)
    model = CrowdModel(crowd, latency_seconds, counts_results=True)
    async with (
        nanotrio.open_swarm(store=url, model=model, system=SYSTEM, limits=limits, max_active=active) as swarm,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(die_in_time, swarm, crowd)
        for root in await spawn_all(swarm, crowd):
            await root.wait()
    raise SystemExit("the swarm ended before it was killed")


async def _resume(url: str, crowd: Crowd, active: int, latency_seconds: float, started: float) -> dict[str, float]:
    """Open a killed swarm's store, resume all, and tell when its agents wait again; with a finite latency, end."""
    watched = _Watched(started)
    limits = nanotrio.Limits(max_live=active + len(crowd.counts) + 16, max_total=max(crowd.counts) + 1)
    model = CrowdModel(crowd, latency_seconds, counts_results=True)
    crowd.may_reply = True
    async with nanotrio.open_swarm(store=url, model=model, system=SYSTEM, limits=limits, max_active=active) as swarm:
        watched.note("opened_seconds")
        unfinished = len(swarm.agents())
        crowd.active = min(crowd.active, unfinished)
        roots = await swarm.resume_all()
        watched.note("resumed_seconds")
        await _waiting_again(model, crowd, swarm)
        watched.note("waiting_seconds")
        watched.figures |= {"unfinished": unfinished, "waiting": model.waiting, "peak_mb": peak_mb()}
        watched.figures["waiting_cpu_seconds"] = time.process_time()
        if math.isinf(latency_seconds):
            print(json.dumps(watched.figures), flush=True)
            os._exit(0)
        while crowd.done < unfinished - len(roots):  # noqa: ASYNC110 - the script is asked by many
            await trio.sleep(0.002)
        watched.note("children_done_seconds")
        for root in roots:
            await root.wait()
        await swarm.flush()
        watched.note("all_done_seconds")
    return watched.figures


async def _waiting_again(model: CrowdModel, crowd: Crowd, swarm: nanotrio.Swarm) -> None:
    """Wait until as many wait for the model as may, or as there are: roots whose children work do not ask."""
    with trio.move_on_after(60):
        while model.waiting < crowd.active:
            statistics = swarm.statistics()
            if model.waiting and model.waiting == statistics.active and not statistics.pending:
                return
            await trio.sleep(0.002)


def _child(args: argparse.Namespace) -> None:
    """Be one of the processes of a part."""
    crowd = Crowd(args.agents, args.roots, args.active)
    if args.started is None:
        crowd.kill_at = args.kill_at
        trio.run(_run, args.store, crowd, args.active, args.latency)
        return
    figures = trio.run(_resume, args.store, crowd, args.active, args.latency, args.started)
    print(json.dumps(figures))


def _killed(place: Place, agents: int, roots: int, active: int, kill_at: int, latency: tuple[float, float]) -> Any:
    """Let a swarm be killed, and resume it; ``latency`` before and after."""
    command = [sys.executable, "-m", "benchmarks.recovery", "--store", place.url, "--kill-at", str(kill_at)]
    command += ["--agents", str(agents), "--roots", str(roots), "--active", str(active)]
    begun = time.monotonic()
    ended = subprocess.run([*command, "--latency", str(latency[0])], check=False)
    if ended.returncode != -signal.SIGKILL:
        raise SystemExit(f"the swarm was to be killed and ended with {ended.returncode}")
    seconds = time.monotonic() - begun
    again = [*command, "--latency", str(latency[1]), "--started", str(time.monotonic())]
    done = subprocess.run(again, stdout=subprocess.PIPE, text=True, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    return {"until_kill_seconds": seconds, **figures}


async def _ids(url: str, count: int, calls: int) -> float:
    """Return the seconds that ``count`` children took to be spawned, durably."""
    crowd = Crowd(1, 1, 1)
    limits = nanotrio.Limits(max_total=count + 1)
    seconds = 0.0
    with trio.CancelScope() as scope:
        async with nanotrio.open_swarm(
            store=url, model=CrowdModel(crowd, math.inf), system=SYSTEM, limits=limits, max_active=1
        ) as swarm:
            root = await swarm.spawn("root 0", name="root")
            tasks = [task_of(0, row) for row in range(count)]
            started = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for start in range(0, count, count // calls):
                    nursery.start_soon(root.spawn_many, tasks[start : start + count // calls])
            seconds = time.perf_counter() - started
            scope.cancel()
            await trio.sleep_forever()
    return seconds


def _measure_ids(place: Place, count: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, calls in (("one_call", 1), ("ten_calls", 10)):
        runs = [trio.run(_ids, place.fresh(), count, calls) for _ in range(_TRIES)]
        figures |= {f"{name}_seconds": sorted(runs)[len(runs) // 2], f"{name}_most_seconds": max(runs)}
    return figures


def _measure(part: str, args: argparse.Namespace) -> dict[str, Any]:
    with opened_place(args.store, args.folder) as place:
        if part == "killed":
            latency = (args.active * 60e-6, math.inf)
            figures = _killed(place, args.agents, args.roots, args.active, args.agents // 2, latency)
        elif part == "small":
            small = min(SMALL, args.agents)
            done = small * SMALL_DONE // SMALL
            figures = _killed(place, small, 1, small + 1, done, (args.second, args.second))  # the root works too
            figures["restored_seconds"] = figures.pop("waiting_seconds")
        elif part == "reopen":
            figures = measured(place, args.reopen_agents or args.agents, 0, is_clean=True)
        else:
            figures = _measure_ids(place, min(IDS, args.agents))
    return {f"{part}_{name}": value for name, value in figures.items()}


def main() -> None:
    """Run the parts that are asked for and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=100_000)
    parser.add_argument("--roots", type=int, default=10)
    parser.add_argument("--active", type=int, default=5_000)
    parser.add_argument("--reopen-agents", type=int, default=0, help="of the store that is reopened; --agents")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--second", type=float, default=1.0, help="the latency of the small swarm's model")
    parser.add_argument("--latency", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--kill-at", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, default=None, help=argparse.SUPPRESS)
    add_store_arguments(parser)
    args = parser.parse_args()
    if args.kill_at:
        _child(args)
        return
    figures: dict[str, Any] = {}
    for part in args.parts:
        figures |= _measure(part, args)
    kind = args.store if args.store in KINDS else args.store.partition(":")[0]
    sizes = {"agents": args.agents, "roots": args.roots, "active": args.active}
    print_result({"benchmark": "recovery", "store": kind, **sizes, **figures})


if __name__ == "__main__":
    main()

"""What an agent costs in CPU: in a tree of 10,000 and of 100,000, and step by step.

- The swarm benchmark with 1,000 active, in trees of two sizes, in turns, ``--rounds`` of each: CPU time of the process
  an agent, the larger tree's to the smaller's, and the spread. On SQLite that is all the CPU there is; a server's own
  is told beside it.
- Step by step: swarms of ``--step-agents`` that differ in one step, and the difference of what they cost. Each differs
  from the one before it by what its name says, so the figures hold for this script, its sizes and its batches:
  ``spawn`` spawned, durably, and never started; ``admit`` and ``settle`` a turn of one request that is answered in
  plain text, less ``spawn`` and a request; ``request`` one request more, on a reply that is a pause; ``call`` a call of
  a tool without effect; ``mail`` a message to a sibling in place of it; ``commit`` what the journal's writer spent off
  the loop, an agent with all of these.

    python -m benchmarks.agent_cost --store sqlite
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from typing import Any

import trio

import nanotrio
from benchmarks._crowd import SLICE, SYSTEM, task_of
from benchmarks._measures import print_result
from benchmarks._places import KINDS, add_store_arguments, opened_place
from nanotrio.models import Conversation, Reply, ScriptedModel, reply_calls, reply_text

STEPS = ("spawn", "text", "pause", "call", "mail")
"""The swarms; each has a step more than the one before, but ``mail``, which has another one than ``call``."""


@nanotrio.tool(effect=False)
async def note(text: str) -> str:
    """Note a text. text: what to note."""
    return f"noted: {text}"


def _script(swarm: str, agents: int, active: int) -> Any:
    """Return what a swarm's model says. The root is 1 and its children follow, so row 0 is ``w.2``."""

    def sibling(row: int) -> str:
        return f"w.{row + active + 2}" if row + active < agents else "parent"

    def script(conversation: Conversation) -> Reply:
        task = conversation.task
        steps = conversation.steps
        if not task.startswith("child"):
            return reply_text("noted")
        row = int(task.split(" ", 3)[2])
        if steps == 0 and swarm != "text":
            if swarm == "call":
                return reply_calls(("note", {"text": f"row {row} is done"}))
            if swarm == "mail":
                return reply_calls(("send_message", {"to": sibling(row), "text": f"row {row} is done"}))
            return reply_text("I look at the row first.", stop="pause")
        return reply_text(f"row {row} is of kind {row % 7}")

    return script


async def _run(url: str, swarm_kind: str, agents: int, active: int) -> dict[str, float]:
    """Run one swarm; return microseconds of CPU an agent, and those of them that were spent off the loop."""
    only_spawn = swarm_kind == "spawn"
    latency_seconds = math.inf if only_spawn else active * 200e-6  # by then the sibling is spawned
    model = ScriptedModel(_script(swarm_kind, agents, active), name="scripted/bench", latency_seconds=latency_seconds)
    limits = nanotrio.Limits(max_total=agents + 1, max_live=active + 64, max_mailbox=agents)
    cpu = loop_cpu = 0.0
    with trio.CancelScope() as scope:
        async with nanotrio.open_swarm(
            store=url, model=model, system=SYSTEM, tools=[note], limits=limits, max_active=1 if only_spawn else active
        ) as swarm:
            root = await swarm.spawn("root", name="root")
            cpu, loop_cpu = time.process_time(), time.thread_time()
            for start in range(0, agents, SLICE):
                tasks = [task_of(0, row) for row in range(start, min(agents, start + SLICE))]
                await root.spawn_many(tasks, name="w", tools=["note", "send_message"])
            if not only_spawn:
                await root.wait()
            await swarm.flush()
            cpu, loop_cpu = time.process_time() - cpu, time.thread_time() - loop_cpu
            if only_spawn:
                scope.cancel()
            await trio.lowlevel.checkpoint()
    return {"cpu_us": cpu / agents * 1e6, "off_loop_us": (cpu - loop_cpu) / agents * 1e6}


def _child(arguments: list[str]) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _spread(name: str, values: list[float]) -> dict[str, float]:
    return {f"{name}_us": statistics.median(values), f"{name}_least_us": min(values), f"{name}_most_us": max(values)}


def _sizes(args: argparse.Namespace, common: list[str]) -> dict[str, float]:
    """Return the cost of an agent in trees of both sizes, and their ratio."""
    costs: dict[int, list[float]] = {size: [] for size in (args.small, args.large)}
    servers: dict[int, list[float]] = {size: [] for size in costs}
    for _ in range(args.rounds):
        for size, runs in costs.items():
            figures = _child(["benchmarks.swarm", "--agents", str(size), "--active", str(args.active), *common])
            runs.append(figures["cpu_seconds"] / size * 1e6)
            if "server_cpu_seconds" in figures:
                servers[size].append(figures["server_cpu_seconds"] / size * 1e6)
    result: dict[str, float] = {}
    for name, size in (("small", args.small), ("large", args.large)):
        result |= _spread(name, costs[size])
        if servers[size]:
            result |= _spread(f"{name}_server", servers[size])
    result["ratio"] = result["large_us"] / result["small_us"]
    return result


def _steps(args: argparse.Namespace, common: list[str]) -> dict[str, float]:
    """Return the cost of each step."""
    costs: dict[str, list[float]] = {step: [] for step in STEPS}
    commits = []
    for _ in range(args.rounds):
        for step, runs in costs.items():
            size = ["--step-agents", str(args.step_agents), "--active", str(args.active)]
            figures = _child(["benchmarks.agent_cost", "--swarm", step, *size, *common])
            runs.append(figures["cpu_us"])
            if step == "mail":
                commits.append(figures["off_loop_us"])
    cost = {step: statistics.median(runs) for step, runs in costs.items()}
    request = cost["pause"] - cost["text"]
    return {
        "spawn_us": cost["spawn"],
        "admit_and_settle_us": cost["text"] - cost["spawn"] - request,
        "request_us": request,
        "call_us": cost["call"] - cost["pause"],
        "mail_us": cost["mail"] - cost["pause"],
        "commit_us": statistics.median(commits),
        "step_spread_us": max(max(runs) - min(runs) for runs in costs.values()),
    }


def main() -> None:
    """Run both parts and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=100_000)
    parser.add_argument("--active", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-agents", type=int, default=5_000)
    parser.add_argument("--swarm", choices=STEPS, help=argparse.SUPPRESS)
    add_store_arguments(parser)
    args = parser.parse_args()
    if args.swarm:
        with opened_place(args.store, args.folder) as place:
            print(json.dumps(trio.run(_run, place.url, args.swarm, args.step_agents, args.active)))
        return
    common = ["--store", args.store, *(["--folder", str(args.folder)] if args.folder else [])]
    kind = args.store if args.store in KINDS else args.store.partition(":")[0]
    sizes = {"small": args.small, "large": args.large, "active": args.active, "rounds": args.rounds}
    figures = {**_sizes(args, common), **_steps(args, common)}
    print_result({"benchmark": "agent_cost", "store": kind, **sizes, **figures})


if __name__ == "__main__":
    main()

"""How soon a busy swarm answers a person: a message, a look from another process, and Ctrl-C.

So many agents work without end that the loop never rests. Meanwhile a message is sent to one more agent, and is timed
until it is durable; another process reads the store, as ``nanotrio ls`` does, and tells how long that took without its
own start; at last the process gets a SIGINT, and the time is taken until the program's block is left, and until the
swarm is closed.

    python -m benchmarks.answers --active 5000 --store sqlite
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import Any

import trio

import nanotrio
from benchmarks._cancelling import take_signals
from benchmarks._crowd import SLICE
from benchmarks._measures import print_result
from benchmarks._places import add_store_arguments, opened_place
from nanotrio.models import Conversation, ScriptedModel, reply_calls, reply_text

LOOK = """
import sys, time, trio
from nanotrio.swarm.reading import read_roots
if sys.argv[1].startswith("postgres"):
    import nanotrio.stores.postgres  # a driver's import is a start too, and psycopg's takes a tenth of a second
async def look():
    started, began = time.perf_counter(), time.process_time()
    roots = await read_roots(sys.argv[1])
    print(len(roots), time.perf_counter() - started, time.process_time() - began)
trio.run(look)
"""


def _script(conversation: Conversation) -> Any:
    if conversation.task.startswith("busy"):
        return reply_calls(("list_agents", {}))
    return reply_text("here")


async def _sends(agent: nanotrio.Agent, count: int) -> list[float]:
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        await agent.send("are you there?")
        taken.append(time.perf_counter() - started)
        await trio.sleep(0.05)
    return taken


async def _looks(store: str, count: int) -> tuple[list[float], list[float]]:
    """Return the seconds that looks took, and their processor time."""
    taken, cpu = [], []
    for _ in range(count):
        done = await trio.run_process([sys.executable, "-c", LOOK, store], capture_stdout=True)
        _, seconds, cpu_seconds = map(float, done.stdout.split())
        taken.append(seconds)
        cpu.append(cpu_seconds)
    return taken, cpu


async def _run(url: str, args: argparse.Namespace) -> dict[str, float]:
    figures: dict[str, float] = {}
    limits = nanotrio.Limits(max_live=args.active + 16, max_steps=1_000_000, max_tool_calls=1_000_000)
    model = ScriptedModel(_script, latency_seconds=args.latency)
    interrupted = 0.0
    try:
        async with nanotrio.open_swarm(store=url, model=model, limits=limits, max_active=args.active + 8) as swarm:
            other = await swarm.spawn("other", name="other")
            root = await swarm.spawn("root", name="root")
            await root.wait()
            for start in range(0, args.active, SLICE):
                await root.spawn_many(["busy"] * min(SLICE, args.active - start), tools=["list_agents"])
            await trio.sleep(1)
            sends = await _sends(other, args.samples)
            looks, look_cpu = await _looks(url, max(args.samples // 4, 1))
            figures["active"] = swarm.statistics().live
            figures["send_ms"], figures["worst_send_ms"] = sorted(sends)[len(sends) // 2] * 1000, max(sends) * 1000
            figures["look_ms"], figures["worst_look_ms"] = sorted(looks)[len(looks) // 2] * 1000, max(looks) * 1000
            figures["look_cpu_ms"] = sorted(look_cpu)[len(look_cpu) // 2] * 1000
            interrupted = time.perf_counter()
            os.kill(os.getpid(), signal.SIGINT)
            try:
                await trio.sleep_forever()
            finally:
                figures["interrupt_ms"] = (time.perf_counter() - interrupted) * 1000
    except KeyboardInterrupt:
        figures["closed_ms"] = (time.perf_counter() - interrupted) * 1000
    return figures


def main() -> None:
    """Run the benchmark and print its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--active", type=int, default=5_000)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--samples", type=int, default=20)
    add_store_arguments(parser)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    take_signals()
    with opened_place(args.store, args.folder) as place:
        figures = trio.run(_run, place.url, args, restrict_keyboard_interrupt_to_checkpoints=True)
    print_result({"benchmark": "answers", "store": place.kind, "asked": args.active, "load": load, **figures})


if __name__ == "__main__":
    main()

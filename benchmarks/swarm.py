"""A swarm of simulated agents, whole: three model requests, two tool calls, mail, results, the journal.

Each child has a task of 500 bytes of its own and a system prompt of 4 KB that all share. It asks a scripted model that
really suspends three times: the first reply sends a message to the sibling ``--active`` places later, which is still
pending and reads it with its task (the last ones write to their parent); the second is a pause, as a provider's long
turn has it, and is asked on; the third hands in the result. Durability is the default one, the file system real. Then a
new process reopens the store and reads 100 random children back, whole.

    python -m benchmarks.swarm --agents 100000 --roots 10 --store sqlite --active 5000
    python -m benchmarks.swarm --agents 100000 --roots 10 --store postgres --active 5000

``--store`` is an address, or a bare word for a temporary store on a real disk; Postgres then has a server of its own.

With ``--cancel`` nobody is answered: once ``--active`` agents wait for the model and the others are pending, all is
cancelled, by ``cancel()`` of the roots, by the program's own scope, or by SIGINT, and the worst stall meanwhile shown.

What is printed: ``peak_rss_mb`` is the peak PSS of this process, a server's own apart (``server_mb``);
``disk_written_mb`` what this process and a server of ours gave the disk to write, after the server's last checkpoint;
``reopen_seconds`` from the call of ``open_swarm`` to the open swarm, ``reopen_process_seconds`` from the process's
start to 100 agents read.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from typing import Any

import trio

import nanotrio
from benchmarks._cancelling import WAYS, run_cancelled, take_signals
from benchmarks._crowd import SYSTEM, Crowd, CrowdModel, die_in_time, spawn_all
from benchmarks._measures import MemoryWatch, Stalls, peak_mb, print_result, pss_mb
from benchmarks._places import Place, add_store_arguments, opened_place
from nanotrio.messages import ToolCall
from nanotrio.stores import open_store
from nanotrio.swarm import load_sessions

_READ_BACK = 100


async def run(place: Place, crowd: Crowd, active: int, latency_seconds: float) -> dict[str, Any]:
    """Run the swarm to its end."""
    model = CrowdModel(crowd, latency_seconds, counts_results=bool(crowd.kill_at))
    stalls, memory = Stalls(), MemoryWatch()
    limits = nanotrio.Limits(max_live=active + len(crowd.counts) + 16, max_total=max(crowd.counts) + 1)
    async with (
        nanotrio.open_swarm(store=place.url, model=model, system=SYSTEM, limits=limits, max_active=active) as swarm,
        trio.open_nursery() as watchers,
    ):
        watchers.start_soon(stalls.run)
        watchers.start_soon(memory.run)
        watchers.start_soon(die_in_time, swarm, crowd)
        started, cpu, loop_cpu = time.perf_counter(), time.process_time(), time.thread_time()
        roots = await spawn_all(swarm, crowd)
        spawn_seconds = time.perf_counter() - started
        for root in roots:
            outcome = await root.wait()
            if outcome.status != "completed":
                raise SystemExit(f"a root {outcome.status}: {outcome.reason}")
        await swarm.flush()
        seconds = time.perf_counter() - started
        cpu, loop_cpu = time.process_time() - cpu, time.thread_time() - loop_cpu
        commits = swarm.statistics().commits
        watchers.cancel_scope.cancel()
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "loop_cpu_seconds": loop_cpu,
        "spawn_seconds": spawn_seconds,
        "peak_rss_mb": max(memory.peak_mb, pss_mb()),
        "commits": commits,
        **stalls.figures(),
    }


async def reopen(url: str, agents: int, roots: int) -> dict[str, float]:
    """Open a finished store, and read 100 random children back, whole."""
    ids = sorted(random.Random(7).sample(range(roots + 1, roots + 1 + agents), min(_READ_BACK, agents)))
    before = time.perf_counter()
    async with nanotrio.open_swarm(store=url, model=CrowdModel(Crowd(1, 1, 1), 0.0)) as swarm:
        seconds = time.perf_counter() - before
        find = getattr(swarm, "find", None)
        for each in ids if find is not None else ():
            await find(each)
        find_seconds = time.perf_counter() - before - seconds
        unfinished = [view.name for view in swarm.agents() if view.status not in ("idle", "closed")]
        if unfinished:
            raise SystemExit(f"{len(unfinished)} agents are unfinished: {unfinished[:5]}")
    before = time.perf_counter()
    store = await open_store(url, read_only=True)
    try:
        heads = await store.heads(agents=ids)
        if len(heads) != len(ids):
            raise SystemExit(f"{len(ids) - len(heads)} agents are missing")
        ends = [(head.last_seq, head.snapshot_seq) for head in heads]
        for session in await load_sessions(store, ids, ends):
            calls = [part for message in session.messages for part in message.parts if isinstance(part, ToolCall)]
            if session.status != "idle" or len(calls) != 2 or len(session.messages) < 6:
                raise SystemExit(f"{session.name} is not complete: {session.messages}")
    finally:
        await store.aclose()
    return {
        "reopen_seconds": seconds,
        "find_seconds": find_seconds,
        "read_back_seconds": time.perf_counter() - before,
        "reopen_mb": peak_mb(),
    }


def reopened(url: str, agents: int, roots: int) -> dict[str, float]:
    """Do so in a new process."""
    command = [sys.executable, "-m", "benchmarks.swarm", "--reopen", "--store", url]
    sizes = ["--agents", str(agents), "--roots", str(roots)]
    before = time.perf_counter()
    done = subprocess.run([*command, *sizes], stdout=subprocess.PIPE, text=True, check=True)
    seconds = time.perf_counter() - before
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**figures, "reopen_process_seconds": seconds}


def main() -> None:
    """Run the benchmark and print its result."""
    args = _arguments()
    if args.reopen:
        print(json.dumps(trio.run(reopen, args.store, args.agents, args.roots)))
        return
    crowd = Crowd(args.agents, args.roots, args.active)
    load = os.getloadavg()[0]
    with opened_place(args.store, args.folder) as place:
        what = {"agents": args.agents, "roots": args.roots, "active": args.active, "store": place.kind, "load": load}
        if args.cancel:
            take_signals()
            cancelled = trio.run(run_cancelled, place.url, crowd, args.active, args.cancel)
            print_result({"benchmark": "swarm", **what, **cancelled})
            return
        crowd.kill_at = args.kill_at
        latency_seconds = args.active * 60e-6 if args.latency is None else args.latency
        place.begin()
        figures = trio.run(run, place, crowd, args.active, latency_seconds)
        figures |= place.figures()
        figures |= reopened(place.url, args.agents, args.roots)
    seconds = figures["seconds"]
    result = {
        "benchmark": "swarm",
        **what,
        "agents_per_second": args.agents / seconds,
        "us_per_agent": seconds / args.agents * 1e6,
        "peak_waiting": crowd.peak_waiting,
        "to_parent": crowd.to_parent,
        "early": crowd.early,
        **figures,
    }
    if crowd.peak_waiting < 0.95 * crowd.active:
        sys.stderr.write(f"peak_waiting {crowd.peak_waiting} is below 0.95 of --active; raise --latency\n")
    if crowd.early:
        sys.stderr.write(f"{crowd.early} agents had work before their sibling was spawned and wrote to their parent\n")
    print_result(result)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--roots", type=int, default=1)
    parser.add_argument("--active", type=int, default=1_000)
    parser.add_argument("--latency", type=float, default=None, help="seconds before each reply; 60 us per active agent")
    parser.add_argument("--cancel", choices=WAYS, help="cancel it all while --active wait and the others are pending")
    parser.add_argument("--kill-at", type=int, default=0, help="die by SIGKILL when so many results were handed in")
    parser.add_argument("--reopen", action="store_true", help="a finished run's store, named by --store")
    add_store_arguments(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()

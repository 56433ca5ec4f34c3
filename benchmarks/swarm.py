"""A swarm of simulated agents, whole: three model requests, two tool calls, mail, results, the journal.

Each child has a task of 500 bytes of its own and a system prompt of 4 KB that all share. It asks a scripted model that
really suspends three times: the first reply sends a message to the sibling ``--active`` places later, which is still
pending and reads it with its task (the last ones write to their parent); the second is a pause, as a provider's long
turn has it, and is asked on; the third hands in the result. Durability is the default one, the file system real.

    python -m benchmarks.swarm --agents 10000 --roots 1 --store sqlite:bench.db --active 1000

A file that is named is begun anew; a swarm on a server must be a new one, and what is written there is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import trio

import nanotrio
from nanotrio.messages import ToolCall
from nanotrio.models import Conversation, Reply, ScriptedModel, reply_calls, reply_text
from nanotrio.stores import open_store, parse_url

SLICE = 1_000
"""Children a call of spawn_many."""
_SYSTEM = "You are one of many agents that work on one large job. " * 75
_PADDING = "Read the row, decide what kind of row it is, tell your sibling, and hand in what you found. " * 6


class Server:
    """The scripted model's side: counts who waits, and knows which agent is called what."""

    def __init__(self, roots: int, active: int) -> None:
        self.active = active
        self.names: list[list[str]] = [[] for _ in range(roots)]
        self.waiting = 0
        self.peak_waiting = 0
        self.to_parent = 0

    def script(self, conversation: Conversation) -> Reply:
        """Answer a root or a child by its task."""
        kind, _, rest = conversation.task.partition(" ")
        if kind == "root":
            return reply_text("noted")
        return self._child(rest, conversation.steps)

    def _child(self, rest: str, steps: int) -> Reply:
        root_text, index_text, _ = rest.split(" ", 2)
        index = int(index_text)
        if steps == 0:
            names = self.names[int(root_text)]
            later = index + self.active
            if later >= len(names):
                self.to_parent += 1
            to = names[later] if later < len(names) else "parent"
            return reply_calls(("send_message", {"to": to, "text": f"row {index} is done"}))
        if steps == 1:
            return reply_text("I have told my sibling.", stop="pause")
        return reply_calls(("submit_result", {"result": f"row {index} is of kind {index % 7}"}))


class CountedModel:
    """A scripted model that counts how many agents wait for it."""

    def __init__(self, server: Server, latency_seconds: float) -> None:
        self._server = server
        self._model = ScriptedModel(server.script, name="scripted/bench", latency_seconds=latency_seconds)
        self.name = self._model.name
        self.price = self._model.price
        self.codec = self._model.codec

    async def attempt(self, body: bytes, _emit: object, *, idle_seconds: float) -> Reply:
        """Ask the script, counted."""
        server = self._server
        server.waiting += 1
        server.peak_waiting = max(server.peak_waiting, server.waiting)
        try:
            return await self._model.attempt(body, None, idle_seconds=idle_seconds)
        finally:
            server.waiting -= 1


async def _heartbeat(stalls: list[float]) -> None:
    """Note how late a task that sleeps for 5 ms is woken, and what the loop computed between two of its turns.

    The second is CPU time of the loop's thread, so that other programs on the machine do not count.
    """
    while True:
        before, cpu = time.perf_counter(), time.thread_time()
        await trio.sleep(0.005)
        stalls[0] = max(stalls[0], time.perf_counter() - before - 0.005)
        stalls[1] = max(stalls[1], time.thread_time() - cpu)


def _pss_mb() -> float:
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(text.split("\nPss:")[1].split()[0]) / 1024


async def _watch_memory(peak: list[float]) -> None:
    while True:
        peak[0] = max(peak[0], await trio.to_thread.run_sync(_pss_mb))
        await trio.sleep(0.5)


def _written_bytes() -> int:
    os.sync()
    return int(Path("/proc/self/io").read_text().split("write_bytes: ")[1].split()[0])


async def _run(args: argparse.Namespace, server: Server) -> dict[str, float]:
    model = CountedModel(server, args.latency)
    stalls, peak = [0.0, 0.0], [0.0]
    limits = nanotrio.Limits(max_live=args.active + args.roots + 16, max_total=args.agents + 1)
    async with (
        nanotrio.open_swarm(
            store=args.store, model=model, system=_SYSTEM, limits=limits, max_active=args.active
        ) as swarm,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_heartbeat, stalls)
        nursery.start_soon(_watch_memory, peak)
        started = time.perf_counter()
        cpu = time.process_time()
        roots = [await swarm.spawn(f"root {index}", name="root") for index in range(args.roots)]
        async with trio.open_nursery() as spawners:
            for index, root in enumerate(roots):
                count = args.agents // args.roots + (index < args.agents % args.roots)
                spawners.start_soon(_spawn, root, index, count, server)
        for root in roots:
            outcome = await root.wait()
            if outcome.status != "completed":
                raise SystemExit(f"a root {outcome.status}: {outcome.reason}")
        await swarm.flush()
        seconds = time.perf_counter() - started
        cpu = time.process_time() - cpu
        commits = swarm.statistics().commits
        nursery.cancel_scope.cancel()
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_rss_mb": max(peak[0], _pss_mb()),
        "commits": commits,
        "worst_stall_ms": stalls[0] * 1000,
        "worst_stall_cpu_ms": stalls[1] * 1000,
    }


async def _spawn(root: nanotrio.Agent, index: int, count: int, server: Server) -> None:
    """Give a root its children, a slice at a time."""
    for start in range(0, count, SLICE):
        prompts = [f"child {index} {row} {_PADDING}"[:500] for row in range(start, min(count, start + SLICE))]
        children = await root.spawn_many(prompts, name="w", tools=["send_message", "submit_result"])
        server.names[index].extend([child.name for child in children])


async def _check(args: argparse.Namespace) -> float:
    """Reopen the store, and read 100 random children back, whole; return the seconds that reopening took."""
    before = time.perf_counter()
    async with nanotrio.open_swarm(store=args.store, model=CountedModel(Server(1, 1), 0.0)) as swarm:
        seconds = time.perf_counter() - before
        unfinished = [view.name for view in swarm.agents()]
        if unfinished:
            raise SystemExit(f"{len(unfinished)} agents are unfinished: {unfinished[:5]}")
    chosen = random.Random(7).sample(range(args.agents), min(100, args.agents))
    ids = sorted({args.roots + 1 + index for index in chosen} - set(range(args.roots + 1)))
    store = await open_store(args.store, read_only=True)
    try:
        heads = await store.heads(agents=ids)
        for head in heads:
            session = (await nanotrio.swarm.load_sessions(store, [head.agent], [(head.last_seq, head.snapshot_seq)]))[0]
            calls = [part for message in session.messages for part in message.parts if isinstance(part, ToolCall)]
            if session.status != "idle" or len(calls) != 2 or len(session.messages) < 6:
                raise SystemExit(f"{head.name} is not complete: {session.messages}")
        if len(heads) != len(ids):
            raise SystemExit(f"{len(ids) - len(heads)} agents are missing")
    finally:
        await store.aclose()
    return seconds


async def _size_bytes(url: str) -> int:
    """Of the main file; on a server of the log and the heads."""
    store = await open_store(url, read_only=True)
    try:
        return (await store.statistics()).size_bytes
    finally:
        await store.aclose()


def _clear(path: Path) -> None:
    _refuse_tmpfs(path.parent)
    for name in (path, *path.parent.glob(f"{path.name}[-.]*")):
        if not name.is_dir():
            name.unlink(missing_ok=True)


def _refuse_tmpfs(path: Path) -> None:
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(path)], capture_output=True, text=True, check=False
    ).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        raise SystemExit(f"{path} is a {kind}; name a store on a real file system")


def main() -> None:
    """Run the benchmark and print its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--roots", type=int, default=1)
    parser.add_argument("--store", default="sqlite:swarm-bench.db")
    parser.add_argument("--active", type=int, default=1_000)
    parser.add_argument("--latency", type=float, default=None, help="seconds before each reply; 60 us per active agent")
    args = parser.parse_args()
    if args.latency is None:
        args.latency = args.active * 60e-6
    address = parse_url(args.store)
    if address.server is None:
        _clear(address.path)
    server = Server(args.roots, args.active)
    load = os.getloadavg()[0]
    written = _written_bytes()
    figures = trio.run(_run, args, server)
    written = _written_bytes() - written
    figures["reopen_seconds"] = trio.run(_check, args)
    result = {
        "benchmark": "swarm",
        "agents": args.agents,
        "roots": args.roots,
        "active": args.active,
        "store": args.store.partition(":")[0],
        "agents_per_second": args.agents / figures["seconds"],
        "us_per_agent": figures["seconds"] / args.agents * 1e6,
        "peak_waiting": server.peak_waiting,
        "to_parent": server.to_parent,
        "store_mb": trio.run(_size_bytes, args.store) / 1e6,
        "disk_written_mb": written / 1e6,
        "load": load,
        **figures,
    }
    if server.peak_waiting < 0.95 * min(args.active, args.agents):
        sys.stderr.write(f"peak_waiting {server.peak_waiting} is below 0.95 of --active; raise --latency\n")
    print(json.dumps({key: round(value, 4) if isinstance(value, float) else value for key, value in result.items()}))


if __name__ == "__main__":
    main()

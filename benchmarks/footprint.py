"""What an agent takes: memory, resident and on the heap, and the time to start and to wake it.

Each subject is measured in a process of its own: (PSS at ``--count`` - PSS at 0) / ``--count``, and again, with fewer
and with every allocation of Python traced, the bytes on Python's heap. SQLite's own are in the first alone.

- ``waiting``: a child that waits for a scripted model, with a history of eight messages. The reply to come is one for
  all, so that what is measured is the agent's.
- ``evicted``: the same once its transcript has left memory.
- ``fresh``: a child that waits for the reply to its first request; its start is timed: spawned, durably, with a task of
  500 bytes, admitted, and its request made.
- ``idle``: a child that has ended its turn and waits for mail, in a swarm as it is opened by default; then each gets a
  mail and has a turn on it, which is its waking.
- ``kept``: the same with all of them kept in memory, where the swarm's limits can say so.
- ``coroutine``, ``trio_task``, ``goroutine``: what stands below an agent, alone, parked; ``goroutine`` where ``go`` is
  on PATH. Such a one is started, parked and woken without a store, a session or a model, so its times are no agent's.

    python -m benchmarks.footprint --count 20000
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Coroutine, Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec
import trio

import nanotrio
from benchmarks._bare import BARE, Meter, run_bare
from benchmarks._crowd import SLICE, SYSTEM, task_of
from benchmarks._measures import print_result
from benchmarks._places import opened_place
from nanotrio.messages import Usage
from nanotrio.models import Conversation, Reply, ScriptedModel, reply_calls, reply_text, split_request

AGENTS = ("waiting", "evicted", "fresh", "idle", "kept")
HISTORY = 4
"""Replies before the request that is not answered: with three results of calls and the task they are eight messages."""
_LONG_SECONDS = 1e9
_LAST = reply_text("The row is of kind 3.", usage=Usage(1_400, 6))
_WAKERS = 256
_MAX_SECONDS = 600.0


class _Model:
    """Answers at once, up to a step; the request after that waits for a scripted model's long latency."""

    def __init__(self, last_step: int) -> None:
        self._last_step = last_step
        self._quick = ScriptedModel(self._script, name="scripted/bench")
        self._slow = ScriptedModel(lambda _: _LAST, name="scripted/bench", latency_seconds=_LONG_SECONDS)
        self.name, self.price, self.codec = self._quick.name, self._quick.price, self._quick.codec

    def attempt(self, body: bytes, emit: Any, *, idle_seconds: float) -> Coroutine[Any, Any, Reply]:
        """Ask one of the two; no frame of our own stands in a waiting agent."""
        conversation = Conversation(*split_request(body))
        if conversation.task.startswith("child") and conversation.steps == self._last_step:
            return self._slow.attempt(body, emit, idle_seconds=idle_seconds)
        return self._quick.attempt(body, emit, idle_seconds=idle_seconds)

    @property
    def waiting(self) -> int:
        """How many children wait for the reply that does not come."""
        return self._slow.waiting

    def _script(self, conversation: Conversation) -> Reply:
        if self._last_step == HISTORY and conversation.task.startswith("child"):
            if conversation.steps == 0:
                return reply_text("I look at the row first.", stop="pause")
            return reply_calls(("note", {"text": f"step {conversation.steps} of the row is looked at"}))
        return _LAST


@nanotrio.tool(effect=False)
async def note(text: str) -> str:
    """Note a text. text: what to note."""
    return f"noted, with {len(text)} characters in it; go on with the next step"


async def _spawn(root: nanotrio.Agent, count: int) -> list[range]:
    """Spawn children; return their ids, in a form that adds nothing to what each takes."""
    ids = []
    for start in range(0, count, SLICE):
        tasks = [task_of(0, row) for row in range(start, min(count, start + SLICE))]
        children = await root.spawn_many(tasks, name="w", tools=["note", "submit_result"])
        ids.append(range(children[0].id, children[-1].id + 1))
    return ids


async def _measure(url: str, subject: str, count: int, meter: Meter) -> dict[str, Any]:
    ends = subject in ("idle", "kept")
    last_step = -1 if ends else 0 if subject == "fresh" else HISTORY
    model = _Model(last_step)
    limits = nanotrio.Limits(max_live=count + 64, max_total=count + 8_000)
    if subject == "kept" and "max_idle" in limits.__struct_fields__:
        limits = msgspec.structs.replace(limits, max_idle=count + 64)
    # Those that are idle have worked a thousand at a time, and the thousand that stay in memory are there before.
    active, before = (1_000, 4_000) if subject == "idle" else (count + 64, 32)
    figures: dict[str, Any] = {}
    with trio.CancelScope() as scope:
        async with nanotrio.open_swarm(
            store=url, model=model, tools=[note], system=SYSTEM, limits=limits, max_active=active
        ) as swarm:
            root = await swarm.spawn("root", name="root")
            await _spawn(root, before)  # what is made once is there
            await _at_rest(swarm, model, before, ends=ends)
            await swarm.flush()
            await trio.sleep(0.5)
            meter.look()
            ids = await _spawn(root, count)
            await _at_rest(swarm, model, count + before, ends=ends)
            times = meter.times("start", count)
            await swarm.flush()
            await trio.sleep(0.5)
            if not subject.startswith("evicted") or await _evict(swarm, count):
                figures = {"count": count, **times, **meter.bytes_each(count)}
            if subject == "idle":
                meter.look()
                await _wake(swarm, model, ids)
                figures |= meter.times("wake", count)
            scope.cancel()
            await trio.lowlevel.checkpoint()
    return figures


async def _at_rest(swarm: nanotrio.Swarm, model: _Model, count: int, *, ends: bool) -> None:
    """Wait until ``count`` children wait for the model, or have ended and nobody works."""
    with trio.fail_after(_MAX_SECONDS):
        while not _is_quiet(swarm) if ends else model.waiting < count:  # noqa: ASYNC110 - counts have no event
            await trio.sleep(0.01)


def _is_quiet(swarm: nanotrio.Swarm) -> bool:
    statistics = swarm.statistics()
    return not (statistics.active or statistics.pending or statistics.live)


async def _evict(swarm: nanotrio.Swarm, count: int) -> bool:
    """Have all transcripts leave memory, as those do that have waited long; return whether this version can."""
    transcripts = getattr(swarm._runtime, "transcripts", None)  # noqa: SLF001 - nobody else need ask for it
    if transcripts is None:
        return False
    await transcripts.look()  # who has no record until the next look has waited
    return bool(await transcripts.look() >= count)


async def _wake(swarm: nanotrio.Swarm, model: _Model, ids: Sequence[range]) -> None:
    """Send each agent a mail, and wait until all have had a turn on it."""

    async def send(some: Iterable[int]) -> None:
        for each in some:
            agent = await find(each) if find is not None else swarm.agent(each)
            await agent.send("one more row for you")

    find = getattr(swarm, "find", None)
    async with trio.open_nursery() as nursery:
        for start in range(_WAKERS):
            nursery.start_soon(send, islice(chain.from_iterable(ids), start, None, _WAKERS))
    await _at_rest(swarm, model, 0, ends=True)
    await swarm.flush()


def _subject(args: argparse.Namespace) -> dict[str, Any]:
    """Measure one subject in this process."""
    if args.subject in BARE:
        return run_bare(args.subject, args.count, is_heap=args.heap)
    with opened_place("sqlite", args.folder) as place:
        return dict(trio.run(_measure, place.url, args.subject, args.count, Meter(is_heap=args.heap)))


def measured(subject: str, count: int, heap_count: int, folder: Path | None) -> dict[str, Any] | None:
    """Measure one subject in processes of its own; None where this machine or version has no such thing."""
    command = [sys.executable, "-m", "benchmarks.footprint", "--subject", subject]
    command += ["--folder", str(folder)] if folder else []
    figures: dict[str, Any] = {}
    for more in (["--heap", "--count", str(heap_count)], ["--count", str(count)]):
        done = subprocess.run([*command, *more], stdout=subprocess.PIPE, text=True, check=True)
        figures |= json.loads(done.stdout.splitlines()[-1])
    return {name: round(value, 2) for name, value in figures.items()} or None


def main() -> None:
    """Measure the subjects and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--heap-count", type=int, default=0, help="with allocations traced; a quarter of --count")
    parser.add_argument(
        "--bare-count", type=int, default=0, help="of coroutines, tasks and goroutines; 5 times --count"
    )
    parser.add_argument("--subjects", nargs="+", choices=(*AGENTS, *BARE), default=(*AGENTS, *BARE))
    parser.add_argument("--folder", type=Path, help="for the store; a temporary one otherwise")
    parser.add_argument("--subject", choices=(*AGENTS, *BARE), help=argparse.SUPPRESS)
    parser.add_argument("--heap", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.subject:
        print(json.dumps(_subject(args)))
        return
    bare = args.bare_count or args.count * 5
    figures: dict[str, Any] = {}
    for subject in args.subjects:
        count = bare if subject in BARE else args.count
        figures[subject] = measured(subject, count, args.heap_count or count // 4, args.folder)
        print(f"{subject}: {figures[subject]}", flush=True)
    idle = figures.get("idle") or {}
    million = {"wake_million_seconds": idle["wake_us"]} if "wake_us" in idle else {}
    print_result({"benchmark": "footprint", "count": args.count, **figures, **million})


if __name__ == "__main__":
    main()

"""What opening a large store costs: finished agents must cost nothing, unfinished ones little.

A generator writes a store through the journal: roots, below each of them finished children (spawned, one turn with a
prompt, a reply and a result, reported and settled), and unfinished ones in the middle of their turn. It ends as by a
SIGKILL, with heads that are behind the log. Then a new process opens the store, reads 100 random agents, and tells how
long that took and what memory it had at its peak; then it reads the heads of all.

With ``--clean`` the generator closes its store as a swarm does, so that nothing has to be replayed.

    python -m benchmarks.reopen --finished 1000000 --unfinished 5000 --store sqlite
    python -m benchmarks.reopen --finished 1000000 --unfinished 5000 --store postgres
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import partial
from hashlib import blake2b
from typing import Any

import cbor2
import msgspec
import trio

import nanotrio
from benchmarks._crowd import SYSTEM
from benchmarks._measures import peak_mb, print_result, pss_mb
from benchmarks._places import Place, add_store_arguments, opened_place
from nanotrio.fact_form import encode_facts
from nanotrio.journal import Journal
from nanotrio.messages import Text, Usage
from nanotrio.models import ScriptedModel, reply_text
from nanotrio.records import (
    ChildEnded,
    Content,
    Fact,
    Head,
    MailArrived,
    Profile,
    Record,
    Replied,
    Settled,
    Spawned,
    TurnEnded,
    TurnStarted,
)
from nanotrio.session import Session
from nanotrio.stores import Store, open_store, this_process
from nanotrio.swarm import load_sessions

CHILDREN = 1_000
"""Below each root."""
FINALS = 200_000
"""Heads of finished agents that the generator keeps."""
_USAGE = Usage(900, 40, 0, 0)


class Generator:
    """Writes agents as a swarm does, in groups, with live heads."""

    def __init__(self) -> None:
        self.journal: Journal
        self.sessions: dict[int, Session] = {}
        """Of agents whose heads were not written yet, or which go on."""
        self.done: set[int] = set()
        self.finals: dict[int, Head] = {}
        self.at_us = time.time_ns() // 1_000
        self.agent = 0
        self.profile = 0

    def heads(self, agents: Iterable[int]) -> list[Head]:
        """Return live heads; of who is done the head is kept for a while, since a later round may ask once more."""
        heads = []
        for agent in agents:
            head = self.finals.get(agent)
            if head is None:
                head = self.sessions[agent].head("scripted/bench")
                if agent in self.done:
                    del self.sessions[agent]
                    self.done.discard(agent)
                    self.finals[agent] = head
            heads.append(head)
        while len(self.finals) > FINALS:
            del self.finals[next(iter(self.finals))]
        return heads

    def content(self, body: bytes) -> int:
        """Append a content record."""
        seq = self.journal.next_seq
        fact = Content(blake2b(body, digest_size=16).digest(), body)
        self.journal.append_nowait([Record(seq, 0, 0, self.at_us, encode_facts([fact]))])
        return seq

    def append(self, *rows: tuple[Session, tuple[Fact, ...]]) -> None:
        """Append a group of one record a session."""
        self.at_us += 50
        seq = self.journal.next_seq
        group = []
        for session, facts in rows:
            prev = session.last_seq
            session.begin_record(seq, self.at_us)
            session.apply_facts(facts)
            group.append(Record(seq, prev, session.agent, self.at_us, encode_facts(facts)))
            seq += 1
        self.journal.append_nowait(group)

    def spawn(self, parent: Session | None) -> Session:
        """Start an agent with a task."""
        self.agent += 1
        session = self.sessions[self.agent] = Session(self.agent)
        root = parent.agent if parent else self.agent
        uuid = "" if parent else f"00000000-0000-4000-8000-{self.agent:012x}"
        spawned = Spawned(
            parent.agent if parent else 0, root, 1 if parent else 0, f"w.{self.agent}", self.profile, uuid
        )
        task = MailArrived("prompt", spawned.parent, f"child {self.agent} " + "Read the row and say what it is. " * 8)
        self.append((session, (spawned, task)))
        return session

    def finish(self, session: Session, parent: Session | None) -> None:
        """Let an agent answer, and report it."""
        reply = Replied("scripted/bench", (Text(f"row {session.agent} is of kind 3"),), "end", _USAGE, 1_000)
        self.append((session, (TurnStarted(1, session.last_seq), reply)))
        text = f"row {session.agent} is of kind 3"
        ended = (TurnEnded("completed", "", "", text), Settled())
        if parent is None:
            self.append((session, ended))
        else:
            report = ChildEnded(session.agent, session.name, 1, "completed", "", text, "", _USAGE, 1_000, is_told=True)
            self.append((session, ended), (parent, (report,)))
        self.done.add(session.agent)


async def _write(url: str, finished: int, unfinished: int, *, is_clean: bool) -> None:
    generator = Generator()
    store = await open_store(url)
    try:
        tenure = await store.acquire(this_process())
        generator.journal = journal = Journal(store, tenure, generator.heads)
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            system = generator.content(SYSTEM.encode())
            profile = Profile("scripted/bench", system, ("submit_result",), nanotrio.Limits(), "/tmp")
            generator.profile = generator.content(cbor2.dumps(msgspec.to_builtins(profile)))
            every = max(1, (finished + unfinished) // max(1, unfinished))
            root: Session | None = None
            left = (finished, unfinished)
            for index in range(finished + unfinished):
                if root is None or index % CHILDREN == 0:
                    if root is not None:
                        generator.finish(root, None)
                    root = generator.spawn(None)
                    left = (left[0] - 1, left[1])
                stays = left[1] > 0 and (index % every == 0 or left[0] <= 0)
                if not stays and left[0] <= 0:
                    break
                left = (left[0], left[1] - 1) if stays else (left[0] - 1, left[1])
                child = generator.spawn(root)
                if stays:
                    generator.append((child, (TurnStarted(1, child.last_seq),)))
                else:
                    generator.finish(child, root)
                if journal.is_full:
                    await journal.room()
                elif index % 256 == 0:
                    await trio.lowlevel.checkpoint()
            if root is not None:
                generator.finish(root, None)
            await journal.durable(journal.next_seq - 1)
            if not is_clean:
                os._exit(0)  # as a SIGKILL does: the last heads are behind, and the owner is dead
            await journal.flush()
            nursery.cancel_scope.cancel()
    finally:
        await store.aclose()


async def _reopen(url: str, process_started: float) -> dict[str, Any]:
    """Open the store as a program does after a restart; return seconds, and megabytes at the peak."""
    store = await open_store(url, read_only=True)
    statistics = await store.statistics()
    await store.aclose()
    before_mb = pss_mb()
    model = ScriptedModel(lambda _: reply_text("x"), name="scripted/bench")
    started = time.perf_counter()
    async with nanotrio.open_swarm(store=url, model=model) as swarm:
        seconds = time.perf_counter() - started
        unfinished = len(swarm.agents())
    opened_mb = peak_mb()
    store = await open_store(url, read_only=True)
    try:
        read_seconds = await _read_some(store)
        process_seconds = time.monotonic() - process_started
        read_mb = peak_mb()
        started = time.perf_counter()
        count, after = 0, 0
        while heads := await store.heads(after=after):
            after = heads[-1].agent
            count += len(heads)
        all_seconds = time.perf_counter() - started
    finally:
        await store.aclose()
    return {
        "reopen_seconds": seconds,
        "read_100_seconds": read_seconds,
        "process_seconds": process_seconds,
        "peak_mb": max(opened_mb, read_mb),
        "before_mb": before_mb,
        "replayed_records": statistics.records - statistics.heads_seq,
        "unfinished": unfinished,
        "heads": count,
        "all_heads_seconds": all_seconds,
    }


async def _read_some(store: Store) -> float:
    """Read 100 random agents, whole; return the seconds."""
    started = time.perf_counter()
    last = (await store.statistics()).heads
    ids = sorted(random.Random(7).sample(range(1, last + 1), min(100, last)))
    heads = await store.heads(agents=ids)
    sessions = await load_sessions(store, ids, [(head.last_seq, head.snapshot_seq) for head in heads])
    if [session.agent for session in sessions if session.task] != ids:
        raise SystemExit("some agents cannot be read")
    return time.perf_counter() - started


def measured(place: Place, finished: int, unfinished: int, *, is_clean: bool = False) -> dict[str, Any]:
    """Write a store, and reopen it in a process of its own."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.reopen", "--store", place.url]
    sizes = ["--finished", str(finished), "--unfinished", str(unfinished), *(["--clean"] if is_clean else [])]
    subprocess.run([*command, *sizes, "--write-only"], check=True)
    write_seconds = time.perf_counter() - started
    begin = ["--reopen-only", str(time.monotonic())]
    done = subprocess.run([*command, *begin], stdout=subprocess.PIPE, text=True, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    if figures["unfinished"] != unfinished or figures["heads"] != finished + unfinished:
        raise SystemExit(f"the store holds something else than was written: {figures}")
    return {"write_seconds": write_seconds, "store_mb": place.size_mb(), **figures}


def main() -> None:
    """Run the benchmark and print its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--finished", type=int, default=20_000)
    parser.add_argument("--unfinished", type=int, default=200)
    parser.add_argument("--clean", action="store_true", help="the writer closes the store")
    parser.add_argument("--write-only", action="store_true", help="and end, as by a SIGKILL unless --clean")
    parser.add_argument("--reopen-only", type=float, metavar="STARTED", help="the store is there")
    add_store_arguments(parser)
    args = parser.parse_args()
    if args.write_only:
        trio.run(partial(_write, args.store, args.finished, args.unfinished, is_clean=args.clean))
    elif args.reopen_only is not None:
        print(json.dumps(trio.run(_reopen, args.store, args.reopen_only)))
    else:
        with opened_place(args.store, args.folder) as place:
            figures = measured(place, args.finished, args.unfinished, is_clean=args.clean)
        print_result({"benchmark": "reopen", "store": place.kind, "finished": args.finished, **figures})


if __name__ == "__main__":
    main()

"""Random trees, run to their end, killed anywhere, and taken up again: what must hold whatever chance does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

import nanotrio
from nanotrio.errors import ModelError
from nanotrio.fact_form import decode_facts
from nanotrio.limits import Limits
from nanotrio.messages import ToolCall, ToolResult
from nanotrio.models.scripted import Conversation, Late
from nanotrio.records import MailArrived, MailRead, MailReturned, MailTaken, Spawned, TurnStarted
from nanotrio.session import Session
from nanotrio.testing import UnreliableStore
from tests import counts
from tests.swarm.worlds import (
    DEAR,
    check_all_is_given_back,
    check_store_holds_the_live_state,
    opened,
    reply_calls,
    reply_text,
    taped_store,
)

SEEDS = range(max(6, counts.FAULTS // 3))
LIMITS = Limits(max_depth=3, max_total=60, max_steps=12, turn_seconds=60, tool_seconds=5, max_reap_seconds=1)


@nanotrio.tool
async def work(seconds: float) -> str:
    """Work for a while."""
    await trio.sleep(seconds)
    return "worked"


@nanotrio.tool(effect=False)
async def breaks() -> str:
    """Break."""
    raise BaseExceptionGroup("broken", [ValueError("x"), SystemExit(3)])


def script(seed: int) -> Any:
    """Return a model that chooses by a hash of the seed, the task and the step."""

    def answer(c: Conversation) -> Any:
        digest = blake2b(f"{seed} {c.task} {c.steps}".encode(), digest_size=8).digest()
        chance = random.Random(int.from_bytes(digest, "big"))
        depth = len(c.task.split())
        wait = chance.choice([0.0, 0.0, 0.001, 0.1, 3.0])
        if c.steps and chance.random() < 0.1:
            kind = chance.choice(["transient", "rate_limited", "transient", "rejected"])
            return ModelError("no", kind=kind, retry_after_seconds=chance.choice([None, 2.0]))
        if c.steps > 5 or chance.random() < (0.02 if depth == 1 and c.steps < 3 else 0.25):
            return Late(reply_text(f"end {c.task}"), wait)
        child = {"prompt": f"{c.task} {c.steps}", "name": "kid", "budget_usd": chance.choice([None, 0.02, 0.05])}
        calls: list[tuple[str, Any]] = [
            ("spawn_agent", child),
            ("spawn_agent", {**child, "background": chance.random() < 0.5, "timeout_seconds": 4}),
            ("spawn_agents", {"agents": [child, child]}),
            ("send_message", {"to": f"kid.{chance.randint(2, 30)}", "text": f"from {c.task}"}),
            ("send_message", {"to": "parent", "text": f"up {c.task}"}),
            ("wait_agents", {"mode": chance.choice(["any", "all"]), "timeout_seconds": 5}),
            ("wait_agents", {"ids": [f"kid.{chance.randint(2, 30)}"]}),
            ("wait_agents", {"ids": [f"kid.{chance.randint(2, 30)}" for _ in range(2)], "mode": "any"}),
            ("cancel_agent", {"id": f"kid.{chance.randint(2, 30)}"}),
            ("work", {"seconds": chance.choice([0.0, 0.5, 9.0])}),
            ("breaks", {}),
            ("list_agents", {}),
            ("submit_result", {"result": depth}) if chance.random() < 0.3 else ("list_agents", {}),
            ("unheard_of", "{"),
        ]
        picked = [chance.choice(calls) for _ in range(chance.randint(1, 3))]
        return Late(reply_calls(*picked, text=chance.choice(["", "so"])), wait)

    return answer


def check_history(session: Session) -> None:
    """Each call has one result, in order, in the message that follows."""
    for index, message in enumerate(session.messages):
        asked = [part.id for part in message.parts if isinstance(part, ToolCall)]
        if asked:
            answered = [part.call_id for part in session.messages[index + 1].parts if isinstance(part, ToolResult)]
            assert answered == asked


def check_mail(store: UnreliableStore) -> None:
    """Every mail is consumed by one turn or returned, but for warnings that wait for one; no agent was made twice."""
    unread: dict[int, dict[int, str]] = {}
    spawned: Counter[int] = Counter()
    for batch in store.batches:
        for record in batch.records:
            box = unread.setdefault(record.agent, {})
            for fact in decode_facts(record.facts):
                match fact:
                    case Spawned():
                        spawned[record.agent] += 1
                    case MailArrived(kind):
                        box[record.seq] = kind
                    case TurnStarted(_, read_seq) | MailReturned(read_seq):
                        for seq in [seq for seq in box if seq <= read_seq]:
                            del box[seq]
                    case MailRead(read_seq):
                        for seq in [
                            seq for seq, kind in box.items() if seq <= read_seq and kind not in {"prompt", "text"}
                        ]:
                            del box[seq]
                    case MailTaken():
                        pass
                    case _:
                        pass
    assert not [kind for box in unread.values() for kind in box.values() if kind != "warning"]
    assert set(spawned.values()) == {1}


def check_nobody_waits_for_ever(runtime: Any) -> None:
    """Take away whoever waits for nobody unfinished, again and again, until nobody is left."""
    left = {node.id: node for node in runtime.nodes.values() if node.is_counted}
    while left:
        held = {node.parent.id for node in left.values() if node.parent is not None}
        for wait in {wait for waits in runtime.waits.by_agent.values() for wait in waits}:
            if (all if wait.mode == "any" else any)(target in left for target in wait.targets):
                held.add(wait.agent)
        free = left.keys() - held
        assert free, f"a ring: {[node.name for node in left.values()]}"
        for agent in free:
            del left[agent]


async def check_counts(swarm: nanotrio.Swarm) -> None:
    """Every head in the store says how many agents were spawned below it."""
    heads = {head.agent: head for head in await swarm._runtime.store.heads()}
    children = Counter(head.parent for head in heads.values())
    descendants = Counter(head.root for head in heads.values() if head.parent)
    for agent, head in heads.items():
        assert (head.children, head.descendants) == (children[agent], descendants[agent]), head


async def settled(swarm: nanotrio.Swarm) -> None:
    with trio.fail_after(3_000):
        while swarm._runtime.unfinished_roots:  # noqa: ASYNC110 - the virtual clock jumps, so nothing is polled
            await trio.sleep(1)
            check_nobody_waits_for_ever(swarm._runtime)
        await trio.sleep(20)


async def finish(swarm: nanotrio.Swarm, store: UnreliableStore | None) -> None:
    runtime = swarm._runtime
    await settled(swarm)
    check_all_is_given_back(swarm)
    await check_store_holds_the_live_state(swarm)
    await check_counts(swarm)
    assert not runtime.cold, "all heads are written"
    for node in runtime.nodes.values():
        check_history(node.session)
        ended = node.session.ended
        assert ended is not None
        assert ended.fact.reason or ended.fact.status == "completed"
        assert node.ledger.cap is None or node.ledger.settled <= node.ledger.cap
        assert "nanotrio broke" not in ended.fact.reason, ended.fact.reason
    if store is not None:
        check_mail(store)


async def evict_by_chance(swarm: nanotrio.Swarm, chance: random.Random) -> None:
    """Evict whoever can be, again and again, as if everybody waited long."""
    while True:
        await trio.sleep(chance.choice([0.0, 0.002, 0.05, 0.7, 2.0]))
        for node in list(swarm._runtime.nodes.values()):
            if chance.random() < 0.7:
                swarm._runtime.transcripts.evict(node)


class OpenGroups(trio.abc.Instrument):
    """Finds who awaits something while what it recorded is not appended: a head might be committed before its record.

    Attributes:
        runtime: of the swarm that is looked at.
        found: where each was.
    """

    def __init__(self) -> None:
        self.runtime: Any = None
        self.found: set[str] = set()
        self._was_open = False

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._was_open = self._is_open()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if not self._was_open and self._is_open() and self.runtime.journal.failed is None:
            frames = [f"{frame.f_code.co_name}:{line}" for frame, line in task.iter_await_frames()]
            self.found.add(f"{task.name}: {' > '.join(frames)}")

    def _is_open(self) -> bool:
        return self.runtime is not None and bool(self.runtime.burst._rows)


def play(function: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Run it on the virtual clock, and see that everything that was recorded is appended before anything is awaited."""
    groups = OpenGroups()
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(function, groups, *args, clock=clock, instruments=[groups])
    assert not groups.found


ROOMY = 1_000
TIGHT = 2
"""Agents with nothing to do, and pending ones, that stay in memory."""


@asynccontextmanager
async def simulated(groups: OpenGroups, seed: int, store: Any, resident: int) -> AsyncIterator[nanotrio.Swarm]:
    limits = msgspec.structs.replace(LIMITS, max_idle=resident)
    options: dict[str, Any] = {"tools": [work, breaks], "limits": limits, "price": DEAR}
    max_active = 8 if resident == ROOMY else 3
    async with opened(script(seed), store=store, max_active=max_active, **options) as swarm:
        swarm._runtime.slots.max_resident = resident
        groups.runtime = swarm._runtime
        yield swarm


async def run(groups: OpenGroups, seed: int, kills: int, resident: int, evicts: bool = False) -> None:
    chance = random.Random(seed)
    store = taped_store()
    async with simulated(groups, seed, store, resident) as swarm:
        async with trio.open_nursery() as nursery:
            if evicts:
                nursery.start_soon(evict_by_chance, swarm, random.Random(seed))
            for number in range(2):
                await swarm.spawn(f"root{number}", budget_usd=0.4)
            await settled(swarm)
            nursery.cancel_scope.cancel()
        await finish(swarm, store)
        last = swarm._runtime.next_agent
        ids = {agent: (await swarm.find(agent)).name for agent in range(1, last)}
    spent: dict[int, int] = {}
    for _ in range(kills):
        store = await store.as_of(chance.randint(2, len(store.batches)))
        async with simulated(groups, seed, store, resident) as swarm:
            async with trio.open_nursery() as nursery:
                if evicts:
                    nursery.start_soon(evict_by_chance, swarm, random.Random(seed))
                for agent in await swarm.resume_all():
                    assert ids[agent.id] == agent.name
                await settled(swarm)
                nursery.cancel_scope.cancel()
            await finish(swarm, store)
            made = [agent for agent in (1, 2) if agent < swarm._runtime.next_agent]
            roots = [(await swarm.resume(agent)).view() for agent in made]
            spent = {view.id: view.spent_nano + view.uncertain_nano for view in roots}
    assert all(amount <= 400_000_000 for amount in spent.values())


@pytest.mark.parametrize("resident", [ROOMY, TIGHT])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_tree_ends_with_everything_accounted_for(seed: int, resident: int) -> None:
    play(run, seed, 0, resident)


@pytest.mark.parametrize("resident", [ROOMY, TIGHT])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_tree_is_killed_three_times_and_finishes(seed: int, resident: int) -> None:
    play(run, seed + 1_000, 3, resident)


@pytest.mark.parametrize("resident", [ROOMY, TIGHT])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_tree_whose_transcripts_leave_memory_all_the_time_ends_the_same(seed: int, resident: int) -> None:
    play(run, seed, 1, resident, True)


async def run_cancelled(groups: OpenGroups, seed: int, resident: int) -> None:
    chance = random.Random(seed)
    store = taped_store()
    for opening in range(4):
        swarm = None
        with trio.move_on_after(chance.choice([0.0, 0.001, 0.05, 1.0, 4.0]) if opening else 0.01) as scope:
            async with simulated(groups, seed, store, resident) as swarm:
                if not opening:
                    await swarm.spawn("root0", budget_usd=0.4)
                else:
                    await swarm.resume_all()
                await trio.sleep_forever()
        assert scope.cancelled_caught
        if swarm is not None:
            assert swarm._runtime.live == 0
            assert swarm._runtime.slots.active == 0
    async with simulated(groups, seed, store, resident) as swarm:
        assert {view.status for view in swarm.agents()} <= {"interrupted", "closed"}
        await swarm.resume_all()
        await finish(swarm, store)


@pytest.mark.parametrize("resident", [ROOMY, TIGHT])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_tree_whose_block_is_cancelled_again_and_again_finishes(seed: int, resident: int) -> None:
    play(run_cancelled, seed, resident)


async def run_on_disk(groups: OpenGroups, seed: int, url: str, resident: int) -> None:
    with trio.CancelScope() as scope:
        async with simulated(groups, seed, url, resident) as swarm:
            await swarm.spawn("root0", budget_usd=0.4)
            scope.deadline = trio.current_time() + 0.3
            await trio.sleep_forever()
    async with simulated(groups, seed, url, resident) as swarm:
        await swarm.resume_all()
        await finish(swarm, None)
        await swarm.resume(1)
        last = swarm._runtime.next_agent
        live = {agent: (await swarm.find(agent)).view() for agent in range(1, last)}
    stored = {view.id: view for view in await nanotrio.read_store(url)}
    assert {view.status for view in stored.values()} <= {"idle", "closed"}
    assert {agent: (view.name, view.outcome, view.spent_nano) for agent, view in stored.items()} == {
        agent: (view.name, view.outcome, view.spent_nano) for agent, view in live.items()
    }


@pytest.mark.parametrize("resident", [ROOMY, TIGHT])
@pytest.mark.parametrize("seed", range(4))
def test_a_random_tree_on_disk_is_what_a_reader_finds_there(seed: int, resident: int, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'swarm.db'}"
    play(run_on_disk, seed, url, resident)

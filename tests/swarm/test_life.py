"""Tasks, slots and memory of agents: held while there is something to do, and given back while there is not."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from nanotrio.errors import StoreError, UsageError
from nanotrio.limits import Limits
from nanotrio.models.scripted import Conversation
from nanotrio.stores import MemoryStore
from nanotrio.swarm.ceiling import available_bytes, resident_bytes
from nanotrio.swarm.events import MemoryShort
from nanotrio.testing import UnreliableStore
from tests.swarm.worlds import (
    by_task,
    check_all_is_given_back,
    check_store_holds_the_live_state,
    late,
    opened,
    reply_calls,
    reply_text,
    taped_store,
)

pytestmark = pytest.mark.usefixtures("autojump_clock")


def _spawning(prompt: str, count: int) -> Any:
    """Return a script that spawns ``count`` agents in its first step and ends its turn in the next."""

    def answer(c: Conversation) -> Any:
        agents = [{"prompt": f"{prompt} {number}", "name": "kid"} for number in range(count)]
        return reply_text(c.last_text[:40]) if c.steps else reply_calls(("spawn_agents", {"agents": agents}))

    return answer


async def test_agents_that_were_done_are_counted_by_outcome_also_those_that_left_memory() -> None:
    def answer(c: Conversation) -> Any:
        return reply_text("", stop="refusal") if "3" in c.task else reply_text("done")

    async with opened(answer, limits=Limits(max_idle=0)) as swarm:
        root = await swarm.spawn("root")
        children = await root.spawn_many([f"child {number}" for number in range(10)])
        await root.wait()
        await children[0].send("more")
        await children[0].wait()
        await children[1].cancel()
        await root.wait()
        outcomes = swarm.statistics().outcomes
        assert outcomes["failed"] == 1
        assert outcomes["completed"] >= 9 + 1 + 1, "one child twice, and the root at least once"
        assert set(outcomes) == {"completed", "failed"}, "to cancel one that is done is no other end"


async def test_a_leaf_holds_no_nursery_and_a_settling_parent_no_task_and_no_slot() -> None:
    async with opened(by_task(root=_spawning("kid", 2), kid=[late(5)])) as swarm:
        agent = await swarm.spawn("root go")
        await trio.sleep(1)
        root, *kids = swarm._runtime.nodes.values()
        assert (root.session.status, root.has_task, root.has_slot, root.scope) == ("settling", False, False, None)
        assert agent.view().waiting_for == "its children"
        assert root.nursery is not None
        assert [(kid.nursery, kid.has_task, kid.has_slot) for kid in kids] == [(None, True, True)] * 2
        assert swarm.statistics().live == 3  # the root has its bare task
        await agent.wait()
        assert root.nursery is None
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


async def test_bare_tasks_are_started_from_the_root_down_for_a_grandchild_that_wakes() -> None:
    async with opened(by_task(root=_spawning("mid x", 1), mid=_spawning("leaf", 1), leaf=[late(5)])) as swarm:
        agent = await swarm.spawn("root go")
        await agent.wait()
        root, mid, leaf = swarm._runtime.nodes.values()
        assert swarm.statistics().live == 0
        await swarm.agent(leaf.id).send("once more")
        await trio.sleep(1)
        assert [node.is_live for node in (root, mid, leaf)] == [True, True, True]
        assert [node.has_task for node in (root, mid, leaf)] == [False, False, True]
        assert (await swarm.agent(leaf.id).wait()).turn == 2
        await agent.wait()
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


async def test_who_returns_goes_before_who_is_new() -> None:
    order: list[str] = []

    def noted(c: Conversation) -> Any:
        order.append(c.task)
        return late(1)

    def root(c: Conversation) -> Any:
        order.append(f"root {c.steps}")
        return reply_text("ok")

    async with opened(by_task(root=root, kid=noted), max_active=1) as swarm:
        agent = await swarm.spawn("root go")
        await agent.wait()
        order.clear()
        await agent.spawn_many([f"kid {number}" for number in range(4)])
        await trio.sleep(0.5)
        await agent.send("look")
        await agent.wait()
    assert order[:3] == ["kid 0", "root 1", "kid 1"]


async def test_five_hundred_ends_within_a_second_cost_their_parent_a_few_turns() -> None:
    def kid(c: Conversation) -> Any:
        return late(1 + int(c.task.split()[1]) / 500)

    store = taped_store()
    root = _spawning("kid", 500)
    async with opened(by_task(root=root, kid=kid), store=store, latency_seconds=0.02) as swarm:
        agent = await swarm.spawn("root go")
        outcome = await agent.wait()
        assert 2 <= outcome.turn <= 8  # the first one is that of its prompt
        check_all_is_given_back(swarm)
    for batches in range(len(store.batches) // 2, len(store.batches), 7):  # killed in between, nothing is lost
        copy = await store.as_of(batches)
        async with opened(by_task(root=root, kid=kid), store=copy) as swarm:
            await swarm.resume_all()
            await swarm.agent(1).wait()
            await swarm._runtime.transcripts.restore(swarm._runtime.nodes[1])
            messages = swarm._runtime.nodes[1].session.messages
            ends = "\n".join(part.text for m in messages for part in m.parts if hasattr(part, "text")).count(
                "completed"
            )
            more = sum(
                int(line.split()[1])
                for m in messages
                for part in m.parts
                for line in getattr(part, "text", "").split("\n")
                if m.role == "user" and line.startswith("and ")
            )
            assert ends + more >= 500


async def test_the_end_of_an_only_child_is_told_at_once() -> None:
    async with opened(by_task(root=_spawning("kid", 1), kid=[late(5)])) as swarm:
        started = trio.current_time()
        await (await swarm.spawn("root go")).wait()
        assert trio.current_time() - started < 5.01


async def test_a_steer_does_not_wait_for_ends_to_gather() -> None:
    async def turns(*, steer: bool) -> float:
        async with opened(by_task(root=_spawning("kid", 2), kid=lambda c: late(1 + 99 * int(c.task[-1])))) as swarm:
            agent = await swarm.spawn("root go")
            await trio.sleep(1.1)
            before = trio.current_time()
            if steer:
                await agent.steer("now")
            while agent.view().turn < 2:  # noqa: ASYNC110 - the virtual clock jumps
                await trio.sleep(0.001)
            return trio.current_time() - before

    assert await turns(steer=True) < 0.02
    assert 0.1 < await turns(steer=False) < 0.2


async def test_interrupting_an_agent_that_only_waits_ends_its_children() -> None:
    async with opened(by_task(root=_spawning("kid", 3), kid=[late(500)])) as swarm:
        agent = await swarm.spawn("root go")
        await trio.sleep(1)
        await agent.interrupt()
        assert {view.status for view in swarm.agents() if view.parent} == {"closed"}
        assert (await agent.wait()).turn == 1
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


async def test_deadlines_of_turns_that_ended_are_swept() -> None:
    async with opened(by_task(root=[reply_text("ok")], kid=[reply_text("ok")])) as swarm:
        agent = await swarm.spawn("root go")
        for _ in range(6):
            await agent.spawn_many([f"kid {number}" for number in range(1_000)])
            await agent.wait()
        assert len(swarm._runtime.deadlines) <= 2_048


async def test_a_deadline_still_stops_a_turn_among_many_that_ended() -> None:
    async with opened(by_task(root=[reply_text("ok")], kid=[reply_text("ok")], slow=[late(500)])) as swarm:
        agent = await swarm.spawn("root go")
        slow = await agent.spawn("slow go", timeout_seconds=100.0)
        for _ in range(3):
            await agent.spawn_many([f"kid {number}" for number in range(1_000)])
        assert (await slow.wait()).status == "deadline_exceeded"


def _told(c: Conversation) -> Any:
    if c.steps == 2:
        return late(200, f"{c.task}, {len(c.messages)} messages")
    return reply_calls(("list_agents", {})) if c.steps == 0 else reply_text("on", stop="pause")


@pytest.mark.parametrize("kind", ["memory", "sqlite", "jsonl"])
async def test_an_agent_that_waits_long_is_evicted_and_goes_on_with_its_whole_conversation(
    kind: str, tmp_path: Any
) -> None:
    store = None if kind == "memory" else f"{kind}:{tmp_path / 'swarm'}"

    def kid(c: Conversation) -> Any:
        return _told(c) if c.steps < 3 else reply_text(f"{len(c.messages)} messages, then {c.last_text}")

    async with opened(by_task(kid=kid), store=store) as swarm:
        transcripts = swarm._runtime.transcripts
        transcripts.max_resident = 0
        agents = [await swarm.spawn(f"kid {number}") for number in range(3)]
        await trio.sleep(100)
        sessions = [node.session for node in swarm._runtime.nodes.values()]
        assert [(session.evicted, [*session.messages], session.packed) for session in sessions] == [(4, [], b"")] * 3
        await agents[0].send("more")
        assert [(await agent.wait()).result for agent in agents[1:]] == [f"kid {n}, 4 messages" for n in (1, 2)]
        assert (await agents[0].wait()).result == "6 messages, then more"
        fork = await agents[1].fork()
        await fork.send("and now")
        assert (await fork.wait()).result == "6 messages, then and now"
        await check_store_holds_the_live_state(swarm)


async def test_a_store_that_cannot_be_read_for_a_while_delays_an_evicted_agent_and_no_more() -> None:
    class Failing(UnreliableStore):
        failures = 0

        async def load(self, ends: Any) -> Any:
            if self.failures:
                self.failures -= 1
                raise StoreError("the disk is away")
            return await super().load(ends)

    store = Failing(MemoryStore())
    async with opened(by_task(kid=lambda c: late(50) if c.steps < 1 else reply_text("on")), store=store) as swarm:
        agent = await swarm.spawn("kid go")
        await agent.wait()
        assert swarm._runtime.transcripts.evict(swarm._runtime.nodes[agent.id])
        store.failures = 3
        await agent.send("more")
        assert (await agent.wait()).result == "on"
        assert store.failures == 0


async def test_above_the_ceiling_of_memory_nobody_new_starts_while_any_is_active() -> None:
    size = 0
    async with opened(by_task(root=[reply_text("ok")], kid=[late(10)]), max_memory_bytes=1_000) as swarm:
        swarm._runtime.ceiling.read = lambda: size
        agent = await swarm.spawn("root go")
        async with swarm.events() as events:
            await agent.spawn_many(["kid first"] * 3)
            await trio.sleep(6)
            size = 1_000
            await trio.sleep(6)
            await agent.spawn_many(["kid second"] * 3)
            await trio.sleep(1)
            troubled = swarm.statistics()
            assert "max_memory_bytes is" in troubled.memory_trouble
            assert (troubled.active, troubled.pending) == (1, 2)  # one goes on in any case
            size = 960
            await trio.sleep(2)
            assert swarm.statistics().pending == 2
            size = 900
            await trio.sleep(2)
            assert (swarm.statistics().pending, swarm.statistics().memory_trouble) == (0, "")
            told = []
            while True:
                try:
                    event = events.receive_nowait()
                except trio.WouldBlock:
                    break
                told += [event.message] if isinstance(event, MemoryShort) else []
        assert len(told) == 2
        assert "new agents wait until others have ended" in told[0]
        assert told[1] == ""


async def test_the_longest_waiters_are_evicted_while_memory_is_short() -> None:
    async with opened(by_task(kid=_told), max_memory_bytes=1_000) as swarm:
        swarm._runtime.ceiling.read = lambda: 2_000
        await swarm.spawn("kid go")
        await trio.sleep(10)
        (node,) = swarm._runtime.nodes.values()
        assert (node.session.message_count, node.session.evicted, node.session.packed) == (4, 4, b"")


async def test_a_ceiling_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="max_memory_bytes is 0"):
        async with opened(by_task(), max_memory_bytes=0):
            pass


def test_the_memory_of_the_machine_and_of_the_process_are_known() -> None:
    assert 0 < resident_bytes() < available_bytes()


async def test_a_stop_of_one_child_leaves_its_siblings_and_its_parent_at_work() -> None:
    limits = Limits(turn_seconds=50)
    async with opened(by_task(root=_spawning("kid", 2), kid=lambda c: late(10 + 90 * int(c.task[-1])))) as swarm:
        agent = await swarm.spawn("root go", limits=limits)
        outcome = await agent.wait()
        assert outcome.status == "completed"
        assert [view.outcome for view in swarm.agents()[1:]] == ["completed", "deadline_exceeded"]
        check_all_is_given_back(swarm)

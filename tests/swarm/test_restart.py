"""What a restart keeps, and every way to leave an open swarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

import nanotrio
from nanotrio.errors import ClosedError, ModelError, StoreOwnedError, UnknownToolError
from nanotrio.fact_form import decode_facts
from nanotrio.limits import nano_usd
from nanotrio.models.scripted import FREE, Conversation, Late, ScriptedModel
from nanotrio.records import Closed
from nanotrio.stores import MemoryStore, this_process
from nanotrio.stores.store import Batch
from tests.swarm.worlds import (
    DEAR,
    by_task,
    check_all_is_given_back,
    check_store_holds_the_live_state,
    late,
    opened,
    reply_calls,
    reply_text,
    sessions_in,
    taped_store,
)


async def test_leaving_normally_waits_until_every_root_is_idle(autojump_clock: trio.testing.MockClock) -> None:
    store = taped_store()
    script = by_task(
        root=[reply_calls(*[("spawn_agent", {"prompt": f"child {n}"}) for n in (1, 5, 60)]), reply_text("ok")],
        child=lambda c: late(int(c.task.split()[1]), c.task),
    )
    async with opened(script, store=store) as swarm:
        start = trio.current_time()
        await swarm.spawn("root go")
    assert trio.current_time() - start >= 60
    check_all_is_given_back(swarm)
    async with opened(script, store=store) as again:
        assert again.agents() == []
        assert await again.resume_all() == []


async def test_the_users_own_exception_comes_out_as_it_is(autojump_clock: trio.testing.MockClock) -> None:
    class OwnError(Exception):
        pass

    store = taped_store()
    own = OwnError("mine")
    with pytest.raises(OwnError) as raised:
        async with opened(by_task(root=[late(99)]), store=store) as swarm:
            agent = await swarm.spawn("root go")
            await trio.sleep(1)
            raise own
    assert raised.value is own
    async with opened(by_task(root=[late(5)]), store=store) as swarm:
        (view,) = swarm.agents()
        assert (view.id, view.status) == (agent.id, "interrupted")
        resumed = await swarm.resume(agent.uuid)
        assert (await resumed.wait()).status == "completed"


async def test_a_wait_for_what_is_interrupted_says_how_to_go_on(autojump_clock: trio.testing.MockClock) -> None:
    said: list[str] = []
    with trio.move_on_after(3) as scope:
        async with opened(by_task(root=[late(99)])) as swarm, trio.open_nursery() as nursery:
            agent = await swarm.spawn("root go")

            async def wait() -> None:
                with trio.CancelScope(shield=True), pytest.raises(ClosedError, match=r"resume\(1\)") as told:
                    await agent.wait()
                said.append(str(told.value))

            nursery.start_soon(wait)
            await trio.sleep(1)
            swarm._runtime.is_closing = True
            with pytest.raises(ClosedError):
                await swarm.spawn("root go")
            swarm._runtime.is_closing = False
            from nanotrio.swarm.ending import end_trees

            await end_trees(swarm._runtime, [agent._node], "interrupted", "test")
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert len(said) == 1


async def test_a_second_opening_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'swarm.db'}"
    async with opened(by_task(root=[reply_text("ok")]), store=store) as swarm:
        await (await swarm.spawn("root go")).wait()
        with pytest.raises(StoreOwnedError):
            async with opened(by_task(root=[reply_text("ok")]), store=store):
                pass
        assert (await (await swarm.spawn("root go")).wait()).status == "completed"
    views = await nanotrio.read_store(store)
    assert [view.outcome for view in views] == ["completed"] * 2


@pytest.mark.parametrize("background", [False, True])
async def test_a_parent_that_waits_across_a_crash_is_joined_to_the_same_child(
    autojump_clock: trio.testing.MockClock, background: bool
) -> None:
    store = taped_store()
    told: list[str] = []

    def root(c: Conversation) -> Any:
        if c.steps == 0:
            return reply_calls(("spawn_agent", {"prompt": "child x", "name": "kid", "background": background}))
        if background and c.steps == 1:
            return reply_calls(("wait_agents", {}))
        told.append(c.results[0].content)
        return reply_text("end")

    script = by_task(root=root, child=[late(50, "done")])
    async with opened(script, store=store) as swarm:
        await (await swarm.spawn("root go")).wait()
    batches = len(store.batches)
    for cut in range(2, batches + 1):
        told.clear()
        crashed = await store.as_of(cut)
        for _ in range(2):
            with trio.move_on_after(10):
                async with opened(script, store=crashed) as swarm:
                    await swarm.resume_all()
                    await trio.sleep_forever()
        async with opened(script, store=crashed) as swarm:
            agent = await swarm.resume(1)
            outcome = await agent.wait()
            assert {view.name for view in swarm.agents()} <= {"agent.1", "kid.2"}
            assert (outcome.status, outcome.turn) == ("completed", 1)
            assert all(text == "kid.2 completed: done" for text in told)
            check_all_is_given_back(swarm)
            await check_store_holds_the_live_state(swarm)


async def test_an_effect_is_not_run_again_and_the_model_is_told(autojump_clock: trio.testing.MockClock) -> None:
    ran: list[str] = []

    @nanotrio.tool
    async def effect(name: str) -> str:
        """Do."""
        ran.append(name)
        await trio.sleep(10 if name == "slow" else 0)
        return f"did {name}"

    @nanotrio.tool(idempotent=True)
    async def again(context: nanotrio.ToolContext) -> str:
        """Do again."""
        ran.append(context.idempotency_key)
        await trio.sleep(10)
        return "did again"

    def root(c: Conversation) -> Any:
        if c.steps == 0:
            return reply_calls(("effect", {"name": "slow"}), ("effect", {"name": "quick"}), ("again", {}))
        return reply_text("\n".join(result.content for result in c.results))

    store = taped_store()
    for opening in range(3):
        with trio.move_on_after(3 if opening < 2 else 60):
            async with opened(by_task(root=root), store=store, tools=[effect, again]) as swarm:
                agent = await (swarm.resume(1) if opening else swarm.spawn("root go"))
                outcome = await agent.wait()
    slow, quick, repeated = outcome.result.split("\n")
    assert slow.startswith("interrupted; outcome unknown")
    assert (quick, repeated) == ("did quick", "did again")
    assert sorted(ran)[-2:] == ["quick", "slow"]
    assert len(ran) == 5
    assert len(set(ran)) == 3, "an idempotent call is handed the same key"


async def test_spent_survives_a_restart_and_is_not_refilled(autojump_clock: trio.testing.MockClock) -> None:
    store = taped_store()
    script = by_task(root=lambda c: late(5, "ok"))
    async with opened(script, store=store, price=DEAR) as swarm:
        agent = await swarm.spawn("root go", budget_usd=0.05)
        first = await agent.wait()
    for cut in range(2, len(store.batches) + 1):
        async with opened(script, store=await store.as_of(cut), price=DEAR) as swarm:
            resumed = await swarm.resume(1)
            outcome = await resumed.wait()
            view = resumed.view()
            assert view.spent_nano >= first.cost_nano
            assert swarm._runtime.nodes[1].ledger.settled == view.spent_nano + view.uncertain_nano
            assert outcome.status == "completed"
            await resumed.send("again")
            assert (await resumed.wait()).cost_nano > outcome.cost_nano
            check_all_is_given_back(swarm)


async def test_a_reservation_that_is_open_at_the_crash_counts_as_uncertain_in_full(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = taped_store()
    script = by_task(root=[reply_text("idle")], child=[late(99)])
    with trio.move_on_after(5):
        async with opened(script, store=store, price=DEAR) as swarm:
            agent = await swarm.spawn("root go", budget_usd=0.05)
            await agent.spawn_many(["child a", "child b"])
            await trio.sleep_forever()
    async with opened(script, store=store, price=DEAR) as swarm:
        nodes = (await swarm.resume(1))._runtime.nodes
        uncertain = sum(node.session.uncertain_nano for node in nodes.values())
        assert uncertain > 2 * 8_192_000
        assert nodes[1].ledger.settled == nodes[1].session.spent_nano + uncertain
        await swarm.agent(1).wait()
        views = {view.id: view for view in swarm.agents()}
        assert views[1].uncertain_nano == uncertain
        assert views[1].spent_nano + uncertain <= nano_usd(0.05)
        check_all_is_given_back(swarm)


async def test_resuming_is_refused_where_a_tool_is_missing_and_nothing_is_started(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @nanotrio.tool
    async def special() -> str:
        """Do."""
        return "x"

    store = taped_store()
    with trio.move_on_after(1):
        async with opened(by_task(root=[late(9)]), store=store, tools=[special]) as swarm:
            await swarm.spawn("root go")
            await trio.sleep_forever()
    batches = len(store.batches)
    async with opened(by_task(root=[late(9)]), store=store) as swarm:
        with pytest.raises(UnknownToolError, match=r"agent\.1 uses the tool 'special'"):
            await swarm.resume(1)
        assert not swarm._runtime.nodes
        assert len(store.batches) == batches
    async with opened(by_task(root=[late(9)]), store=store, tools=[special]) as swarm:
        assert (await (await swarm.resume("agent.1")).wait()).status == "completed"


async def test_finished_children_stay_finished_and_the_others_go_on(autojump_clock: trio.testing.MockClock) -> None:
    store = taped_store()
    asked: list[str] = []

    def child(c: Conversation) -> Any:
        asked.append(c.task)
        return late(float(c.task.split()[1]), "done")

    script = by_task(root=[reply_text("ok")], child=child)
    with trio.move_on_after(31):
        async with opened(script, store=store) as swarm:
            agent = await swarm.spawn("root go")
            await agent.spawn_many([f"child {n}" for n in range(60)], name="kid")
            await trio.sleep_forever()
    asked.clear()
    async with opened(script, store=store) as swarm:
        statuses = [view.status for view in swarm.agents()]
        assert set(statuses) == {"interrupted"}
        await swarm.resume_all()
        await swarm.agent(1).wait()
        views = [(await swarm.find(agent)).view() for agent in range(1, 62)]
        assert [view.name for view in views] == ["agent.1", *[f"kid.{n}" for n in range(2, 62)]]
        assert {view.outcome for view in views} == {"completed"}
        check_all_is_given_back(swarm)
    assert 25 <= len(asked) <= 30


async def test_whom_a_final_result_had_ended_does_not_go_on_after_a_crash(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @nanotrio.tool
    async def linger() -> str:
        """Take a second to be cancelled."""
        try:
            await trio.sleep(50)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
        return "lingered"

    script = by_task(
        root=[
            reply_calls(("spawn_agent", {"prompt": "child"})),
            Late(reply_calls(("submit_result", {"result": 1})), 5),
        ],
        child=[reply_calls(("linger", {})), reply_text("done after all")],
    )
    taped = taped_store()
    async with opened(script, store=taped, tools=[linger]) as swarm:
        await (await swarm.spawn("root go")).wait()
    cut_off = 0
    for batches in range(1, len(taped.batches) + 1):
        store = await taped.as_of(batches)
        async with opened(script, store=store, tools=[linger]) as swarm:
            for root in await swarm.resume_all():
                had_ended = root._node.session.ended is not None
                cut_off += had_ended
                await root.wait()
                if had_ended:
                    assert [view.outcome for view in swarm.agents()] == ["completed", "cancelled"]
            check_all_is_given_back(swarm)
    assert cut_off, "no prefix lay between the result and the end of the child"


async def test_waiting_for_any_waits_for_the_next_that_ends(autojump_clock: trio.testing.MockClock) -> None:
    children = [("spawn_agent", {"prompt": f"child {seconds}", "name": f"c{seconds}"}) for seconds in (5, 10)]
    told: list[str] = []

    def root(c: Conversation) -> Any:
        told.extend([result.content for result in c.results])
        if c.steps == 0:
            return reply_calls(*children)
        return reply_calls(("wait_agents", {"mode": "any"})) if c.steps < 3 else reply_text("ok")

    script = by_task(root=root, child=lambda c: late(int(c.task.split()[1]), c.task))
    async with opened(script) as swarm:
        await (await swarm.spawn("root go")).wait()
    assert trio.current_time() == pytest.approx(10, abs=1)
    first, second = told[2:]
    assert "completed" in first
    assert "has not ended" in first
    assert second.count("completed") == 2


async def test_who_is_below_a_closed_agent_does_not_go_on_after_a_crash(autojump_clock: trio.testing.MockClock) -> None:
    kids = {"agents": [{"prompt": f"child {number}", "name": "kid"} for number in range(600)]}
    mid = [reply_calls(("spawn_agents", kids)), reply_calls(("submit_result", {"result": "x"}))]
    script = by_task(root=[late(99)], mid=mid, child=[late(3)])
    store = taped_store()
    async with opened(script, store=store, max_active=3) as swarm:
        swarm._runtime.slots.max_resident = 2
        root = await swarm.spawn("root go")
        agent = await root.spawn("mid go")
        node = swarm._runtime.nodes[agent.id]
        while node.session.status != "settling":  # noqa: ASYNC110 - it lasts some passes of the loop alone
            await trio.lowlevel.checkpoint()
        await agent.cancel()
        assert (await agent.wait()).status == "completed", "its turn had ended; cancelled were those it cut off"
        await root.cancel()
    records = await store.scan(0)
    (cut,) = [
        record.seq for record in records if record.agent == agent.id and Closed in map(type, decode_facts(record.facts))
    ]
    for seq in (cut, cut + 1):
        again = MemoryStore()
        await again.acquire(this_process())
        await again.commit(Batch(1, records[:seq], [], None))
        former = await sessions_in(again)
        left = [each.agent for each in former.values() if each.parent == agent.id and each.is_unfinished]
        assert former[agent.id].status == "closed"
        assert left
        async with opened(script, store=again, max_active=3) as swarm:
            await (await swarm.resume(root.id)).wait()
            await swarm.flush()
            check_all_is_given_back(swarm)
        sessions = await sessions_in(again)
        assert {(sessions[kid].status, sessions[kid].ended.fact.status) for kid in left} == {("closed", "cancelled")}


async def test_a_tree_with_pending_agents_whose_model_is_missing_is_refused_and_goes_on_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script, model, store = by_task(root=[late(9)], kid=[late(9)]), "openai-chat/without-a-key", taped_store()

    def small(swarm: nanotrio.Swarm, *, has_model: bool) -> None:
        swarm._runtime.slots.max_resident = 1
        if has_model:
            swarm._runtime.models[model] = ScriptedModel(script, name=model, price=FREE)

    with trio.CancelScope() as scope:
        async with opened(script, store=store, max_active=1) as swarm:
            small(swarm, has_model=True)
            root = await swarm.spawn("root go")
            for number in range(6):
                await root.spawn("kid x", model=model if number > 2 else "scripted/test")
            scope.cancel()
            await trio.sleep_forever()
    with trio.fail_after(100):
        async with opened(script, store=store, max_active=1) as swarm:
            small(swarm, has_model=False)
            with pytest.raises(ModelError, match="needs a key"):
                await swarm.resume(1)
    async with opened(script, store=store, max_active=1) as swarm:
        small(swarm, has_model=True)
        await swarm.resume(1)
    assert {session.ended.fact.status for session in (await sessions_in(store)).values() if session.ended} == {
        "completed"
    }

"""A list of trees, and a look at one agent, say what a look at all says, while the store is at work and after."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import msgspec
import trio
import trio.testing

import nanotrio
from nanotrio.messages import Message, Text, Usage
from nanotrio.models import Reply, ScriptedModel, reply_calls, reply_text
from nanotrio.models.scripted import FREE, Conversation
from nanotrio.stores import Batch, Store, StoreCare, open_store, this_process
from nanotrio.swarm.reading import read_lineage, read_roots
from tests.swarm.worlds import DEAR, by_task, late, opened, taped_store


class Gate:
    """Holds agents in its tool until all are to go on."""

    def __init__(self) -> None:
        self.go_on = trio.Event()
        self._began, self._holding = trio.open_memory_channel[None](math.inf)

        @nanotrio.tool
        async def hold() -> str:
            """Wait until all are to go on."""
            self._began.send_nowait(None)
            await self.go_on.wait()
            return "go on"

        self.tool = hold

    async def holds(self, count: int) -> None:
        """Wait until so many more agents are held."""
        for _ in range(count):
            await self._holding.receive()


def without_costs(view: nanotrio.AgentView) -> nanotrio.AgentView:
    """Return a view without what descendants at work add to it in a list of all."""
    return msgspec.structs.replace(view, usage=Usage(), spent_nano=0)


async def check_trees(url: str) -> list[int]:
    """The trees are as the agents say; return their sizes."""
    trees, agents = await read_roots(url), await nanotrio.read_store(url)
    sizes = Counter(view.root for view in agents)
    assert [tree.root for tree in trees] == [view for view in agents if not view.parent]
    assert [tree.agents for tree in trees] == [sizes[tree.root.id] for tree in trees]
    for tree in trees:
        below = [view for view in agents if view.parent and view.root == tree.root.id]
        first = next((view.task for view in below if view.parent == tree.root.id), "")
        assert tree.first_task == ("" if tree.root.task else first)
        if any(view.status in {"running", "pending"} for view in below):
            assert tree.is_unfinished
    for view in agents:
        lineage = await read_lineage(url, view.id)
        assert [one.depth for one in lineage] == list(range(view.depth + 1))
        assert without_costs(lineage[-1]) == without_costs(view)
        roots = [without_costs(tree.root) for tree in trees if tree.root.id == view.root]
        assert roots == [without_costs(lineage[0])]
    assert await read_lineage(url, agents[-1].id + 1) == []
    return [tree.agents for tree in trees]


async def test_trees_of_a_store_at_work_are_counted_with_what_its_heads_do_not_tell_yet(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'swarm.db'}"
    gate = Gate()

    def script(conversation: Conversation) -> Reply:
        if conversation.steps:
            return reply_text("done")
        if conversation.task.startswith("parent"):
            return reply_calls(("spawn_agents", {"agents": [{"prompt": f"child {n}"} for n in range(3)]}))
        return reply_calls(("hold", {}))

    async with nanotrio.open_swarm(store=url, model=ScriptedModel(script, price=FREE), tools=[gate.tool]) as swarm:
        first = await swarm.spawn("parent a")
        await first.spawn_many(["parent b", "child c"])
        await gate.holds(7)
        assert await check_trees(url) == [9]
        await swarm.flush()
        assert await check_trees(url) == [9]
        await swarm.spawn("parent d")
        await gate.holds(3)
        assert await check_trees(url) == [9, 4]
        gate.go_on.set()
        async with swarm.map("child {item}", ["x", "y"]) as results:
            async for _ in results:
                pass
    assert await check_trees(url) == [9, 4, 3]


async def test_what_agents_at_work_have_used_counts_to_all_above_them_in_every_list(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'swarm.db'}"
    gate = Gate()

    def script(conversation: Conversation) -> Reply:
        usage = Usage(10, conversation.steps + 1)
        if conversation.task.startswith("boss") and not conversation.steps:
            return reply_calls(("spawn_agent", {"prompt": "child"}), usage=usage)
        return reply_text("done", usage=usage) if conversation.steps else reply_calls(("hold", {}), usage=usage)

    async with nanotrio.open_swarm(store=url, model=ScriptedModel(script, price=DEAR), tools=[gate.tool]) as swarm:
        root = await swarm.spawn("boss a")
        await root.spawn("boss b")
        await gate.holds(2)
        await swarm.flush()
        budget = root.budget()
        for views in (swarm.agents(), await nanotrio.read_store(url)):
            top = views[0]
            assert top.spent_nano == budget.settled_nano == DEAR.cost_nano(top.usage)
            assert sum(view.spent_nano - below(view, views) for view in views) == top.spent_nano
        assert [tree.root for tree in await read_roots(url)] == [top]
        assert (await StoreCare(url).stats()).spent_nano == top.spent_nano
        gate.go_on.set()
        await root.wait()
        assert (after := swarm.agents()[0]) == root.view()
        assert after.spent_nano == root.budget().settled_nano > top.spent_nano


def below(view: nanotrio.AgentView, views: list[nanotrio.AgentView]) -> int:
    """Return what the children of an agent spent."""
    return sum(each.spent_nano for each in views if each.parent == view.id)


async def test_who_was_closed_with_a_parent_while_out_of_memory_is_closed_in_lists(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'swarm.db'}"
    model, limits = ScriptedModel(lambda _: reply_text("done"), price=FREE), nanotrio.Limits(max_idle=0)
    async with nanotrio.open_swarm(store=url, model=model, limits=limits) as swarm:
        boss = await swarm.spawn("boss")
        (mid,) = await boss.spawn_many(["mid"])
        one, two = await mid.spawn_many(["one", "two"])
        other = await swarm.spawn("other")
        for each in (boss, mid, one, two, other):
            await each.wait()
        while len(swarm.agents()) > 0:  # noqa: ASYNC110 - leaving has no event
            await trio.sleep(0.01)
        await (await swarm.find(mid.id)).close()
    await check_trees(url)
    statuses = {view.id: view.status for view in await nanotrio.read_store(url)}
    assert statuses == {boss.id: "idle", mid.id: "closed", one.id: "closed", two.id: "closed", other.id: "idle"}


async def test_trees_are_counted_where_heads_count_nothing(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'swarm.db'}"
    async with nanotrio.open_swarm(store=url, model=ScriptedModel([reply_text("done")], price=FREE)) as swarm:
        root = await swarm.spawn("root")
        await root.spawn_many(["child"] * 5)
    store = await open_store(url)
    await store.acquire(this_process())
    await forget_counts(store)
    await store.aclose()
    assert await check_trees(url) == [6]


async def forget_counts(store: Store) -> None:
    heads = [msgspec.structs.replace(head, children=0, descendants=0, counted_agent=0) for head in await store.heads()]
    await store.commit(Batch(1, (), heads))


async def test_what_is_read_of_an_agent_that_never_spoke_is_a_list_of_the_readers_own(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'swarm.db'}"
    async with opened([reply_text("done")], store=url) as swarm, swarm.map("{item}", ["x"]) as results:
        assert [each.status async for each in results] == ["completed"]
    first, second = [await nanotrio.read_session(url, 1) for _ in range(2)]
    assert first.messages == []
    first.messages.append(Message("user", (Text("mine"),)))
    assert second.messages == []


async def test_a_tree_whose_owner_was_killed_is_unfinished_by_its_last_record(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    store = taped_store()
    async with opened(by_task(child=[late(5)]), store=store) as swarm:
        async with swarm.map("child {item}", ["x", "y"]) as results:
            async for _ in results:
                pass
            done = len(store.batches)
        await trio.sleep(5)
        await (await swarm.find("map.1")).spawn("child again")
        await trio.sleep(3)
        again = len(store.batches)
    for kept, is_unfinished in [(done, False), (again, True)]:
        url = f"sqlite:{tmp_path / str(kept)}"
        killed = await open_store(url)
        await killed.acquire(this_process())
        for number, batch in enumerate(store.batches[:kept], 1):
            await killed.commit(msgspec.structs.replace(batch, number=number))
        await killed.aclose()
        (tree,) = await read_roots(url)
        assert tree.is_unfinished is is_unfinished
        await check_trees(url)

"""Agents whose transcripts have to be read first, from a store that is slow to read."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing

from nanotrio.limits import Limits
from nanotrio.messages import Usage
from nanotrio.models.scripted import Conversation, Late
from nanotrio.stores import MemoryStore
from nanotrio.testing import assert_prefix
from tests.swarm.worlds import DEAR, SlowToRead, by_task, check_all_is_given_back, late, opened, reply_text


async def test_killed_while_a_transcript_is_read_a_tree_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    store = SlowToRead(MemoryStore(), tape=True)
    script = by_task(root=[reply_text("ok")])
    async with opened(script, store=store) as swarm:
        agent = await swarm.spawn("root go")
        await agent.wait()
        await swarm.flush()
        assert swarm._runtime.transcripts.evict(swarm._runtime.nodes[agent.id])
        store.seconds = 30
        await agent.send("again")
        await trio.sleep(10)
        killed = await store.as_of(len(store.batches))
        assert (await agent.wait()).turn == 2
    await assert_prefix(killed)
    async with opened(script, store=killed) as swarm:
        assert (await (await swarm.resume(agent.id)).wait()).turn == 2


async def test_cancelled_while_its_transcript_is_read_an_agent_gives_its_reservation_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = SlowToRead(MemoryStore())

    def long(_: Conversation) -> Any:
        return Late(reply_text("long", usage=Usage(output=6_000)), 5)

    async with opened(by_task(root=[reply_text("ok")], long=long, short=[late(1)]), store=store, price=DEAR) as swarm:
        root = await swarm.spawn("root go", budget_usd=0.013, limits=Limits())
        await root.wait()
        await root.spawn("long x")
        short = await root.spawn("short x")
        await trio.sleep(1)
        assert short.view().waiting_for == "the budget of agent.1"
        await swarm.flush()
        assert swarm._runtime.transcripts.evict(swarm._runtime.nodes[short.id])
        store.seconds = 30
        await trio.sleep(5)
        node = swarm._runtime.nodes[short.id]
        assert node.session.evicted
        assert 0 < node.ledger.reserved < 8_192_000, "it may say less than it wished to, so its request is made anew"
        await short.cancel()
        await root.wait()
        check_all_is_given_back(swarm)

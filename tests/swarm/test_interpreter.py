"""The interpreter while a swarm is open, and after."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import trio

import nanotrio
from tests.swarm.worlds import opened, reply_text


async def test_the_interpreter_is_put_back_as_it_was() -> None:
    before = gc.get_threshold(), sys.getswitchinterval()
    async with opened(lambda _: reply_text("ok")), opened(lambda _: reply_text("ok")):
        assert (gc.get_threshold(), sys.getswitchinterval()) != before
    assert (gc.get_threshold(), sys.getswitchinterval()) == before


async def test_a_large_batch_is_written_beside_a_loop_that_never_rests(tmp_path: Path) -> None:
    async def never_rest() -> None:
        while True:
            sum(range(100_000))
            await trio.lowlevel.checkpoint()

    store = f"sqlite:{tmp_path}/busy.db"
    async with opened(lambda _: reply_text("ok"), store=store) as swarm, trio.open_nursery() as nursery:
        nursery.start_soon(never_rest)
        root = await swarm.spawn("root")
        await root.wait()
        with trio.fail_after(30):
            children = await root.spawn_many([f"child {number}" for number in range(1_000)])
            assert isinstance(children[0], nanotrio.Agent)
        nursery.cancel_scope.cancel()

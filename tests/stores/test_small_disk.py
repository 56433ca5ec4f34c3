"""A swarm on a file system of 2 MB that fills up: it is told, nothing is lost, and it goes on once there is room.

The file system is a real one (tmpfs), which only root may mount; elsewhere these are skipped, and what the drivers do
with a full disk is tried through a file layer that refuses to write (``failing_disk``).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import nanotrio
from nanotrio.models import Conversation, Reply, ScriptedModel, reply_calls, reply_text
from nanotrio.stores import StoreCare, open_store
from nanotrio.swarm.events import StoreTroubled
from nanotrio.testing import assert_each_call_answered, assert_no_effect_twice, assert_prefix, log_effects

SIZE = 2 << 20
LEFT = 200 << 10
AGENTS = 16


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(folder)], capture_output=True, check=False
    )
    if os.geteuid() or mounted.returncode:
        pytest.skip("only root may mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _script(conversation: Conversation) -> Reply:
    if conversation.steps < 6:
        return reply_calls(("note", {"text": f"{conversation.task} {conversation.steps}"}), text="x" * 2_000)
    return reply_text(f"{conversation.task} is done")


@pytest.mark.parametrize("kind", ["sqlite", "sqlite+rows", "jsonl"])
async def test_a_full_disk_is_told_and_waited_out_and_nothing_is_lost(
    kind: str, small_disk: Path, tmp_path: Path
) -> None:
    url = f"{kind}:{small_disk}/swarm"
    filler = small_disk / "filler"
    filler.write_bytes(bytes(SIZE - LEFT))
    done: list[int] = []
    troubles: list[str] = []

    async def note(text: str) -> str:
        """Note. text: what."""
        return f"noted {text}"

    async def ask(swarm: nanotrio.Swarm, number: int) -> None:
        agent = await swarm.spawn(f"task {number}")
        outcome = await agent.wait()
        assert outcome.last_text == f"task {number} is done"
        done.append(agent.id)

    tools = [log_effects(note, tmp_path / "effects")]
    async with (
        nanotrio.open_swarm(store=url, model=ScriptedModel(_script), tools=tools, environment={}) as swarm,
        swarm.events() as events,
    ):
        async with trio.open_nursery() as nursery:
            for number in range(AGENTS):
                nursery.start_soon(ask, swarm, number)
            async for event in events:
                if isinstance(event, StoreTroubled):
                    troubles.append(event.message)
                    break
            acknowledged = list(done)
            # What was acknowledged is there, also for another process, while the disk is full.
            reader = await open_store(url, read_only=True)
            await assert_prefix(reader, swarm.statistics().durable_seq)
            await reader.aclose()
            views = {view.id: view for view in await nanotrio.read_store(url)}
            assert all(views[agent].outcome == "completed" for agent in acknowledged)
            assert len(done) < AGENTS
            filler.unlink()
        assert len(done) == AGENTS
        await swarm.flush()
        assert swarm.statistics().store_trouble == ""

    assert "is full; free some space" in troubles[0]
    store = await open_store(url, read_only=True)
    await assert_prefix(store)
    await assert_each_call_answered(store)
    await assert_no_effect_twice(store, tmp_path / "effects")
    await store.aclose()
    assert (await StoreCare(url).check()).problems == ()

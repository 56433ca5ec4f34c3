"""A key that nanotrio was given reaches no record and no file, whatever brings it."""

from __future__ import annotations

from pathlib import Path

import nanotrio
from nanotrio.limits import Limits
from nanotrio.models.scripted import FREE, ScriptedModel
from tests.swarm.worlds import by_task, reply_calls, reply_text

KEY = "sk-0123456789-abcdefghij"


@nanotrio.tool
async def shows() -> str:
    """Show a key where a long result is cut, and beside it."""
    return (KEY + " ") * 1_000


@nanotrio.tool
async def raises() -> str:
    """Raise a key."""
    raise ValueError(KEY)


def check_files(folder: Path) -> None:
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert any("output" in str(path) for path in written)
    for path in written:
        assert KEY.encode() not in path.read_bytes(), path


async def test_no_key_reaches_the_store_or_the_files_beside_it(tmp_path: Path) -> None:
    calls = reply_calls(("shows", {}), ("raises", {}), (KEY, {}), ("send_message", {"to": KEY, "text": KEY}), text=KEY)
    async with nanotrio.open_swarm(
        model=ScriptedModel(by_task(root=[calls, reply_text(KEY)]), price=FREE),
        environment={"SOME_API_KEY": KEY},
        store=f"sqlite:{tmp_path / 'swarm.db'}",
        tools=[shows, raises],
        limits=Limits(max_result_bytes=1_000),
    ) as swarm:
        agent = await swarm.spawn(f"root {KEY}", name=KEY, system=KEY)
        assert (await agent.wait()).result == "[SOME_API_KEY]"
        agent._node.session.unpack()
        results = [part for message in agent._node.session.messages for part in message.parts]
        assert "sk-0" not in repr(results)
    check_files(tmp_path)

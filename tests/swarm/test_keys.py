"""A key that nanotrio was given reaches no record and no file, whatever brings it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import trio

import nanotrio
from nanotrio.limits import Limits
from nanotrio.messages import Text, Thinking, Usage
from nanotrio.models import Reply
from nanotrio.models.scripted import FREE, ScriptedModel
from nanotrio.swarm.events import Event, MessageReplied, TextDelta, ThinkingDelta
from nanotrio.tools import bash
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


async def test_no_key_is_in_what_streams_and_its_pieces_are_the_final_text() -> None:
    phrase = "correct horse battery"  # a scripted model streams words, so the key is cut
    text = f"{phrase} staple, {phrase}{phrase} and the correct horse"
    model = ScriptedModel([Reply((Thinking(text), Text(text)), "end", Usage(1, 1))], price=FREE)
    environment = {"SOME_PASSWORD": phrase}
    async with nanotrio.open_swarm(model=model, environment=environment) as swarm, swarm.events() as events:
        outcome = await (await swarm.spawn("root")).wait()
        said = [event async for event in _until_reply(events)]
    clean = "[SOME_PASSWORD] staple, [SOME_PASSWORD][SOME_PASSWORD] and the correct horse"
    assert outcome.result == clean
    assert "".join(event.text for event in said if isinstance(event, TextDelta)) == clean
    assert "".join(event.text for event in said if isinstance(event, ThinkingDelta)) == clean


async def test_a_thought_that_ends_as_a_key_begins_is_told_whole_before_the_text() -> None:
    model = ScriptedModel([Reply((Thinking("it is cas"), Text("yes, cas")), "end", Usage(1, 1))], price=FREE)
    environment = {"SOME_PASSWORD": "castle-and-moat"}
    async with nanotrio.open_swarm(model=model, environment=environment) as swarm, swarm.events() as events:
        await (await swarm.spawn("root")).wait()
        said = [event async for event in _until_reply(events) if isinstance(event, TextDelta | ThinkingDelta)]
    kinds = [type(event) for event in said]
    assert kinds == sorted(kinds, key=lambda kind: kind is TextDelta)
    assert "".join(event.text for event in said) == "it is casyes, cas"


async def _until_reply(events: trio.MemoryReceiveChannel[Event]) -> AsyncIterator[Event]:
    async for event in events:
        if isinstance(event, MessageReplied):
            return
        yield event


async def test_the_file_of_a_commands_long_output_holds_no_key(tmp_path: Path) -> None:
    command = f"for i in $(seq 200); do printf '%sx' {KEY[:9]}; printf '%s\\n' {KEY[:9]}''{KEY[9:]}; done; printf sk-"
    async with nanotrio.open_swarm(
        model=ScriptedModel(by_task(root=[reply_calls(("bash", {"command": command})), reply_text("ok")]), price=FREE),
        environment={"SOME_API_KEY": KEY, "PATH": os.environ["PATH"]},
        store=f"sqlite:{tmp_path / 'swarm.db'}",
        tools=[bash],
        limits=Limits(max_result_bytes=1_000),
    ) as swarm:
        agent = await swarm.spawn("root")
        await agent.wait()
    assert output_of(tmp_path) == f"{KEY[:9]}x[SOME_API_KEY]\n" * 200 + "sk-"
    check_files(tmp_path)


def output_of(folder: Path) -> str:
    (file,) = folder.rglob("*.txt")
    return file.read_text()

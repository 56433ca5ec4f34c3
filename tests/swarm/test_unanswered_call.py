"""Three calls at once, and the turn is ended after some were answered: each call still gets exactly one result."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import nanotrio
from nanotrio.tools import bash
from tests.invocation import processes_below
from tests.servers.conversation import Ask, Conversation, Reply
from tests.servers.model_server import open_model_server

CALLS = (
    Ask("bash", {"command": "echo slow >> ran; sleep 30; echo slept"}),
    Ask("bash", {"command": "echo quick >> ran; echo a"}),
    Ask("spawn_agent", {"name": "kid", "prompt": "Be a child."}),
)


def brain(conversation: Conversation) -> Reply:
    """Make the three calls once; afterwards tell their results in order, a line each."""
    if "child" in conversation.prompt:
        return Reply(text="I am one.")
    if not conversation.calls():
        return Reply(calls=CALLS)
    return Reply(text="\n".join(result.text.strip().partition("\n")[0] for _, result in conversation.calls()))


@pytest.mark.parametrize("how", ["interrupt", "leave"])
@pytest.mark.parametrize("model", ["anthropic/claude-sonnet-4-5", "openai-chat/gpt-4.1"])
async def test_every_call_has_one_result_and_a_strict_server_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, how: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    store = f"sqlite:{tmp_path / 'swarm.db'}"
    async with open_model_server(brain) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)

        with trio.CancelScope() as scope:
            async with nanotrio.open_swarm(store=store, model=model, tools=[bash], directory=work) as swarm:
                agent = await swarm.spawn("Go.", name="root")
                async with agent.events() as stream:
                    finished = 0
                    while finished < 2:
                        event = await stream.receive()
                        finished += type(event).__name__ == "ToolFinished" and event.agent == agent.id
                if how == "leave":
                    scope.cancel()
                    await trio.sleep_forever()
                await agent.interrupt()
                await agent.send("continue")
                outcome = await agent.wait()
        assert processes_below(work) == []
        if how == "leave":
            async with nanotrio.open_swarm(store=store, model=model, tools=[bash], directory=work) as swarm:
                resumed = await swarm.resume(agent.id)
                await resumed.send("continue")
                outcome = await resumed.wait()
        assert not server.refusals, server.refusals[0].problem

    slow, quick, spawned = outcome.result.split("\n")
    assert "interrupted; outcome unknown" in slow
    assert quick == "a"
    assert "kid." in spawned
    ran = (work / "ran").read_text().split()
    assert (ran.count("quick"), ran.count("slow") <= 1) == (1, True), "nothing was run again"

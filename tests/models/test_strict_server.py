"""Codecs and transport against a server that refuses what is wrong, in both wire formats."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from nanotrio.errors import ModelError
from nanotrio.messages import Message, Part, Text, Thinking, ToolCall, ToolResult, ToolSpec
from nanotrio.models import Delta, Model, Reply, open_model
from nanotrio.models.transport import open_client
from tests.job.brain import SUMMARY, think
from tests.job.harness import TOOLS, Call, TinyHarness
from tests.job.repository import PROMPT, make_repository
from tests.servers import conversation as server_side
from tests.servers.brains import echo
from tests.servers.model_server import open_model_server
from tests.servers.request_log import changed_results, prefix_breaks

NAMES = ("anthropic/claude-sonnet-4-5", "openai-chat/gpt-4.1")
SPECS = [ToolSpec(name, f"The tool {name}.", {"type": "object", "properties": {}}) for name in TOOLS]
both = pytest.mark.parametrize("name", NAMES)


class CodecWire:
    """A conversation through the codecs and the transport that the swarm uses."""

    def __init__(self, model: Model, prompt: str) -> None:
        self._model = model
        self._head = model.codec.encode_head(model.name, "Be brief.", SPECS, 1_000)
        self._bodies: list[bytes] = []
        self._add(Message("user", (Text(prompt),)))

    def _add(self, message: Message) -> None:
        self._bodies.append(self._model.codec.encode_message(message, self._model.name))

    async def ask(self) -> tuple[str, list[Call]]:
        reply = await attempt(self._model, self._model.codec.join(self._head, self._bodies))
        self._add(Message("assistant", reply.parts, self._model.name))
        text = "".join(part.text for part in reply.parts if isinstance(part, Text))
        calls = [part for part in reply.parts if isinstance(part, ToolCall)]
        return text, [(call.id, call.name, json.loads(call.arguments)) for call in calls]

    def answer(self, results: list[tuple[str, str, bool]]) -> None:
        self._add(Message("user", tuple(ToolResult(*result) for result in results)))


async def attempt(model: Model, body: bytes, deltas: list[Delta] | None = None) -> Reply:
    return await model.attempt(body, None if deltas is None else deltas.append, idle_seconds=2.0)


async def ask_once(model: Model, *messages: Message, deltas: list[Delta] | None = None) -> Reply:
    head = model.codec.encode_head(model.name, "", SPECS, 100)
    bodies = [model.codec.encode_message(message, model.name) for message in messages]
    return await attempt(model, model.codec.join(head, bodies), deltas)


def user(*parts: Part | str) -> Message:
    return Message("user", tuple(Text(part) if isinstance(part, str) else part for part in parts))


def assistant(*parts: Part, model: str) -> Message:
    return Message("assistant", parts, model)


@both
@pytest.mark.parametrize("doubt", [0.0, 0.3])
async def test_the_real_job_is_never_refused(tmp_path: Path, name: str, doubt: float) -> None:
    repository = make_repository(tmp_path)
    async with open_model_server(think) as server, open_client({}) as client:
        model = open_model(name, environment=server.environment(), client=client)
        harness = TinyHarness(lambda prompt: CodecWire(model, prompt), repository.path, seed=3, doubt=doubt)
        assert await harness.run(PROMPT) == SUMMARY
        assert not server.refusals, server.refusals[0].problem
        assert prefix_breaks(server.requests) == []
        assert changed_results(server.requests) == {}
    assert repository.problems() == []


@both
@pytest.mark.parametrize(
    "result",
    [ToolResult("a", ""), ToolResult("a", "", is_error=True), ToolResult("a", " \n"), ToolResult("a", "x\0\u2028é")],
    ids=["empty", "empty error", "blank", "odd"],
)
async def test_any_result_is_accepted(name: str, result: ToolResult) -> None:
    async with open_model_server(echo) as server, open_client({}) as client:
        model = open_model(name, environment=server.environment(), client=client)
        call = assistant(Text(""), ToolCall("a", "bash", "{}"), model=name)
        await ask_once(model, user("go"), call, user(result))
        await ask_once(model, user("go"), call, user(result, "continue"))
        assert not server.refusals


@both
async def test_a_user_who_speaks_twice_is_accepted(name: str) -> None:
    async with open_model_server(echo) as server, open_client({}) as client:
        model = open_model(name, environment=server.environment(), client=client)
        await ask_once(model, user("go"), user("and on"))
        assert not server.refusals


@both
async def test_reasoning_of_another_model_is_left_out(name: str) -> None:
    async with open_model_server(echo) as server, open_client({}) as client:
        model = open_model(name, environment=server.environment(), client=client)
        thought = assistant(Thinking("Hm.", "not-a-signature"), Text("Well."), model="anthropic/another")
        await ask_once(model, user("go"), thought, user("on"))
        assert not server.refusals


@both
async def test_malformed_arguments_never_reach_the_server_again(name: str) -> None:
    def brain(conversation: server_side.Conversation) -> server_side.Reply:
        return server_side.Reply(calls=(server_side.Ask("bash", '{"command": "l'),))

    async with open_model_server(brain) as server, open_client({}) as client:
        model = open_model(name, environment=server.environment(), client=client)
        reply = await ask_once(model, user("go"))
        (call,) = [part for part in reply.parts if isinstance(part, ToolCall)]
        assert call.problem
        await ask_once(model, user("go"), assistant(*reply.parts, model=name), user(ToolResult(call.id, "no", True)))
        assert not server.refusals


@both
@pytest.mark.parametrize("after", [0, 150, 600])
@pytest.mark.parametrize(("kind", "seconds"), [("cut", 0.0), ("reset", 0.0), ("stall", math.inf), ("error", 0.0)])
async def test_a_reply_that_is_not_whole_is_a_transient_failure(
    name: str, kind: str, seconds: float, after: int
) -> None:
    def brain(conversation: server_side.Conversation) -> server_side.Fault:
        return server_side.Fault(kind=kind, after_bytes=after, seconds=seconds)  # type: ignore[arg-type]

    async with open_model_server(brain) as server, open_client({}) as client:
        model = open_model(name, environment=server.environment(), client=client)
        body = model.codec.join(
            model.codec.encode_head(model.name, "", (), 100), [model.codec.encode_message(user("go"), name)]
        )
        with pytest.raises(ModelError) as met:
            await model.attempt(body, None, idle_seconds=0.2)
    assert met.value.is_transient, met.value


@both
async def test_deltas_add_up_to_the_reply(name: str) -> None:
    async with open_model_server(echo) as server, open_client({}) as client:
        model = open_model(name, environment=server.environment(), client=client)
        deltas: list[Delta] = []
        reply = await ask_once(model, user("use bash: echo hello, and think"), deltas=deltas)
        assert "".join(delta.text for delta in deltas if delta.kind == "text") == "Running it."
        assert "".join(delta.text for delta in deltas if delta.kind == "thinking") == "Let me see."
        assert [delta.text for delta in deltas if delta.kind == "call"] == ["bash"]
        assert [type(part) for part in reply.parts] == [Thinking, Text, ToolCall]
        assert reply.stop == "tool_use"
        assert reply.usage.input > 0


@both
async def test_a_refused_key_says_what_to_do(name: str) -> None:
    async with open_model_server(echo, key="another-key-entirely") as server, open_client({}) as client:
        environment = {**server.environment(), "ANTHROPIC_API_KEY": "wrong-key-000", "OPENAI_API_KEY": "wrong-key-000"}
        model = open_model(name, environment=environment, client=client)
        with pytest.raises(ModelError) as met:
            await ask_once(model, user("go"))
    assert met.value.kind == "auth"
    assert "_API_KEY" in str(met.value)
    assert "wrong-key-000" not in str(met.value)

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio

from nanotrio.errors import ModelError
from nanotrio.messages import Message, Text, ToolCall, ToolResult, ToolSpec, Usage, text_of
from nanotrio.models import Delta, Model, Reply, open_model
from nanotrio.models.transport import Client, open_client

Serve = Callable[..., AbstractAsyncContextManager[Any]]

KEY = "sk-secret-0123456789"
ANSWER = (
    b'data: {"type":"message_start","message":{"id":"m","usage":{"input_tokens":5,"output_tokens":1}}}\n\n'
    b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}\n\n'
    b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}\n\n'
    b'data: {"type":"message_stop"}\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def body(model: Model, *messages: Message, tools: tuple[ToolSpec, ...] = ()) -> bytes:
    codec = model.codec
    head = codec.encode_head(model.name, "You are brief.", tools, 500)
    return codec.join(head, [codec.encode_message(message, model.name) for message in messages])


def anthropic(client: Client, url: str, **more: str) -> Model:
    environment = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url, **more}
    return open_model("anthropic/claude-sonnet-4-5", environment=environment, client=client)


HI = Message("user", (Text("hi"),))


async def ask(model: Model, emit: Callable[[Delta], None] | None = None, idle_seconds: float = 5.0) -> Reply:
    return await model.attempt(body(model, HI), emit, idle_seconds=idle_seconds)


def test_an_answer_streams_and_its_connection_is_used_again(serve: Serve) -> None:
    async def main() -> None:
        deltas: list[Delta] = []
        async with serve(lambda served: served.answer(ANSWER)) as server, open_client({}) as client:
            for _ in range(3):
                reply = await ask(anthropic(client, server.url), deltas.append)
                assert reply == Reply((Text("hi"),), "end", Usage(5, 2))
            assert server.connections == 1
            assert deltas == [Delta("text", "hi")] * 3
            request = server.requests[0]
            assert request.target == "/v1/messages"
            assert request.headers["x-api-key"] == KEY
            assert request.headers["anthropic-version"] == "2023-06-01"
            assert json.loads(request.body)["messages"][0]["content"][0]["text"] == "hi"

    trio.run(main)


@pytest.mark.parametrize(
    ("status", "document", "kind", "words"),
    [
        (401, {"error": {"type": "authentication_error", "message": f"bad {KEY}"}}, "auth", "check ANTHROPIC_API_KEY"),
        (404, {"error": {"type": "not_found_error", "message": "model: x"}}, "not_found", "check the model's name"),
        (529, {"error": {"type": "overloaded_error", "message": "Overloaded"}}, "rate_limited", "529: Overloaded"),
        (429, {"error": {"message": "insufficient quota"}}, "quota", "nothing left to spend"),
        (400, {"error": {"message": "prompt is too long"}}, "too_long", "too long"),
        (422, {"detail": [{"msg": "field\nmissing"}]}, "rejected", "missing"),
        (500, {}, "transient", "500"),
        (302, {}, "rejected", "302"),
        (200, {"error": {"type": "overloaded_error", "message": "Overloaded"}}, "rate_limited", "Overloaded"),
        (200, {"content": "whole"}, "rejected", "one JSON document"),
    ],
)
def test_a_refusal_says_what_to_do_without_secrets(
    serve: Serve, status: int, document: object, kind: str, words: str
) -> None:
    data = json.dumps(document).encode()

    async def main() -> None:
        handler = lambda served: served.answer(data, status=status, kind="application/json")  # noqa: E731
        async with serve(handler) as server, open_client({}) as client:
            with pytest.raises(ModelError, match=words) as caught:
                await ask(anthropic(client, server.url))
            assert caught.value.kind == kind
            assert caught.value.status == status
            assert KEY not in str(caught.value)
            assert "\n" not in str(caught.value)
            assert "claude-sonnet-4-5" in str(caught.value)

    trio.run(main)


@pytest.mark.parametrize(
    ("more", "seconds"), [("retry-after: 3\r\n", 3.0), ("retry-after-ms: 500\r\n", 0.5), ("", None)]
)
def test_the_stated_time_comes_with_the_error(serve: Serve, more: str, seconds: float | None) -> None:
    async def main() -> None:
        handler = lambda served: served.answer(b"busy", status=429, kind="text/plain", more=more)  # noqa: E731
        async with serve(handler) as server, open_client({}) as client:
            with pytest.raises(ModelError, match="429: busy") as caught:
                await ask(anthropic(client, server.url))
            assert caught.value.retry_after_seconds == seconds
            assert caught.value.is_transient

    trio.run(main)


def test_a_stream_that_ends_early_is_transient_with_the_usage_so_far(serve: Serve) -> None:
    async def handler(served: Any) -> None:
        await served.send(HEAD + ANSWER[:250])
        await served.stream.aclose()

    async def main() -> None:
        async with serve(handler) as server, open_client({}) as client:
            with pytest.raises(ModelError, match="stopped before its end") as caught:
                await ask(anthropic(client, server.url))
            assert caught.value.kind == "transient"
            assert caught.value.usage == Usage(5, 1)

    trio.run(main)


def test_a_connection_lost_in_the_middle_is_transient_with_the_usage_so_far(serve: Serve) -> None:
    async def handler(served: Any) -> None:
        await served.send(HEAD[:-2] + b"content-length: 9999\r\n\r\n" + ANSWER[:250])
        await served.stream.aclose()

    async def main() -> None:
        async with serve(handler) as server, open_client({}) as client:
            with pytest.raises(ModelError, match="was lost") as caught:
                await ask(anthropic(client, server.url))
            assert caught.value.kind == "transient"
            assert caught.value.usage == Usage(5, 1)

    trio.run(main)


def test_silence_ends_an_attempt_but_comments_are_life(serve: Serve) -> None:
    async def silent(served: Any) -> None:
        await served.send(HEAD + ANSWER[:250])
        await trio.sleep_forever()

    async def chatty(served: Any) -> None:
        await served.send(HEAD)
        for _ in range(8):
            await trio.sleep(0.05)
            await served.send(b": ping\n\n")
        await served.send(ANSWER)
        await served.stream.aclose()

    async def main() -> None:
        async with open_client({}) as client:
            async with serve(silent) as server:
                with pytest.raises(ModelError, match=r"silent for 0.05 s") as caught:
                    await ask(anthropic(client, server.url), idle_seconds=0.05)
                assert caught.value.kind == "transient"
                assert caught.value.usage == Usage(5, 1)
            async with serve(chatty) as server:
                assert (await ask(anthropic(client, server.url), idle_seconds=0.3)).stop == "end"

    trio.run(main)


def test_an_address_where_nobody_listens_is_named() -> None:
    async def main() -> None:
        async with open_client({}) as client:
            with pytest.raises(ModelError, match=r"cannot reach http://127.0.0.1:9 .*ANTHROPIC_BASE_URL") as caught:
                await ask(anthropic(client, "http://127.0.0.1:9"))
            assert caught.value.kind == "unreachable"

    trio.run(main)


@pytest.mark.parametrize("host", ["x" * 70, "no-such-host.invalid", "a..b"])
def test_a_host_that_cannot_be_looked_up_is_unreachable(host: str) -> None:
    async def main() -> None:
        async with open_client({}) as client:
            with pytest.raises(ModelError) as caught:
                await ask(anthropic(client, f"http://{host}/"))
            assert caught.value.kind in ("unreachable", "rejected")
            assert "\n" not in str(caught.value)

    trio.run(main)


def test_a_refusal_before_the_request_was_read_is_told(serve: Serve) -> None:
    data = b'{"error":{"message":"request too large"}}'
    response = b"HTTP/1.1 413 X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(data) + data

    async def early(stream: trio.SocketStream) -> None:
        await stream.receive_some(1000)
        await stream.send_all(response)
        await stream.send_eof()
        await trio.sleep(0.05)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, early, 0)
            async with open_client({}) as client:
                model = anthropic(client, f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}")
                large = Message("user", (Text("x" * 20_000_000),))
                with pytest.raises(ModelError) as caught:
                    await model.attempt(body(model, large), None, idle_seconds=5)
                assert caught.value.kind in ("too_long", "transient")  # a reset may overtake the answer
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_cancelled_attempt_frees_its_slot_at_once(serve: Serve) -> None:
    async def main() -> None:
        answering = False

        async def handler(served: Any) -> None:
            if answering:
                await served.answer(ANSWER)
            else:
                await served.send(HEAD + ANSWER[:100])

        async with serve(handler) as server, open_client({}, max_connections=1) as client:
            for _ in range(5):
                with trio.move_on_after(0.02) as scope:
                    await ask(anthropic(client, server.url))
                assert scope.cancelled_caught
            answering = True
            with trio.fail_after(2):
                assert (await ask(anthropic(client, server.url))).stop == "end"

    trio.run(main)


def test_a_server_that_tells_no_usage_gets_an_estimate(serve: Serve) -> None:
    data = b'data: {"choices":[{"delta":{"content":"123456"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

    async def main() -> None:
        async with serve(lambda served: served.answer(data)) as server, open_client({}) as client:
            model = open_model("openai-chat/local", environment={"OPENAI_BASE_URL": server.url}, client=client)
            reply = await ask(model)
            assert reply.usage.input == len(server.requests[0].body) // 3 + 1
            assert reply.usage.output == 3
            assert "authorization" not in server.requests[0].headers
            assert json.loads(server.requests[0].body)["max_tokens"] == 500

    trio.run(main)


# A model server that others wrote: PyPI llmock, in a process of its own.

TOOL = ToolSpec(
    "get_weather",
    "Get the current weather for a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


@pytest.fixture(scope="module")
def llmock_url() -> Iterator[str]:
    pytest.importorskip("llmock")
    program = [sys.executable, "-c", "from llmock.cli import app; app()", "serve", "--port", "0", "--host", "127.0.0.1"]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "COLUMNS": "200"}
    ) as process:
        try:
            assert process.stdout is not None
            seen = ""
            for line in process.stdout:
                seen += line
                found = re.search(r"running on (http://127\.0\.0\.1:[1-9]\d*)", line)
                if found:
                    break
            else:
                pytest.fail(f"llmock did not start: {seen}")
            yield found[1]
        finally:
            process.send_signal(signal.SIGTERM)


@pytest.fixture(params=["anthropic", "openai-chat"])
def llmock_environment(request: pytest.FixtureRequest, llmock_url: str) -> tuple[str, dict[str, str]]:
    if request.param == "anthropic":
        name = "anthropic/claude-sonnet-4-6"
        return name, {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": f"{llmock_url}/anthropic"}
    return "openai-chat/gpt-4o", {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{llmock_url}/v1"}


async def script(client: Client, url: str, *behaviors: dict[str, Any]) -> None:
    await client.post(f"{url}/_llmock/reset")
    if behaviors:
        response = await client.post(f"{url}/_llmock/scenario", json={"behaviors": list(behaviors)})
        assert response.status_code == 201, response.text


def test_llmock_streams_a_text_answer(llmock_environment: tuple[str, dict[str, str]], llmock_url: str) -> None:
    name, environment = llmock_environment

    async def main() -> None:
        deltas: list[Delta] = []
        async with open_client({}) as client:
            await script(client, llmock_url)
            reply = await ask(open_model(name, environment=environment, client=client), deltas.append)
            assert reply.stop == "end"
            assert reply.usage.input > 0
            assert reply.usage.output > 0
            said = text_of(Message("assistant", reply.parts))
            assert said
            assert "".join(delta.text for delta in deltas) == said
            assert len(deltas) > 1

    trio.run(main)


def test_llmock_runs_a_tool_loop(llmock_environment: tuple[str, dict[str, str]], llmock_url: str) -> None:
    name, environment = llmock_environment

    async def main() -> None:
        async with open_client({}) as client:
            await script(client, llmock_url)
            model = open_model(name, environment=environment, client=client)
            asked = Message("user", (Text("What is the weather in Paris?"),))
            first = await model.attempt(body(model, asked, tools=(TOOL,)), None, idle_seconds=5)
            assert first.stop == "tool_use"
            calls = [part for part in first.parts if isinstance(part, ToolCall)]
            assert calls[0].name == "get_weather"
            assert "city" in json.loads(calls[0].arguments)
            results = Message("user", tuple(ToolResult(call.id, "21C") for call in calls))
            talk = (asked, Message("assistant", first.parts, name), results)
            second = await model.attempt(body(model, *talk, tools=(TOOL,)), None, idle_seconds=5)
            assert second.stop == "end"
            assert any(isinstance(part, Text) for part in second.parts)

    trio.run(main)


@pytest.mark.parametrize(
    ("behavior", "kind"),
    [
        ({"type": "fail", "status": 500}, "transient"),
        ({"type": "fail", "status": 429, "retry_after": 2}, "rate_limited"),
        ({"type": "fail", "status": 401}, "auth"),
        ({"type": "stream_fault", "kind": "truncate", "after_chunks": 3}, "transient"),
        ({"type": "stream_fault", "kind": "disconnect", "after_chunks": 3}, "transient"),
        ({"type": "stream_fault", "kind": "malformed", "after_chunks": 2}, "transient"),
    ],
)
def test_llmock_faults_are_told_by_kind(
    llmock_environment: tuple[str, dict[str, str]], llmock_url: str, behavior: dict[str, Any], kind: str
) -> None:
    name, environment = llmock_environment

    async def main() -> None:
        async with open_client({}) as client:
            await script(client, llmock_url, behavior)
            model = open_model(name, environment=environment, client=client)
            with pytest.raises(ModelError) as caught:
                await ask(model)
            assert caught.value.kind == kind
            if "retry_after" in behavior:
                assert caught.value.retry_after_seconds == 2
            assert (await ask(model)).stop == "end"

    trio.run(main)

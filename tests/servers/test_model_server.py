"""The strict server accepts what is right and refuses what is wrong, in both wire formats."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.servers.conversation import Ask, Conversation, Fault, Reply
from tests.servers.model_server import KEY, open_model_server
from tests.servers.request_log import Seen, changed_results, prefix_breaks, read_log
from tests.servers.server_process import server_process

Json = dict[str, Any]
_PATHS = {"anthropic": "/v1/messages", "openai-chat": "/v1/chat/completions"}
_HEADERS = {"x-api-key": KEY, "authorization": f"Bearer {KEY}", "anthropic-version": "2023-06-01"}
_NAMES = ("bash", "read")


def brain(conversation: Conversation) -> Reply | Fault:
    """Ask for two tools, then finish; or do what the prompt names."""
    prompt = conversation.prompt
    if prompt.startswith("fault "):
        _, kind, after = prompt.split()
        return Fault(kind=kind, after_bytes=int(after), reply=Reply(text="a whole answer"), status=529, seconds=0.01)  # type: ignore[arg-type]
    if prompt == "broken call":
        return Reply(calls=(Ask("bash", '{"command": "ls'),))
    if conversation.said[-1].results:
        return Reply(text="Done.", thinking="Enough.")
    return Reply(text="Two things.", thinking="Hm.", calls=(Ask("bash", {"command": "ls"}), Ask("read", {"path": "ä"})))


def _body(wire: str, messages: list[Json], **more: Any) -> Json:
    if wire == "anthropic":
        tools: list[Json] = [{"name": name, "input_schema": {"type": "object"}} for name in _NAMES]
        return {"model": "m", "max_tokens": 100, "tools": tools, **more, "messages": messages}
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in _NAMES]
    return {"model": "m", "tools": tools, **more, "messages": messages}


def _turn(wire: str, ids: tuple[str, ...], arguments: Any = None, **more: Any) -> Json:
    """An assistant's message with calls of bash."""
    if wire == "anthropic":
        calls = [{"type": "tool_use", "id": one, "name": "bash", "input": arguments or {}, **more} for one in ids]
        return {"role": "assistant", "content": calls}
    function = {"name": "bash", "arguments": "{}" if arguments is None else arguments, **more}
    return {"role": "assistant", "tool_calls": [{"id": one, "type": "function", "function": function} for one in ids]}


def _results(wire: str, ids: tuple[str, ...]) -> list[Json]:
    if wire == "openai-chat":
        return [{"role": "tool", "tool_call_id": one, "content": "fine"} for one in ids]
    return [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": one, "content": "fine"} for one in ids]}
    ]


def _user(text: str) -> Json:
    return {"role": "user", "content": text}


class _Client:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def post(self, wire: str, body: Json | bytes, **headers: str | None) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-type": "application/json", **_HEADERS, **{k.replace("_", "-"): v for k, v in headers.items()}}
        kept = {name: value for name, value in given.items() if value is not None}
        return await self._http.post(_PATHS[wire], content=content, headers=kept)


def _run(use: Callable[[_Client], Awaitable[None]]) -> list[Seen]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[_Client, list[Seen]]]:
        async with open_model_server(brain) as server, httpx.AsyncClient(base_url=server.url, timeout=5) as http:
            yield _Client(http), server.requests

    async def main() -> list[Seen]:
        async with opened() as (client, requests):
            await use(client)
            return list(requests)

    return trio.run(main)


def _status_of(wire: str, body: Json | bytes, **headers: str | None) -> tuple[int, Json]:
    found: list[tuple[int, Json]] = []

    async def use(client: _Client) -> None:
        answer = await client.post(wire, body, **headers)
        found.append((answer.status_code, answer.json()))

    _run(use)
    return found[0]


both = pytest.mark.parametrize("wire", ["anthropic", "openai-chat"])


def _good(wire: str) -> list[Json]:
    return [_user("go"), _turn(wire, ("a", "b")), *_results(wire, ("a", "b"))]


@both
@pytest.mark.parametrize(
    "name", ["plain", "answered calls", "a text after results", "two texts of the user in a row", "two steps"]
)
def test_accepts(wire: str, name: str) -> None:
    messages = {
        "plain": [_user("go")],
        "answered calls": _good(wire),
        "a text after results": [*_good(wire), _user("continue")],
        "two texts of the user in a row": [_user("go"), _user("on")],
        "two steps": [*_good(wire), _turn(wire, ("c",)), *_results(wire, ("c",))],
    }[name]

    status, answer = _status_of(wire, _body(wire, messages))

    assert status == 200, answer


@both
@pytest.mark.parametrize(
    "name",
    [
        "no result",
        "one of two results",
        "a repeated result",
        "results in the wrong order",
        "an unknown result",
        "a result without a call",
        "a text between calls and results",
        "results told twice",
        "a call id used twice",
        "a call id used again later",
        "arguments that are no object",
        "a tool that is not declared",
        "an assistant first",
        "an assistant last",
        "two assistants in a row",
        "an empty text",
        "an empty list of messages",
        "an empty assistant",
        "an unknown role",
        "an unknown field in a message",
    ],
)
def test_refuses(wire: str, name: str) -> None:
    calls = _turn(wire, ("a", "b"))
    broken = [] if wire == "anthropic" else "[1]"
    messages = {
        "no result": [_user("go"), calls, _user("on")],
        "one of two results": [_user("go"), calls, *_results(wire, ("a",)), _user("on")],
        "a repeated result": [_user("go"), calls, *_results(wire, ("a", "a", "b"))],
        "results in the wrong order": [_user("go"), calls, *_results(wire, ("b", "a"))],
        "an unknown result": [_user("go"), calls, *_results(wire, ("a", "b", "c"))],
        "a result without a call": [_user("go"), *_results(wire, ("a",))],
        "a text between calls and results": [_user("go"), calls, _user("wait"), *_results(wire, ("a", "b"))],
        "results told twice": [*_good(wire), *_results(wire, ("a", "b"))],
        "a call id used twice": [_user("go"), _turn(wire, ("a", "a")), *_results(wire, ("a", "a"))],
        "a call id used again later": [*_good(wire), _turn(wire, ("a",)), *_results(wire, ("a",))],
        "arguments that are no object": [
            _user("go"),
            _turn(wire, ("a",), arguments=broken or [1]),
            *_results(wire, ("a",)),
        ],
        "a tool that is not declared": [_user("go"), _turn(wire, ("a",), name="launch"), *_results(wire, ("a",))],
        "an assistant first": [{"role": "assistant", "content": "hi"}, _user("go")],
        "an assistant last": [_user("go"), {"role": "assistant", "content": "hi"}],
        "two assistants in a row": [_user("go"), *[{"role": "assistant", "content": "hi"}] * 2, _user("go")],
        "an empty text": [_user("")],
        "an empty list of messages": [],
        "an empty assistant": [_user("go"), {"role": "assistant", "content": None}, _user("on")],
        "an unknown role": [{"role": "robot", "content": "go"}],
        "an unknown field in a message": [{"role": "user", "content": "go", "seq": 7}],
    }[name]

    status, answer = _status_of(wire, _body(wire, messages))

    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["message"]


@both
@pytest.mark.parametrize(
    "fields", [{"colour": "red"}, {"max_tokens": 0}, {"stream": "yes"}, {"tools": "all"}, {"model": None}]
)
def test_refuses_wrong_fields_at_the_top(wire: str, fields: Json) -> None:
    assert _status_of(wire, _body(wire, [_user("go")], **fields))[0] == 400


def test_anthropic_asks_for_max_tokens_and_version() -> None:
    body = _body("anthropic", [_user("go")])
    del body["max_tokens"]

    assert "max_tokens: Field required" in _status_of("anthropic", body)[1]["error"]["message"]
    headerless = _status_of("anthropic", _body("anthropic", [_user("go")]), anthropic_version=None)
    assert "anthropic-version" in headerless[1]["error"]["message"]


def test_openai_takes_stream_options_only_with_a_stream() -> None:
    assert (
        _status_of("openai-chat", _body("openai-chat", [_user("go")], stream_options={"include_usage": True}))[0] == 400
    )


@both
def test_refuses_what_is_not_json(wire: str) -> None:
    assert _status_of(wire, b'{"model": ')[0] == 400


@both
@pytest.mark.parametrize("key", ["none", KEY[:-1]])
def test_refuses_a_wrong_key(wire: str, key: str) -> None:
    status, answer = _status_of(wire, _body(wire, [_user("go")]), x_api_key=key, authorization=f"Bearer {key}")

    assert status == 401
    assert KEY not in json.dumps(answer)


@both
def test_an_unknown_model_is_not_found(wire: str) -> None:
    assert _status_of(wire, _body(wire, [_user("go")], model="unknown-9"))[0] == 404


def test_signed_reasoning_must_come_back_unaltered() -> None:
    async def use(client: _Client) -> None:
        first = (await client.post("anthropic", _body("anthropic", [_user("go")]))).json()["content"]
        ids = tuple(block["id"] for block in first if block["type"] == "tool_use")

        async def status(content: list[Json], model: str = "m") -> int:
            messages = [_user("go"), {"role": "assistant", "content": content}, *_results("anthropic", ids)]
            return (await client.post("anthropic", _body("anthropic", messages, model=model))).status_code

        thought, *rest = first
        assert thought["type"] == "thinking"
        assert await status(first) == 200
        assert await status([{**thought, "thinking": "Ha."}, *rest]) == 400
        assert await status([{**thought, "signature": "AAAA"}, *rest]) == 400
        assert await status(rest) == 400, "reasoning must not be dropped for the same model"
        assert await status(first, model="other") == 400, "it must be dropped for another"
        assert await status(rest, model="other") == 200
        assert await status([*rest, thought]) == 400

    _run(use)


@both
def test_calls_must_come_back_unaltered(wire: str) -> None:
    async def use(client: _Client) -> None:
        first = (await client.post(wire, _body(wire, [_user("go")]))).json()
        text = json.dumps(first["content"] if wire == "anthropic" else first["choices"][0]["message"]["tool_calls"])
        assert "ls" in text
        for wrong, status in ((text, 200), (text.replace("ls", "rm"), 400)):
            calls = json.loads(wrong)
            ids = tuple(call["id"] for call in calls if call["type"] != "text" and "id" in call)
            content = {"content": calls} if wire == "anthropic" else {"tool_calls": calls}
            messages = [_user("go"), {"role": "assistant", **content}, *_results(wire, ids)]
            assert (await client.post(wire, _body(wire, messages))).status_code == status

    _run(use)


def _data(response: httpx.Response) -> list[Json]:
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_anthropic_streams_the_documented_events() -> None:
    async def use(client: _Client) -> None:
        response = await client.post("anthropic", _body("anthropic", [_user("go")], stream=True))
        events = _data(response)
        kinds = [event["type"] for event in events]
        assert kinds[0] == "message_start"
        assert kinds[-2:] == ["message_delta", "message_stop"]
        starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
        assert starts == ["thinking", "text", "tool_use", "tool_use"]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta" and event["index"] == 3]
        assert json.loads("".join(delta["partial_json"] for delta in deltas)) == {"path": "ä"}
        assert events[-2]["delta"]["stop_reason"] == "tool_use"
        assert any(d["delta"]["type"] == "signature_delta" for d in events if d["type"] == "content_block_delta")

    _run(use)


def test_openai_streams_parallel_calls_and_usage() -> None:
    async def use(client: _Client) -> None:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        response = await client.post("openai-chat", _body("openai-chat", [_user("go")], **options))
        assert response.text.endswith("data: [DONE]\n\n")
        chunks = _data(response)
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["total_tokens"] > 0
        calls = [call for chunk in chunks[:-1] for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
        assert [call["index"] for call in calls if "id" in call] == [0, 1]
        assert json.loads("".join(c["function"]["arguments"] for c in calls if c["index"] == 1)) == {"path": "ä"}
        assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"

    _run(use)


@both
def test_faults_go_out_as_asked(wire: str) -> None:
    async def use(client: _Client) -> None:
        async def text(prompt: str) -> str:
            return (await client.post(wire, _body(wire, [_user(prompt)], stream=True))).text

        whole = await text("fault stall 40")
        assert "message_stop" in whole or "[DONE]" in whole
        assert len(await text("fault cut 40")) == 40
        assert "error" in await text("fault error 0")
        assert (await client.post(wire, _body(wire, [_user("fault status 0")]))).status_code == 529
        with pytest.raises(httpx.TransportError):
            await text("fault reset 40")
        broken = await client.post(wire, _body(wire, [_user("broken call")], stream=True))
        assert '{\\"command\\": \\' in broken.text

    _run(use)


def test_the_log_shows_lost_prefixes_and_changed_results() -> None:
    def seen(number: int, *messages: Json) -> Seen:
        return Seen(number=number, path="/v1/messages", body=json.dumps({"model": "m", "messages": messages}).encode())

    turn, (results,) = _turn("anthropic", ("a",)), _results("anthropic", ("a",))
    marked = json.loads(json.dumps(results))
    marked["content"][0]["cache_control"] = {"type": "ephemeral"}
    other = _results("anthropic", ("a",))[0]
    other["content"][0]["content"] = "not fine"
    good = [
        seen(1, _user("go")),
        seen(2, _user("go"), turn, marked),
        seen(3, _user("go"), turn, results, turn, results),
    ]

    assert prefix_breaks(good) == []
    assert changed_results(good) == {}
    bad = [*good, seen(4, _user("go"), turn, other)]
    assert prefix_breaks([*bad, seen(5, _user("went"), turn, results)]) == [5]
    assert list(changed_results(bad)) == ["a"]


def test_a_server_process_serves_and_logs(tmp_path: Path) -> None:
    with server_process("echo", tmp_path / "requests.jsonl") as server:
        headers = {**_HEADERS, "content-type": "application/json"}
        with httpx.Client(base_url=server.url, headers=headers) as client:
            answer = client.post("/v1/messages", json=_body("anthropic", [_user("use bash: ls")])).json()
            assert answer["content"][1]["input"] == {"command": "ls"}
            assert client.post("/v1/messages", json={}).status_code == 400
        first, second = server.requests()
        assert (first.status, first.whole, second.status) == (200, True, 400)
        assert [seen.number for seen in server.refusals()] == [2]
    assert read_log(tmp_path / "requests.jsonl")[0].decoded()["model"] == "m"

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanotrio.errors import ModelError
from nanotrio.messages import Message, Text, Thinking, ToolCall, ToolResult, ToolSpec, Usage
from nanotrio.models import AnthropicCodec, AnthropicDecoder, Delta, Reply

MODEL = "anthropic/claude-sonnet-4-5"
TOOL = ToolSpec("bash", "Run a command.", {"type": "object", "properties": {"command": {"type": "string"}}})


def start(**usage: int) -> dict[str, Any]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": []}
    return {"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}}


def block(index: int, content_block: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": content_block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text(index: int, *pieces: str) -> list[dict[str, Any]]:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def call(index: int, name: str, *pieces: str) -> list[dict[str, Any]]:
    opened = {"type": "tool_use", "id": f"toolu_{index}", "name": name, "input": {}}
    return block(index, opened, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def end(stop_reason: str, **usage: int) -> list[dict[str, Any]]:
    delta = {"stop_reason": stop_reason, "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


PING = {"type": "ping"}
RICH = [
    start(input_tokens=25, output_tokens=1, cache_read_input_tokens=100, cache_creation_input_tokens=7),
    *block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Let me "},
        {"type": "thinking_delta", "thinking": "look."},
        {"type": "signature_delta", "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk="},
    ),
    PING,
    *block(1, {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3p"}),
    *text(2, "Z", "\N{LATIN SMALL LETTER E WITH ACUTE} ", "\N{GRINNING FACE}"),
    *call(3, "bash", "", '{"comm', 'and": "l', 's"}'),
    *call(4, "submit", ""),
    *end("tool_use", output_tokens=89),
]


def test_a_rich_reply_is_read_the_same_however_it_is_cut(
    anthropic_stream: Callable[..., bytes], decode_every_way: Callable[..., tuple[list[Delta], Reply]]
) -> None:
    deltas, reply = decode_every_way(AnthropicDecoder, anthropic_stream(*RICH))
    assert reply == Reply(
        (
            Thinking("Let me look.", "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk="),
            Thinking("", "", "EmwKAhgBEgy3va3p"),
            Text("Z\N{LATIN SMALL LETTER E WITH ACUTE} \N{GRINNING FACE}"),
            ToolCall("toolu_3", "bash", '{"command": "ls"}'),
            ToolCall("toolu_4", "submit", "{}"),
        ),
        "tool_use",
        Usage(25, 89, 100, 7),
    )
    assert [delta for delta in deltas if delta.kind == "call"] == [Delta("call", "bash"), Delta("call", "submit")]
    assert "".join(delta.text for delta in deltas if delta.kind == "thinking") == "Let me look."


@given(st.lists(st.integers(0, 3000), max_size=10))
def test_any_cuts_give_the_same_reply(cuts: list[int]) -> None:
    body = "".join(f"event: {event['type']}\r\ndata: {json.dumps(event)}\r\n\r\n" for event in RICH).encode()
    points = sorted({min(cut, len(body)) for cut in cuts})
    decoder, whole = AnthropicDecoder(), AnthropicDecoder()
    items = []
    for begin, stop in zip([0, *points], [*points, len(body)], strict=True):
        items += decoder.receive_data(body[begin:stop])
    assert items == whole.receive_data(body)


def test_a_body_that_ends_anywhere_before_its_end_is_a_transient_failure_with_its_usage(
    anthropic_stream: Callable[..., bytes], truncate_every_way: Callable[..., list[ModelError | None]]
) -> None:
    body = anthropic_stream(*RICH)
    outcomes = truncate_every_way(AnthropicDecoder, body)
    assert outcomes[-1] is None
    assert all(error is not None and error.kind == "transient" for error in outcomes[:-1])
    usages = [error.usage for error in outcomes if error is not None]
    assert usages[0] is None
    assert usages[len(body) // 2] == Usage(25, 1, 100, 7)
    assert usages[-1] == Usage(25, 89, 100, 7)


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "end"),
        ("max_tokens", "max_tokens"),
        ("model_context_window_exceeded", "max_tokens"),
        ("pause_turn", "pause"),
        ("refusal", "refusal"),
        ("something_new", "end"),
        ("tool_use", "end"),
    ],
)
def test_stop_reasons(
    reason: str, stop: str, anthropic_stream: Callable[..., bytes], decode: Callable[..., tuple[list[Delta], Reply]]
) -> None:
    _, reply = decode(AnthropicDecoder(), [anthropic_stream(start(), *text(0, "x"), *end(reason))])
    assert reply.stop == stop


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("overloaded_error", "rate_limited"),
        ("rate_limit_error", "rate_limited"),
        ("api_error", "transient"),
        ("authentication_error", "auth"),
        ("invalid_request_error", "rejected"),
    ],
)
def test_an_error_event_after_200_is_an_error_of_its_kind(
    name: str, kind: str, anthropic_stream: Callable[..., bytes]
) -> None:
    error = {"type": "error", "error": {"type": name, "message": "Overloaded"}}
    with pytest.raises(ModelError, match="Overloaded") as caught:
        AnthropicDecoder().receive_data(anthropic_stream(start(input_tokens=3), *text(0, "x"), error))
    assert caught.value.kind == kind
    assert caught.value.usage == Usage(3)


@pytest.mark.parametrize(
    "data", [b"not json", b"[1]", b'{"type":1}', b'{"type":"content_block_delta","index":9,"delta":{"text":"x"}}']
)
def test_a_broken_stream_is_a_transient_failure(data: bytes) -> None:
    with pytest.raises(ModelError) as caught:
        AnthropicDecoder().receive_data(b"data: " + data + b"\n\n")
    assert caught.value.kind == "transient"


def test_unknown_events_and_blocks_mean_nothing(
    anthropic_stream: Callable[..., bytes], decode: Callable[..., tuple[list[Delta], Reply]]
) -> None:
    body = anthropic_stream(
        start(), {"type": "novelty"}, *block(0, {"type": "server_tool_use", "id": "x"}), *text(1, "a"), *end("end_turn")
    )
    assert decode(AnthropicDecoder(), [body])[1].parts == (Text("a"),)


@pytest.mark.parametrize("pieces", [['{"a":'], ["null"], ["[1]"], ['{"a":"x\ny"}'], ["\x00"]])
def test_a_call_with_bad_json_carries_its_problem(
    pieces: list[str], anthropic_stream: Callable[..., bytes], decode: Callable[..., tuple[list[Delta], Reply]]
) -> None:
    body = anthropic_stream(start(), *call(0, "bash", *pieces), *end("tool_use"))
    (part,) = decode(AnthropicDecoder(), [body])[1].parts
    assert isinstance(part, ToolCall)
    assert part.arguments == "{}"
    assert part.problem


def test_only_the_call_that_the_output_limit_cut_carries_a_problem(
    anthropic_stream: Callable[..., bytes], decode: Callable[..., tuple[list[Delta], Reply]]
) -> None:
    body = anthropic_stream(start(), *call(0, "a", '{"x":1}'), *call(1, "b", ""), *end("max_tokens"))
    _, reply = decode(AnthropicDecoder(), [body])
    assert reply.stop == "max_tokens"
    assert [bool(part.problem) for part in reply.parts if isinstance(part, ToolCall)] == [False, True]


def test_a_surrogate_pair_cut_over_two_events_is_joined(decode: Callable[..., tuple[list[Delta], Reply]]) -> None:
    body = b"".join(
        b"data: " + data + b"\n\n"
        for data in (
            b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',
            b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\ud83d"}}',
            b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\ude00 \\ud800"}}',
            b'{"type":"message_stop"}',
        )
    )
    assert decode(AnthropicDecoder(), [body])[1].parts == (Text("\N{GRINNING FACE} \N{REPLACEMENT CHARACTER}"),)


CONVERSATION = [
    Message("user", (Text("hi"),)),
    Message(
        "assistant", (Thinking("t", "sig=="), Thinking("", "", "opaque"), ToolCall("c1", "bash", '{"a":1}')), MODEL
    ),
    Message("user", (ToolResult("c1", "out"), Text("and more"))),
    Message("assistant", (Text("done"),), MODEL),
    Message("user", (Text("again"),)),
]


def request(codec: AnthropicCodec, messages: list[Message], model: str = MODEL) -> bytes:
    head = codec.encode_head(model, "Be brief.", [TOOL], 100)
    return codec.join(head, [codec.encode_message(message, model) for message in messages])


def test_a_request_has_the_documented_form() -> None:
    document = json.loads(request(AnthropicCodec(), CONVERSATION[:3]))
    marker = {"type": "ephemeral"}
    assert list(document)[-1] == "messages"
    assert document == {
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "stream": True,
        "tools": [
            {
                "name": "bash",
                "description": "Run a command.",
                "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
                "cache_control": marker,
            }
        ],
        "system": [{"type": "text", "text": "Be brief.", "cache_control": marker}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "t", "signature": "sig=="},
                    {"type": "redacted_thinking", "data": "opaque"},
                    {"type": "tool_use", "id": "c1", "name": "bash", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "out"},
                    {"type": "text", "text": "and more", "cache_control": marker},
                ],
            },
        ],
    }


def test_each_request_begins_with_the_bytes_of_the_one_before_markers_and_closing_apart() -> None:
    codec = AnthropicCodec()
    marker = b',"cache_control":{"type":"ephemeral"}}]}]}'
    bodies = [request(codec, CONVERSATION[:count]) for count in (1, 3, 5)]
    for earlier, later in pairwise(bodies):
        assert earlier.endswith(marker)
        assert later.startswith(earlier.removesuffix(marker))


def test_thinking_of_another_model_and_unsigned_thinking_are_dropped_whole() -> None:
    codec = AnthropicCodec()
    other = json.loads(codec.encode_message(CONVERSATION[1], "anthropic/claude-opus-4-5"))
    assert [part["type"] for part in other["content"]] == ["tool_use"]
    assert codec.encode_message(Message("assistant", (Thinking("plain"),), MODEL), MODEL) == b""
    signed = codec.encode_message(Message("assistant", (Thinking("", "sig"),), MODEL), MODEL)
    assert json.loads(signed)["content"] == [{"type": "thinking", "thinking": "", "signature": "sig"}]


def test_a_message_that_ends_in_thinking_gets_no_marker() -> None:
    body = request(AnthropicCodec(), [CONVERSATION[0], Message("assistant", (Thinking("t", "s"),), MODEL)])
    assert json.loads(body)["messages"][-1] == {
        "content": [{"type": "thinking", "thinking": "t", "signature": "s"}],
        "role": "assistant",
    }


def test_empty_text_is_never_sent() -> None:
    codec = AnthropicCodec()
    parts = (Text(""), Text(" \n"), ToolResult("c", ""), Text("x"))
    content = json.loads(codec.encode_message(Message("user", parts), MODEL))["content"]
    assert content == [{"type": "tool_result", "tool_use_id": "c"}, {"type": "text", "text": "x"}]
    assert codec.encode_message(Message("assistant", (Text(""),), MODEL), MODEL) == b""
    assert json.loads(codec.join(codec.encode_head(MODEL, "", [], 9), [b"", b""]))["messages"] == []


def test_results_come_before_text_and_errors_are_marked() -> None:
    message = Message("user", (Text("x"), ToolResult("a", "no", is_error=True)))
    content = json.loads(AnthropicCodec().encode_message(message, MODEL))["content"]
    assert content[0] == {"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": True}


def test_foreign_ids_and_names_are_made_acceptable_alike_in_call_and_result() -> None:
    codec = AnthropicCodec()
    asked = codec.encode_message(Message("assistant", (ToolCall("functions.f:0", "a b", "{}"),)), MODEL)
    answered = codec.encode_message(Message("user", (ToolResult("functions.f:0", "x"),)), MODEL)
    assert json.loads(asked)["content"][0]["id"] == "functions_f_0"
    assert json.loads(asked)["content"][0]["name"] == "a_b"
    assert json.loads(answered)["content"][0]["tool_use_id"] == "functions_f_0"


def test_what_was_decoded_is_sent_back_byte_for_byte(
    anthropic_stream: Callable[..., bytes], decode: Callable[..., tuple[list[Delta], Reply]]
) -> None:
    _, reply = decode(AnthropicDecoder(), [anthropic_stream(*RICH)])
    stored = msgspec.json.decode(msgspec.json.encode(Message("assistant", reply.parts, MODEL)), type=Message)
    content = json.loads(AnthropicCodec().encode_message(stored, MODEL))["content"]
    assert content[0]["signature"] == "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk="
    assert content[0]["thinking"] == "Let me look."
    assert content[3] == {"type": "tool_use", "id": "toolu_3", "name": "bash", "input": {"command": "ls"}}


def test_tools_in_another_order_give_the_same_bytes() -> None:
    codec = AnthropicCodec()
    tools = [ToolSpec(name, "", {"type": "object"}) for name in ("write", "bash", "read")]
    assert codec.encode_head(MODEL, "s", tools, 9) == codec.encode_head(MODEL, "s", tools[::-1], 9)

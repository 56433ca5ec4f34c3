from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanotrio.errors import ModelError
from nanotrio.messages import Message, Text, Thinking, ToolCall, ToolResult, ToolSpec, Usage
from nanotrio.models import Delta, OpenAIChatCodec, OpenAIChatDecoder, Reply

MODEL = "openai-chat/gpt-4o"
TOOL = ToolSpec("bash", "Run a command.", {"type": "object", "properties": {}})
DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    shape = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
    return {**shape, "choices": choices, "usage": None, **more}


def piece(index: int | None, arguments: str, **opened: str) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": opened["name"]} if "name" in opened else {})
    part: dict[str, Any] = {"function": function} | ({"index": index} if index is not None else {})
    if "id" in opened:
        part |= {"id": opened["id"], "type": "function"}
    return part


USAGE = {
    "prompt_tokens": 120,
    "completion_tokens": 30,
    "total_tokens": 150,
    "prompt_tokens_details": {"cached_tokens": 100, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 10},
}
RICH = [
    chunk({"role": "assistant", "content": "", "refusal": None}),
    chunk({"reasoning_content": "Hm, "}),
    chunk({"reasoning_content": "yes."}),
    chunk({"content": "Z"}),
    chunk({"content": "\N{LATIN SMALL LETTER E WITH ACUTE} \N{GRINNING FACE}"}),
    chunk({"tool_calls": [piece(0, "", id="call_a", name="bash")]}),
    chunk({"tool_calls": [piece(0, '{"comm')]}),
    chunk({"tool_calls": [piece(1, "", id="call_b", name="submit"), piece(0, 'and":"ls"}')]}),
    chunk({"tool_calls": [piece(1, "{}")]}),
    chunk({}, "tool_calls"),
    chunk(usage=USAGE),
]
PARTS = (
    Thinking("Hm, yes."),
    Text("Z\N{LATIN SMALL LETTER E WITH ACUTE} \N{GRINNING FACE}"),
    ToolCall("call_a", "bash", '{"command":"ls"}'),
    ToolCall("call_b", "submit", "{}"),
)


def test_a_rich_reply_is_read_the_same_however_it_is_cut(
    openai_stream: Callable[..., bytes], decode_every_way: Callable[..., tuple[list[Delta], Reply]]
) -> None:
    deltas, reply = decode_every_way(OpenAIChatDecoder, openai_stream(*RICH) + DONE)
    assert reply == Reply(PARTS, "tool_use", Usage(20, 30, 100, 0))
    assert [delta for delta in deltas if delta.kind == "call"] == [Delta("call", "bash"), Delta("call", "submit")]
    assert "".join(delta.text for delta in deltas if delta.kind == "thinking") == "Hm, yes."


@given(st.lists(st.integers(0, 3000), max_size=10))
def test_any_cuts_give_the_same_reply(cuts: list[int]) -> None:
    body = "".join(f"data: {json.dumps(event)}\r\n\r\n" for event in RICH).encode() + DONE
    points = sorted({min(cut, len(body)) for cut in cuts})
    decoder, whole = OpenAIChatDecoder(), OpenAIChatDecoder()
    items = []
    for begin, stop in zip([0, *points], [*points, len(body)], strict=True):
        items += decoder.receive_data(body[begin:stop])
    assert items == whole.receive_data(body)


def test_a_body_that_ends_before_its_bill_is_a_transient_failure(
    openai_stream: Callable[..., bytes], truncate_every_way: Callable[..., list[ModelError | None]]
) -> None:
    whole = len(openai_stream(*RICH))
    outcomes = truncate_every_way(OpenAIChatDecoder, openai_stream(*RICH) + DONE)
    assert all(error is not None and error.kind == "transient" for error in outcomes[:whole])
    assert outcomes[whole:] == [None] * (len(DONE) + 1)


@pytest.mark.parametrize(
    "tail",
    [
        [chunk({"content": "!"}, "stop", usage=USAGE)],
        [chunk({"content": "!"}, usage=USAGE), chunk({}, "stop", usage=USAGE)],
        [chunk({"content": "!"}, "stop"), chunk(usage=USAGE)],
        [chunk({"content": "!"}, "stop"), {"choices": None, "usage": USAGE}],
    ],
)
def test_usage_may_come_with_the_last_content_or_after_it(
    tail: list[dict[str, Any]],
    openai_stream: Callable[..., bytes],
    decode: Callable[..., tuple[list[Delta], Reply]],
) -> None:
    body = openai_stream(chunk({"content": "hi"}), *tail)
    for ending in (b"", DONE):
        assert decode(OpenAIChatDecoder(), [body + ending])[1] == Reply((Text("hi!"),), "end", Usage(20, 30, 100, 0))


def test_a_server_without_usage_ends_with_done(
    openai_stream: Callable[..., bytes], decode: Callable[..., tuple[list[Delta], Reply]]
) -> None:
    body = openai_stream({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}) + b"data:[DONE]\r\n\r\n"
    assert decode(OpenAIChatDecoder(), [body])[1] == Reply((Text("x"),), "end", Usage())


def test_done_without_a_finish_reason_is_a_cut_stream(openai_stream: Callable[..., bytes]) -> None:
    with pytest.raises(ModelError) as caught:
        OpenAIChatDecoder().receive_data(openai_stream(chunk({"content": "half"})) + DONE)
    assert caught.value.kind == "transient"


@pytest.mark.parametrize(
    ("finish", "stop"),
    [("stop", "end"), ("length", "max_tokens"), ("content_filter", "refusal"), ("new", "end"), ("tool_calls", "end")],
)
def test_finish_reasons(
    finish: str, stop: str, openai_stream: Callable[..., bytes], decode: Callable[..., tuple[list[Delta], Reply]]
) -> None:
    assert decode(OpenAIChatDecoder(), [openai_stream(chunk({"content": "x"}, finish)) + DONE])[1].stop == stop


def test_a_refusal_is_text_with_its_reason(
    openai_stream: Callable[..., bytes], decode: Callable[..., tuple[list[Delta], Reply]]
) -> None:
    body = openai_stream(chunk({"content": None, "refusal": "I will not."}), chunk({}, "stop")) + DONE
    assert decode(OpenAIChatDecoder(), [body])[1] == Reply((Text("I will not."),), "refusal", Usage())


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 2}, Usage(10, 2)),
        ({"prompt_tokens": 10, "completion_tokens": 2, "prompt_cache_hit_tokens": 4}, Usage(6, 2, 4)),
        (
            {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 99}},
            Usage(0, 2, 10),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 5},
            },
            Usage(2, 2, 3, 5),
        ),
        ({"prompt_tokens": 10, "completion_tokens": None, "prompt_tokens_details": None}, Usage(10)),
    ],
)
def test_the_classes_of_usage_do_not_overlap(
    usage: dict[str, Any],
    expected: Usage,
    openai_stream: Callable[..., bytes],
    decode: Callable[..., tuple[list[Delta], Reply]],
) -> None:
    body = openai_stream(chunk({"content": "x"}, "stop", usage=usage))
    assert decode(OpenAIChatDecoder(), [body])[1].usage == expected


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(None, '{"a":1}', id="x", name="f"), piece(None, '{"b":2}', id="y", name="g")],
        [piece(0, '{"a":1}', id="x", name="f"), piece(0, '{"b":2}', id="y", name="g")],
        [piece(None, '{"a":1}', name="f"), piece(None, '{"b":2}', name="g")],
        [piece(0, '{"a":', id="x", name="f"), piece(0, "1}", id="x", name="f"), piece(1, '{"b":2}', name="g")],
        [piece(0, "", id="x", name="f"), piece(1, '{"b":2}', id="x", name="g"), piece(0, '{"a":1}')],
    ],
)
def test_parallel_calls_are_told_apart_in_the_ways_of_compatible_servers(
    pieces: list[dict[str, Any]],
    openai_stream: Callable[..., bytes],
    decode: Callable[..., tuple[list[Delta], Reply]],
) -> None:
    body = openai_stream(*(chunk({"tool_calls": [part]}) for part in pieces), chunk({}, "stop")) + DONE
    _, reply = decode(OpenAIChatDecoder(), [body])
    calls = [part for part in reply.parts if isinstance(part, ToolCall)]
    assert [(call.name, call.arguments) for call in calls] == [("f", '{"a":1}'), ("g", '{"b":2}')]
    assert len({call.id for call in calls}) == 2
    assert all(call.id for call in calls)
    assert reply.stop == "tool_use"


def test_reasoning_under_its_other_name_and_arguments_as_an_object(
    openai_stream: Callable[..., bytes], decode: Callable[..., tuple[list[Delta], Reply]]
) -> None:
    asked = {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": {"a": 1}}}]}
    body = openai_stream(chunk({"reasoning": "r"}), chunk(asked), chunk({}, "tool_calls")) + DONE
    assert decode(OpenAIChatDecoder(), [body])[1].parts == (Thinking("r"), ToolCall("x", "f", '{"a":1}'))


@pytest.mark.parametrize("arguments", ['{"a":', "null", "[1]", '{"a":"x\ny"}', "\x00"])
def test_a_call_with_bad_json_carries_its_problem(
    arguments: str, openai_stream: Callable[..., bytes], decode: Callable[..., tuple[list[Delta], Reply]]
) -> None:
    asked = {"tool_calls": [piece(0, arguments, id="x", name="f")]}
    (part,) = decode(OpenAIChatDecoder(), [openai_stream(chunk(asked), chunk({}, "tool_calls")) + DONE])[1].parts
    assert isinstance(part, ToolCall)
    assert part.arguments == "{}"
    assert part.problem


def test_a_call_cut_by_the_output_limit_says_so(
    openai_stream: Callable[..., bytes], decode: Callable[..., tuple[list[Delta], Reply]]
) -> None:
    asked = {"tool_calls": [piece(0, "", id="x", name="f")]}
    _, reply = decode(OpenAIChatDecoder(), [openai_stream(chunk(asked), chunk({}, "length")) + DONE])
    assert reply.stop == "max_tokens"
    assert isinstance(reply.parts[0], ToolCall)
    assert "output limit" in reply.parts[0].problem


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}, "rate_limited"),
        ({"message": "You exceeded your current quota", "type": "insufficient_quota"}, "quota"),
        ({"message": "oops", "type": "server_error"}, "transient"),
        ("plain words", "transient"),
    ],
)
def test_an_error_after_200_is_an_error_of_its_kind(
    error: object, kind: str, openai_stream: Callable[..., bytes]
) -> None:
    with pytest.raises(ModelError) as caught:
        OpenAIChatDecoder().receive_data(openai_stream(chunk({"content": "x"}), {"error": error}))
    assert caught.value.kind == kind


CONVERSATION = [
    Message("user", (Text("hi"),)),
    Message("assistant", (Thinking("t"), ToolCall("c1", "bash", '{"a":1}'), ToolCall("c2", "bash", "{}")), MODEL),
    Message("user", (ToolResult("c1", "out"), ToolResult("c2", "", is_error=True), Text("and"), Text("more"))),
    Message("assistant", (Text("done"),), MODEL),
    Message("user", (Text("again"),)),
]


def request(messages: list[Message], system: str = "Be brief.") -> bytes:
    codec = OpenAIChatCodec()
    head = codec.encode_head(MODEL, system, [TOOL], 100)
    return codec.join(head, [codec.encode_message(message, MODEL) for message in messages])


def test_a_request_has_the_documented_form() -> None:
    document = json.loads(request(CONVERSATION[:3]))
    function = {"name": "bash", "description": "Run a command.", "parameters": {"type": "object", "properties": {}}}
    assert list(document)[-1] == "messages"
    assert document == {
        "model": "gpt-4o",
        "max_completion_tokens": 100,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": function}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "t",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"a":1}'}},
                    {"id": "c2", "type": "function", "function": {"name": "bash", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "out"},
            {"role": "tool", "tool_call_id": "c2", "content": "Error: (no output)"},
            {"role": "user", "content": "and\n\nmore"},
        ],
    }


@pytest.mark.parametrize("system", ["", "Be brief."])
def test_each_request_begins_with_the_bytes_of_the_one_before_closing_apart(system: str) -> None:
    bodies = [request(CONVERSATION[:count], system) for count in (1, 3, 5)]
    for earlier, later in pairwise(bodies):
        json.loads(later)
        assert later.startswith(earlier.removesuffix(b"]}"))


def test_thinking_of_another_model_and_empty_messages_are_left_out() -> None:
    codec = OpenAIChatCodec()
    assert b"reasoning" not in codec.encode_message(CONVERSATION[1], "openai-chat/other")
    assert codec.encode_message(Message("assistant", (Thinking("t"),), MODEL), MODEL) == b""
    assert codec.encode_message(Message("user", (Text(""),)), MODEL) == b""


def test_the_name_of_the_bound_follows_the_server() -> None:
    head = OpenAIChatCodec(limit_field="max_tokens").encode_head("openai-chat/a/b", "", [], 7)
    assert head == b'{"model":"a/b","max_tokens":7,"stream":true,"stream_options":{"include_usage":true},"messages":['


def test_foreign_ids_and_names_are_made_acceptable_alike_in_call_and_result() -> None:
    codec = OpenAIChatCodec()
    call_id = "call_" + "x" * 60
    asked = json.loads(codec.encode_message(Message("assistant", (ToolCall(call_id, "a b", "{}"),)), MODEL))
    answered = json.loads(codec.encode_message(Message("user", (ToolResult(call_id, "x"),)), MODEL))
    assert asked["tool_calls"][0]["id"] == answered["tool_call_id"]
    assert len(answered["tool_call_id"]) <= 40
    assert asked["tool_calls"][0]["function"]["name"] == "a_b"


def test_arguments_of_five_megabytes_are_a_problem_not_a_crash(
    openai_stream: Callable[..., bytes], decode: Callable[..., tuple[list[Delta], Reply]]
) -> None:
    pieces = [piece(0, '{"a":"', id="x", name="f"), *(piece(0, "y" * 50_000) for _ in range(100)), piece(0, '"}')]
    body = openai_stream(*(chunk({"tool_calls": [part]}) for part in pieces), chunk({}, "tool_calls")) + DONE
    (call,) = decode(OpenAIChatDecoder(), [body])[1].parts
    assert isinstance(call, ToolCall)
    assert call.arguments == "{}"
    assert "longer than" in call.problem


def test_tools_in_another_order_give_the_same_bytes() -> None:
    codec = OpenAIChatCodec()
    tools = [ToolSpec(name, "", {"type": "object"}) for name in ("write", "bash", "read")]
    assert codec.encode_head(MODEL, "s", tools, 9) == codec.encode_head(MODEL, "s", tools[::-1], 9)

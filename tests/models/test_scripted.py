from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from nanotrio.errors import ModelError
from nanotrio.messages import Message, Text, Thinking, ToolCall, ToolResult, ToolSpec, Usage
from nanotrio.models import (
    Conversation,
    Delta,
    Late,
    Model,
    Reply,
    ScriptedModel,
    find_script,
    register_script,
    registered_scripts,
    reply_calls,
    reply_text,
)

TOOL = ToolSpec("bash", "Run.", {"type": "object"})
TALK = [
    Message("user", (Text('say ["assistant"\n'),)),
    Message("assistant", (Text("a"), ToolCall("c", "bash", "{}")), "scripted/test"),
    Message("user", (ToolResult("c", "out"), Text("go on"))),
]


def body(messages: list[Message], model: Model) -> bytes:
    head = model.codec.encode_head(model.name, "system\nprompt", [TOOL], 77)
    return model.codec.join(head, [model.codec.encode_message(message, model.name) for message in messages])


def ask(model: Model, messages: list[Message], emit: Callable[[Delta], None] | None = None) -> Reply:
    async def main() -> Reply:
        return await model.attempt(body(messages, model), emit, idle_seconds=1)

    return trio.run(main)


def test_a_conversation_shows_the_request() -> None:
    seen: list[Conversation] = []

    def script(conversation: Conversation) -> Reply:
        seen.append(conversation)
        return reply_text("ok")

    ask(ScriptedModel(script), TALK)
    (conversation,) = seen
    assert conversation.last == TALK[2]
    assert conversation.first == TALK[0]
    assert conversation.messages == tuple(TALK)
    assert conversation.steps == 1
    assert conversation.task == 'say ["assistant"\n'
    assert conversation.last_text == "go on"
    assert conversation.results == (ToolResult("c", "out"),)
    assert conversation.system == "system\nprompt"
    assert conversation.tools == (TOOL,)
    assert conversation.model == "scripted/test"
    assert conversation.max_tokens == 77


def test_each_request_begins_with_the_bytes_of_the_one_before() -> None:
    model = ScriptedModel([])
    assert body(TALK, model).startswith(body(TALK[:1], model))


def test_thinking_of_another_model_is_dropped() -> None:
    model = ScriptedModel([])
    message = Message("assistant", (Thinking("t"), Text("x")), "scripted/other")
    assert b"thinking" not in model.codec.encode_message(message, "scripted/test")
    assert b"thinking" in model.codec.encode_message(message, "scripted/other")


def test_a_list_answers_by_step_and_its_errors_come_once() -> None:
    model = ScriptedModel([reply_text("one"), ModelError("busy", kind="transient"), reply_text("two")])
    assert ask(model, TALK[:1]).parts == (Text("one"),)
    assert ask(model, TALK[:1]).parts == (Text("one"),)
    with pytest.raises(ModelError, match="busy"):
        ask(model, TALK)
    assert ask(model, TALK).parts == (Text("two"),)
    more = [*TALK, Message("assistant", (Text("two"),), "scripted/test"), Message("user", (Text("?"),))]
    with pytest.raises(ModelError, match="has 2 replies"):
        ask(model, more)


def test_calls_get_ids_that_no_other_step_has() -> None:
    model = ScriptedModel(
        lambda _: reply_calls(("bash", {"command": "ls"}), ("bash", "{broken"), text="x", thinking="h")
    )
    first, second = ask(model, TALK[:1]), ask(model, TALK)
    ids = [part.id for reply in (first, second) for part in reply.parts if isinstance(part, ToolCall)]
    assert len(set(ids)) == 4
    assert first.stop == "tool_use"
    assert first.parts[2] == ToolCall(ids[0], "bash", '{"command":"ls"}')
    broken = first.parts[3]
    assert isinstance(broken, ToolCall)
    assert broken.arguments == "{}"
    assert broken.problem


def test_usage_is_derived_from_sizes_unless_it_is_given() -> None:
    derived = ask(ScriptedModel([reply_text("12345678")]), TALK[:1]).usage
    assert derived.input > 10
    assert derived.output == 3
    assert ask(ScriptedModel([reply_text("x", usage=Usage())]), TALK[:1]).usage == Usage()
    assert ask(ScriptedModel([reply_text("x", usage=Usage(1, 2, 3, 4))]), TALK[:1]).usage == Usage(1, 2, 3, 4)


def test_text_streams_word_by_word() -> None:
    deltas: list[Delta] = []
    model = ScriptedModel(lambda _: reply_calls(("bash", {}), text=" one  two\nthree ", thinking="hm"))
    ask(model, TALK[:1], deltas.append)
    assert deltas[0] == Delta("thinking", "hm")
    texts = [delta.text for delta in deltas if delta.kind == "text"]
    assert len(texts) == 3
    assert "".join(texts) == " one  two\nthree "
    assert deltas[-1] == Delta("call", "bash")


def test_an_error_is_raised_whether_returned_or_raised() -> None:
    def raising(conversation: Conversation) -> Reply:
        raise ModelError("raised", kind="quota")

    with pytest.raises(ModelError, match="raised"):
        ask(ScriptedModel(raising), TALK)
    with pytest.raises(ModelError, match="returned"):
        ask(ScriptedModel(lambda _: ModelError("returned", kind="quota")), TALK)


@pytest.mark.parametrize("is_late", [False, True])
def test_an_error_that_answers_many_requests_does_not_grow(is_late: bool) -> None:
    error = ModelError("overloaded", kind="transient")
    model = ScriptedModel(lambda _: Late(error, 0.001) if is_late else error)
    lengths = set()
    for _ in range(5):
        with pytest.raises(ModelError) as caught:
            ask(model, [Message("user", (Text("hi"),))])
        assert caught.value is error
        lengths.add(len(list(traceback.walk_tb(error.__traceback__))))
    assert len(lengths) == 1


def test_latency_passes_and_without_it_others_still_run() -> None:
    async def main() -> None:
        slow = ScriptedModel(lambda _: Late(reply_text("x"), 2.0), latency_seconds=1.5)
        start = trio.current_time()
        await slow.attempt(body(TALK, slow), None, idle_seconds=1)
        assert trio.current_time() - start == pytest.approx(3.5)
        order: list[str] = []
        fast = ScriptedModel([reply_text("x")])

        async def other() -> None:
            order.append("other")
            await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            for _ in range(2):  # the order within one pass of the scheduler is chance
                await fast.attempt(body(TALK[:1], fast), None, idle_seconds=1)
            order.append("reply")
        assert order == ["other", "reply"]

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_scripts_are_registered_by_name() -> None:
    register_script("scripted/answer", lambda _: reply_text("42"))
    model = find_script("answer")
    assert model is not None
    assert model.name == "scripted/answer"
    assert ask(model, TALK).parts == (Text("42"),)
    assert {"answer", "echo"} <= set(registered_scripts())
    assert find_script("nobody") is None


def test_echo_repeats_the_prompt_or_the_results() -> None:
    model = find_script("echo")
    assert model is not None
    assert ask(model, TALK[:1]).parts == (Text('say ["assistant"\n'),)
    assert ask(model, [TALK[0], TALK[1], Message("user", (ToolResult("c", "out"),))]).parts == (Text("out"),)

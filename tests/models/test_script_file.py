from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from nanotrio.errors import ModelError, UsageError
from nanotrio.messages import Message, Text, Thinking, ToolCall, ToolResult, Usage
from nanotrio.models import Model, Price, Reply, load_script, script_file

ASKED = Message("assistant", (ToolCall("c", "bash", "{}"),), "x")


def load(folder: Path, rules: list[dict[str, Any]], **more: Any) -> Model:
    path = folder / "script.json"
    path.write_text(json.dumps({"rules": rules, **more}))
    return load_script(path)


def ask(model: Model, *messages: Message | str) -> Reply:
    async def main() -> Reply:
        codec = model.codec
        said = [Message("user", (Text(message),)) if isinstance(message, str) else message for message in messages]
        body = codec.join(codec.encode_head(model.name, "", [], 9), [codec.encode_message(m, model.name) for m in said])
        return await model.attempt(body, None, idle_seconds=1)

    return trio.run(main)


def result(text: str) -> Message:
    return Message("user", (ToolResult("c", text),))


def test_the_first_rule_whose_conditions_hold_replies(tmp_path: Path) -> None:
    model = load(
        tmp_path,
        [
            {"text": "^list (?P<what>\\w+)", "calls": [{"name": "bash", "arguments": {"c": ["ls ${what} $${HOME}"]}}]},
            {"result": "No such (\\w+)", "task": "list (\\w+)", "reply": "${1}? ${task}; ${step}; ${last}"},
            {"step": [0, 5], "reply": "first: ${last}", "thinking": "hm ${0}", "text": "h."},
            {"reply": "else", "stop": "refusal", "usage": {"input": 5, "cache_read": 2}},
        ],
        price={"input": 3, "output": 4},
    )
    assert model.name == f"scripted:{tmp_path / 'script.json'}"
    assert model.price == Price(3, 4, 0, 0)
    assert ask(model, "list docs").parts == (ToolCall("call_0_0", "bash", '{"c":["ls docs ${HOME}"]}'),)
    replied = ask(model, "list docs", ASKED, result("No such file"))
    assert replied.parts == (Text("file? list docs; 1; No such file"),)
    assert ask(model, "hi there").parts == (Thinking("hm hi"), Text("first: hi there"))
    assert ask(model, "?") == Reply((Text("else"),), "refusal", Usage(5, 0, 2, 0))


def test_no_condition_on_text_holds_for_results_and_the_reverse(tmp_path: Path) -> None:
    model = load(tmp_path, [{"text": "x", "reply": "text"}, {"result": "x", "reply": "result"}])
    assert ask(model, "x").parts == (Text("text"),)
    assert ask(model, "x", ASKED, result("x")).parts == (Text("result"),)


def test_when_no_rule_fits_the_error_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"script\.json fits step 0 .*'y'") as caught:
        ask(load(tmp_path, [{"text": "x", "reply": "text"}]), "y")
    assert caught.value.kind == "rejected"


def test_a_reply_may_be_empty(tmp_path: Path) -> None:
    reply = ask(load(tmp_path, [{"reply": ""}]), "x")
    assert (reply.parts, reply.stop) == ((), "end")


def test_errors_come_as_often_as_they_are_to(tmp_path: Path) -> None:
    error = {"kind": "rate_limited", "message": "busy", "status": 429, "retry_after_seconds": 1.5, "times": 2}
    model = load(tmp_path, [{"error": error}, {"reply": "ok"}])
    for _ in range(2):
        with pytest.raises(ModelError, match="busy") as caught:
            ask(model, "x")
        assert (caught.value.kind, caught.value.status, caught.value.retry_after_seconds) == ("rate_limited", 429, 1.5)
    assert ask(model, "x").parts == (Text("ok"),)


def test_latency_is_the_documents_and_the_rules(tmp_path: Path) -> None:
    model = load(tmp_path, [{"reply": "x", "latency_seconds": 2}], latency_seconds=1)

    async def main() -> float:
        codec = model.codec
        message = codec.encode_message(Message("user", (Text("x"),)), model.name)
        body = codec.join(codec.encode_head(model.name, "", [], 9), [message])
        start = trio.current_time()
        await model.attempt(body, None, idle_seconds=1)
        return trio.current_time() - start

    assert trio.run(main, clock=MockClock(autojump_threshold=0)) == pytest.approx(3)


def test_broken_arguments_can_be_scripted(tmp_path: Path) -> None:
    model = load(tmp_path, [{"calls": [{"name": "bash", "arguments": '{"a":'}]}])
    (call,) = ask(model, "x").parts
    assert isinstance(call, ToolCall)
    assert call.problem


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"rules": [\n{"reply": "x",}\n]}', "line 2, column 15: not JSON"),
        ("", "line 1, column 1: not JSON"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field `rules`"),
        ('{"rules": [{"reply": "x"}, {"replay": "x"}]}', "unknown field `replay` - at `rule 2`"),
        ('{"rules": [{"step": "x", "reply": "y"}]}', r"at `rule 1.step`"),
        ('{"rules": [{"text": "(", "reply": "y"}]}', "rule 1: 'text' is not a regular expression"),
        ('{"rules": [{}]}', "rule 1 has neither"),
        ('{"rules": [{"reply": "x", "error": {"kind": "quota"}}]}', "rule 1 has both"),
        ('{"rules": [{"reply": "", "error": {"kind": "quota"}}]}', "rule 1 has both"),
        ('{"rules": [{"error": {"kind": "sad"}}]}', "no error is of kind 'sad'; one of transient"),
        ('{"rules": [{"text": "(a)", "reply": "${2}"}]}', r"rule 1: \$\{2\} names no group"),
        ('{"rules": [{"calls": [{"name": "b", "arguments": {"x": "${y}"}}]}]}', r"rule 1: \$\{y\} names no group"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_malformed_file_is_named_with_the_place(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        load_script(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_example_in_the_documentation_is_a_script(tmp_path: Path) -> None:
    assert script_file.__doc__ is not None
    example = script_file.__doc__.partition("::\n")[2].partition("The first rule")[0]
    path = tmp_path / "example.json"
    path.write_text(textwrap.dedent(example))
    model = load_script(path)
    assert ask(model, "list docs").parts == (ToolCall("call_0_0", "bash", '{"command":"ls docs"}'),)
    assert ask(model, "hi").parts == (Text("Hello, you said: hi"),)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.json: No such file"):
        load_script(tmp_path / "nowhere.json")
    with pytest.raises(UsageError, match="directory"):
        load_script(tmp_path)
    (tmp_path / "latin").write_bytes(b'{\n"a": "\xe9"}')
    with pytest.raises(UsageError, match="line 2: not UTF-8"):
        load_script(tmp_path / "latin")

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
import trio

from nanotrio.errors import ToolError, UsageError
from nanotrio.tools import ToolContext, ToolOutput, tool
from tests.tools.contexts import call, make_context, reap


@tool
async def word_count(path: str) -> int:
    """Count the words of a text file. path: relative to the agent's directory."""
    return len((await trio.Path(path).read_text()).split())


class Point(msgspec.Struct):
    x: int
    y: int = 0


@dataclasses.dataclass
class Box:
    corner: Point
    label: str | None = None


@tool(effect=False, idempotent=True, name="draw-it")
def draw(
    box: Box,
    mode: Literal["fill", "line"] = "fill",
    points: list[Point] = [],  # noqa: B006
    tags: Annotated[dict[str, int] | None, msgspec.Meta(description="How often each occurs.")] = None,
) -> dict[str, Any]:
    """Draw a box.

    It stays on the page.

    Args:
        box: what to draw, with a corner
            and a label
        mode (str): how to draw it

    Returns:
        mode: not a description of mode.
    """
    return {"label": box.label, "mode": mode, "points": points, "tags": tags}


async def test_the_readme_function_is_a_tool_and_still_a_function(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("three small words")

    assert word_count.spec.name == "word_count"
    assert word_count.spec.description == "Count the words of a text file."
    assert word_count.spec.parameters == {
        "type": "object",
        "properties": {"path": {"type": "string", "description": "relative to the agent's directory."}},
        "required": ["path"],
        "additionalProperties": False,
    }
    assert await word_count(str(text)) == 3
    assert await call(word_count, make_context(tmp_path), path=str(text)) == ToolOutput("3")
    assert (word_count.effect, word_count.idempotent, word_count.inline) == (True, False, False)


def test_hints_defaults_and_docstring_become_the_schema() -> None:
    assert (draw.spec.name, draw.effect, draw.idempotent) == ("draw-it", False, True)
    assert draw.spec.description == "Draw a box."
    schema = draw.spec.parameters
    assert schema["required"] == ["box"]
    assert schema["properties"]["mode"] == {
        "enum": ["fill", "line"],
        "default": "fill",
        "description": "how to draw it",
    }
    assert schema["properties"]["points"]["default"] == []
    assert schema["properties"]["tags"]["description"] == "How often each occurs."
    assert schema["properties"]["box"]["description"] == "what to draw, with a corner and a label"
    assert set(schema["$defs"]) == {"Box", "Point"}


async def test_structs_and_defaults_reach_the_function_and_its_result_is_json(tmp_path: Path) -> None:
    output = await call(draw, make_context(tmp_path), box={"corner": {"x": 1}, "label": "b"}, points=[{"x": 2, "y": 3}])

    assert msgspec.json.decode(output.content) == {
        "label": "b",
        "mode": "fill",
        "points": [{"x": 2, "y": 3}],
        "tags": None,
    }


def test_a_mutable_default_is_made_anew_for_each_call() -> None:
    first = draw.parse('{"box": {"corner": {"x": 1}}}')
    first["points"].append("mine")

    assert draw.parse('{"box": {"corner": {"x": 1}}}')["points"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", ["word_count", "not valid JSON"]),
        ('{"a":', ["not valid JSON"]),
        ('{"path": "a\nb"}', ["not valid JSON"]),
        ('{"path": "\\ud800"}', ["not valid JSON"]),
        ("null", ["must be a JSON object, not null"]),
        ("[1]", ["must be a JSON object, not an array"]),
        ('"{}"', ["must be a JSON object, not a string"]),
        ("{}", ["missing: path"]),
        ('{"path": null}', ["path:", "Expected `str`, got `null`"]),
        ('{"path": 7}', ["path:", "Expected `str`, got `int`"]),
        ('{"path": "a", "depth": 2}', ["unknown: depth (it takes path)"]),
        ('{"way": "a"}', ["missing: path", "unknown: way"]),
    ],
)
def test_wrong_arguments_are_all_named(arguments: str, words: list[str]) -> None:
    with pytest.raises(ToolError) as caught:
        word_count.parse(arguments)

    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fault_inside_a_value_says_where() -> None:
    with pytest.raises(ToolError, match=r"Expected `int`, got `str` - at `box\.corner\.x`"):
        draw.parse('{"box": {"corner": {"x": "one"}}, "mode": "fill"}')
    with pytest.raises(ToolError, match="mode: Invalid enum value 'dots'"):
        draw.parse('{"box": {"corner": {"x": 1}}, "mode": "dots"}')


def test_aliases_and_null_for_not_given_are_understood() -> None:
    assert word_count.parse('{"file_path": "a"}') == {"path": "a"}
    assert draw.parse('{"box": {"corner": {"x": 1}}, "mode": null}')["mode"] == "fill"
    with pytest.raises(ToolError, match="unknown: file_path"):
        word_count.parse('{"file_path": "a", "path": "b"}')


async def test_the_context_is_handed_over_and_not_told_to_the_model(tmp_path: Path) -> None:
    @tool
    def where(context: ToolContext, name: str) -> str:
        """Say where a name is."""
        return str(context.directory / name)

    assert list(where.spec.parameters["properties"]) == ["name"]
    assert (await call(where, make_context(tmp_path), name="a")).content == str(tmp_path / "a")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        (None, ""),
        (3.5, "3.5"),
        (True, "true"),
        ([1, "é"], '[1,"é"]'),
        (Point(1, 2), '{"x":1,"y":2}'),
        ({"a": "\ud800"}, '{"a": "\\ud800"}'),
        ("a\ud83d\ude00b\udc80", "a\U0001f600b\ufffd"),
        (ToolOutput("no", is_error=True), "no"),
    ],
)
async def test_what_is_returned_becomes_text(value: Any, text: str, tmp_path: Path) -> None:
    @tool
    async def give() -> Any:
        """Give it."""
        return value

    assert (await call(give, make_context(tmp_path))).content == text


async def test_a_value_that_is_no_json_is_the_authors_fault(tmp_path: Path) -> None:
    @tool
    async def give() -> object:
        """Give it."""
        return object()

    with pytest.raises(ToolError, match="returned a object that cannot be told as JSON"):
        await call(give, make_context(tmp_path))


async def test_a_plain_function_runs_in_a_thread_of_its_own_pool(tmp_path: Path) -> None:
    @tool
    def where() -> bool:
        """Say where it runs."""
        return threading.current_thread() is threading.main_thread()

    limiter = trio.to_thread.current_default_thread_limiter()
    limiter.total_tokens = 1
    async with limiter:  # somebody else holds every thread there is
        assert (await call(where, make_context(tmp_path))).content == "false"


async def test_cancelling_does_not_wait_for_a_blocked_function(tmp_path: Path) -> None:
    started, release = threading.Event(), threading.Event()

    @tool
    def block() -> None:
        """Block."""
        started.set()
        release.wait()

    context = make_context(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, block, context)
        await trio.to_thread.run_sync(started.wait)
        nursery.cancel_scope.cancel()

    said = "a thread of the tool block has not returned, and no thread can be ended"
    assert await reap(context, max_seconds=0.01) == [(said,)]
    release.set()
    assert await reap(context) == [()]


def test_what_cannot_be_told_to_a_model_is_refused_at_once() -> None:
    def untyped(a) -> None: ...  # type: ignore[no-untyped-def]

    def many(*a: int) -> None: ...

    def strange(a: threading.Event) -> None: ...

    def hidden(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for function, words in (
        (untyped, "'a' has no type"),
        (many, "must be one that is passed by name"),
        (strange, "type that JSON cannot carry"),
        (hidden, "cannot be found"),
    ):
        with pytest.raises(UsageError, match=words):
            tool(function)
    with pytest.raises(UsageError, match="cannot be the name of a tool"):
        tool(lambda: None)


def test_a_function_without_a_docstring_is_described_by_its_name() -> None:
    @tool
    def list_all_things(at: int) -> None: ...

    assert list_all_things.spec.description == "list all things"
    assert list_all_things.spec.parameters["properties"]["at"] == {"type": "integer"}

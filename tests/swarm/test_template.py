"""What a template takes, and what it fills in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from nanotrio.errors import UsageError
from nanotrio.swarm.template import Template, hint, values_of


@pytest.mark.parametrize(
    ("text", "values", "filled"),
    [
        ("Sum up {item}.", {"item": "a"}, "Sum up a."),
        ("{title} by {First name}", {"title": "T", "First name": "F"}, "T by F"),
        ('{{"name": "{item}"}}', {"item": "x"}, '{"name": "x"}'),
        ("{{{item}}}", {"item": "x"}, "{x}"),
        ("{a}{a}", {"a": "{b}"}, "{b}{b}"),
        ("{n} {list} {none}", {"n": 1, "list": ["é", 2.5], "none": None}, '1 ["é",2.5] null'),
        ("no place", {}, "no place"),
        ("{ item }", {"item": "x"}, "x"),
    ],
)
def test_places_are_filled_in_and_what_is_filled_in_is_never_read(
    text: str, values: dict[str, Any], filled: str
) -> None:
    assert Template(text).render(values) == filled


@pytest.mark.parametrize(("text", "at"), [("a { b", 3), ("a } b", 3), ("{}", 1), ("x{ }", 2), ("{a\nb}", 1)])
def test_a_brace_that_names_nothing_is_told_with_its_place(text: str, at: int) -> None:
    with pytest.raises(UsageError, match=f"at character {at} that names nothing"):
        Template(text)


def test_a_place_without_a_value_is_told_with_what_there_is() -> None:
    template = Template("{titles}: {body} {titles}")
    assert template.fields == ("titles", "body")
    with pytest.raises(UsageError, match=r"asks for {titles}, and there is title, body$"):
        template.render({"title": "a", "body": "b"})


def test_a_template_is_checked_against_names_and_says_what_may_be_meant() -> None:
    template = Template("{a} {titles} {a}")
    template.check({"titles": 1, "a": 2})
    with pytest.raises(UsageError, match=r"asks for {titles}, and there is a, title; did you mean {title}\?$"):
        template.check(["a", "title"])
    with pytest.raises(UsageError, match=r"asks for {a}, and there is item; a brace of the text itself is written {{"):
        template.check(["item"])


def test_an_item_has_itself_and_its_fields() -> None:
    class Point(msgspec.Struct):
        x: int
        item: str

    assert values_of("a") == {"item": "a"}
    assert values_of(3) == {"item": 3}
    assert values_of({"a": 1}) == {"item": {"a": 1}, "a": 1}
    assert values_of(Point(1, "own")) == {"item": "own", "x": 1}


def test_a_path_is_its_text_wherever_it_stands_in_an_item() -> None:
    assert values_of(Path("notes/a.md")) == {"item": "notes/a.md"}
    assert values_of({"file": Path("a.md"), "more": [Path("b.md")]})["file"] == "a.md"


def test_a_name_of_a_field_is_a_text_also_where_the_key_is_none() -> None:
    assert values_of({1: "one", 2.5: "more"}) == {"item": {"1": "one", "2.5": "more"}, "1": "one", "2.5": "more"}
    with pytest.raises(UsageError, match=r"asks for {n}, and there is item, 1; a brace"):
        Template("{n}").check(values_of({1: 2}))
    assert hint("n", {1: 2}) == "a brace of the text itself is written {{ or }}"  # type: ignore[arg-type]


class Plain:
    pass


@pytest.mark.parametrize(
    ("item", "named"),
    [
        (Plain(), "of the type Plain cannot be filled into a template"),
        ({"a": [Plain()]}, "of the type dict with a Plain in it cannot be filled into a template"),
        (range(3), "of the type range cannot be filled into a template"),
        ({(1, 2): 3}, "of the type dict cannot be filled into a template"),
    ],
)
def test_what_is_no_item_for_a_template_is_told_with_what_is(item: Any, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        values_of(item)
    assert named in str(caught.value)
    assert "items are texts, paths, numbers, lists, dicts, dataclasses or msgspec Structs" in str(caught.value)
    assert "a function from an item to its prompt" in str(caught.value)

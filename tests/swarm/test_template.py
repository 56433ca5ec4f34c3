"""What a template takes, and what it fills in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nanotrio.errors import UsageError
from nanotrio.swarm.template import Template, values_of


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
    with pytest.raises(TypeError):
        values_of(object())

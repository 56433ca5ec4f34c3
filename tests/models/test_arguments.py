from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanotrio.messages import ToolCall
from nanotrio.models.arguments import MAX_ARGUMENTS_BYTES, parse_arguments, unique_ids


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a":', "not valid JSON"),
        ('{"a":1', "not valid JSON"),
        ('{"a":1}}', "not valid JSON"),
        ('{"a":1} {"b":2}', "not valid JSON"),
        ("null", "not null"),
        ("[1]", "not an array"),
        ("7", "not a number"),
        ("true", "not a boolean"),
        ('"words"', "not valid JSON"),
        ('"[1]"', "not a string"),
        ('{"a":"x\ny"}', "not valid JSON"),
        ('{"a":"\x00"}', "not valid JSON"),
        ("\x00", "not valid JSON"),
        ('{"a":NaN}', "not valid JSON"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":"' + "x" * 5_000_000 + '"}', "longer than"),
        ("{'a': 1}", "not valid JSON"),
    ],
)
def test_what_is_no_object_becomes_an_empty_one_with_a_problem(text: str, words: str) -> None:
    arguments, problem = parse_arguments(text)
    assert arguments == "{}"
    assert words in problem
    assert "\n" not in problem
    assert len(problem) < 400


@pytest.mark.parametrize("text", ["", "  ", "\n", "{}"])
def test_a_call_without_parameters_has_no_problem(text: str) -> None:
    assert parse_arguments(text) == ("{}", "")


def test_the_models_own_text_of_an_object_is_kept() -> None:
    text = ' {"b" : 1,\n"a": "\\u00e9\\u0000 \N{FAMILY}"} '
    assert parse_arguments(text) == (text, "")


def test_an_object_encoded_twice_is_accepted() -> None:
    assert parse_arguments(json.dumps('{"a": 1}')) == ('{"a": 1}', "")


def test_lone_surrogates_are_replaced_and_pairs_joined() -> None:
    arguments, problem = parse_arguments('{"a":"\\ud800","b":"\\ud83d\\ude00"}')
    assert problem == ""
    assert json.loads(arguments) == {"a": "\N{REPLACEMENT CHARACTER}", "b": "\N{GRINNING FACE}"}
    arguments.encode()


@pytest.mark.parametrize("text", ["", '{"a":', '{"a": "x'])
def test_a_call_cut_by_the_output_limit_says_so(text: str) -> None:
    arguments, problem = parse_arguments(text, cut=True)
    assert arguments == "{}"
    assert "output limit" in problem


def test_a_call_that_is_whole_when_the_limit_comes_is_good() -> None:
    assert parse_arguments('{"a":1}', cut=True) == ('{"a":1}', "")


@given(st.text(max_size=200))
def test_any_text_gives_a_json_object(text: str) -> None:
    arguments, _ = parse_arguments(text)
    assert isinstance(json.loads(arguments), dict)
    arguments.encode()


@given(st.dictionaries(st.text(), st.text()), st.data())
def test_no_prefix_of_an_object_is_salvaged(value: dict[str, str], data: st.DataObject) -> None:
    text = json.dumps(value)
    end = data.draw(st.integers(1, len(text) - 1))
    arguments, problem = parse_arguments(text[:end])
    assert arguments == "{}"
    assert problem


def test_the_bound_holds_for_bytes_not_characters() -> None:
    text = '{"a":"' + "\N{SNOWMAN}" * (MAX_ARGUMENTS_BYTES // 2) + '"}'
    assert "longer than" in parse_arguments(text)[1]


def test_missing_and_repeated_ids_are_made_unique() -> None:
    calls = [ToolCall("a", "f", "{}"), ToolCall("", "f", "{}"), ToolCall("a", "g", "{}")]
    made = unique_ids(calls, "r1")
    assert [call.name for call in made] == ["f", "f", "g"]
    assert made[0].id == "a"
    assert len({call.id for call in made}) == 3
    assert all("r1" in call.id for call in made[1:])

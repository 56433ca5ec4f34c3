"""Text is cleaned once, and whatever comes out of that can be stored and sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nanotrio.messages import Message, Text, ToolCall, Usage, clean_text, text_of


@given(st.text(st.characters(exclude_categories=())))
def test_cleaned_text_can_be_encoded_and_is_left_alone_the_second_time(text: str) -> None:
    cleaned = clean_text(text)
    cleaned.encode()
    assert clean_text(cleaned) == cleaned


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_text_without_surrogates_is_not_touched(text: str) -> None:
    assert clean_text(text) == text


def test_a_surrogate_pair_is_joined_and_a_lone_one_replaced() -> None:
    assert clean_text("\ud83d\ude00") == "\U0001f600"
    assert clean_text("a\ud800b") == "a\ufffdb"
    assert clean_text("\ude00\ud83d") == "\ufffd\ufffd"
    assert clean_text("W\0s") == "W\0s"


def test_usage_adds_class_by_class() -> None:
    assert Usage(1, 2, 3, 4) + Usage(10, 20, 30, 40) == Usage(11, 22, 33, 44)


def test_text_of_joins_the_text_parts_alone() -> None:
    assert text_of(Message("assistant", (Text("a"), ToolCall("1", "x", "{}"), Text("b")))) == "ab"

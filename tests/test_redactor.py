"""Keys are found however a text is cut."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanotrio.messages import Text, ToolCall, clean_text
from nanotrio.redactor import Redactor

KEY = "sk-0123456789"
OVERLAPPING = Redactor({"A_KEY": "aabaabaa", "B_KEY": "aabaabaac", "C_KEY": "baabaaaa", "D_KEY": 'a"a\nb"aab'})
LONGEST = len('a\\"a\\nb\\"aab')


@given(st.lists(st.text(alphabet='aabbc"\\n\n', max_size=12), max_size=12))
def test_a_stream_cut_anywhere_says_what_the_whole_would_and_holds_back_less_than_a_key(pieces: list[str]) -> None:
    stream = OVERLAPPING.stream()
    assert stream is not None
    said = ""
    for piece in pieces:
        said += stream.feed(piece)
        assert len(stream._held) < LONGEST

    assert said + stream.end() == OVERLAPPING.text("".join(pieces))


@given(st.text(alphabet='aabbc"\\n\n', max_size=60))
def test_what_cannot_begin_a_key_is_said_at_once(text: str) -> None:
    stream = OVERLAPPING.stream()
    assert stream is not None

    assert stream.feed(f"{text}.") == OVERLAPPING.text(f"{text}.")


@given(st.lists(st.sampled_from(["-----BEGIN KEY", "-----BEGIN", "-", "\nabc", "end", "."]), max_size=12))
def test_long_keys_that_begin_alike_are_found_however_they_are_cut(pieces: list[str]) -> None:
    redactor = Redactor({"A_KEY": "-----BEGIN KEY\nabc\nend", "B_KEY": "-----BEGIN KEY-----", "C_KEY": "-" * 12})
    stream = redactor.stream()
    assert stream is not None
    said = "".join([stream.feed(piece) for piece in pieces])
    assert said + stream.end() == redactor.text("".join(pieces))


def test_a_very_long_key_does_not_make_each_piece_dear() -> None:
    def seconds(key: str) -> float:
        stream = Redactor({"SOME_KEY": key}).stream()
        assert stream is not None
        start = time.process_time()
        for _ in range(10):
            stream.feed("a line of some text\n" * 3_000)
        return time.process_time() - start

    short = min(seconds("s" + "0" * 20) for _ in range(3))
    assert min(seconds("s" + "0" * 100_000) for _ in range(3)) < 60 * short


def test_a_key_cut_at_each_character_is_replaced() -> None:
    for at in range(len(KEY)):
        stream = Redactor({"SOME_KEY": KEY}).stream()
        assert stream is not None
        assert stream.feed(f"the key is {KEY[:at]}") == "the key is "
        assert stream.feed(f"{KEY[at:]}, they say") == "[SOME_KEY], they say"


def test_without_keys_there_is_no_stream() -> None:
    assert Redactor({"PATH": "/usr/local/bin", "SHORT_KEY": "1234567"}).stream() is None


def test_a_key_over_two_texts_of_one_reply_is_replaced_and_others_stay_apart() -> None:
    redactor = Redactor({"SOME_KEY": KEY})
    call = ToolCall("1", "bash", "{}")

    assert redactor.parts((Text(f"a{KEY[:5]}"), call, Text(f"{KEY[5:]}z"))) == (Text("a[SOME_KEY]z"), call)
    assert redactor.parts((Text(KEY), call, Text("sk-"))) == (Text("[SOME_KEY]"), call, Text("sk-"))


@pytest.mark.parametrize("key", ['pä"ss-wörd\\1', "snow\n\u2603-man", "sk-01234567\r\n", ' "quoted key" '])
@pytest.mark.parametrize("escapes", [True, False])
def test_a_key_is_found_in_a_calls_arguments_however_they_are_spelled(key: str, *, escapes: bool) -> None:
    redactor = Redactor({"SOME_KEY": key})
    for said in (key, key.strip()):
        call = ToolCall("1", "bash", json.dumps({"command": f"use {said}."}, ensure_ascii=escapes))
        (kept,) = redactor.parts((call,))
        assert isinstance(kept, ToolCall)
        assert json.loads(kept.arguments) == {"command": "use [SOME_KEY]."}
        assert redactor.text(f"use {said}.") == "use [SOME_KEY]."


def test_a_key_that_is_no_text_is_found_also_where_it_was_cleaned() -> None:
    key = "p\udce4ssword"
    assert Redactor({"SOME_KEY": key}).text(f"{key} {clean_text(key)}") == "[SOME_KEY] [SOME_KEY]"

from __future__ import annotations

import pytest

from nanotrio_cli.printable import one_line, printable, visible


def test_nothing_that_moves_a_cursor_or_turns_text_around_gets_through() -> None:
    text = "a\x1b[2Jb\x07\r\n\tc\x9b1md\u202eedoc\u2066\x7f\0"

    assert printable(text) == "a[2Jb\n\tc1mdedoc"


def test_text_of_other_scripts_stays() -> None:
    text = "שלום 日本 👩‍👩‍👧 é\n"

    assert printable(text) == text


def test_a_lone_surrogate_becomes_a_replacement() -> None:
    assert printable("x\ud800y") == "x\ufffdy"


def test_what_must_be_judged_is_spelled_out() -> None:
    assert visible("rm\x1b[8m -rf\u202e") == "rm\\x1b[8m -rf\\u202e"


@pytest.mark.parametrize(("text", "line"), [("a\n b\t c", "a b c"), ("x" * 50, "x" * 9 + "…"), ("", "")])
def test_one_line_is_one_line(text: str, line: str) -> None:
    assert one_line(text, 10) == line

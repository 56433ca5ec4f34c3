from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanotrio.tools import ToolOutput, fit_output
from nanotrio.tools.output import head_of, tail_of
from tests.tools.contexts import make_context

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
FLAG = "\U0001f1e9\U0001f1ea"


async def test_a_short_result_is_untouched(tmp_path: Path) -> None:
    output = ToolOutput("short")

    assert await fit_output(make_context(tmp_path), output) is output
    assert not (tmp_path / ".outputs").exists()


async def test_a_long_result_keeps_head_and_tail_and_names_the_file_with_all(tmp_path: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(5_000))

    output = await fit_output(make_context(tmp_path, max_result_bytes=2_000), ToolOutput(text, is_error=True))

    (file,) = (tmp_path / ".outputs").iterdir()
    assert len(output.content.encode()) <= 2_000
    assert output.content.startswith("line 0\n")
    assert output.content.endswith("line 4999\n")
    assert str(file) in output.content
    assert output.is_error
    assert file.read_text() == text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


async def test_results_of_one_call_never_share_a_file(tmp_path: Path) -> None:
    context = make_context(tmp_path, max_result_bytes=500)
    for letter in "ab":
        await fit_output(context, ToolOutput(letter * 1_000))

    assert {path.read_text()[0] for path in (tmp_path / ".outputs").iterdir()} == {"a", "b"}


async def test_a_result_is_kept_where_its_file_cannot_be(tmp_path: Path) -> None:
    (tmp_path / ".outputs").write_text("in the way")

    output = await fit_output(make_context(tmp_path, max_result_bytes=900), ToolOutput("a" * 1_000))

    assert re.fullmatch(r"a+\n\[\.\.\. 1,000 bytes; .* could not be kept in .*\]\na+", output.content)


@pytest.mark.parametrize("cluster", [FAMILY, FLAG, "e\u0301", "\U0001f44d\U0001f3fd", "\u2764\ufe0f"])
def test_a_cut_never_takes_a_visible_character_apart(cluster: str) -> None:
    text = cluster * 20
    size = len(cluster.encode())
    for most in range(size * 20):
        assert head_of(text, most) == cluster * (most // size)
        assert tail_of(text, most) == cluster * (most // size)


@given(st.text(max_size=60), st.integers(0, 100))
def test_a_cut_fits_and_is_a_part_of_the_text(text: str, most: int) -> None:
    head, tail = head_of(text, most), tail_of(text, most)

    assert text.startswith(head)
    assert text.endswith(tail)
    assert max(len(head.encode()), len(tail.encode())) <= most
    if len(text.encode()) <= most:
        assert head == tail == text

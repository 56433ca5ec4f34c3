from __future__ import annotations

import codecs
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanotrio.errors import ToolError
from nanotrio.tools import edit
from nanotrio.tools.edit import _find, _replace
from tests.tools.contexts import call, make_context

BOM = codecs.BOM_UTF8


async def edited(directory: Path, data: bytes, old: str, new: str, *, replace_all: bool = False) -> bytes:
    (directory / "f").write_bytes(data)
    context = make_context(directory)
    await call(edit, context, path="f", old_string=old, new_string=new, replace_all=replace_all)
    return (directory / "f").read_bytes()


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


@pytest.mark.parametrize(
    ("data", "old", "new", "result"),
    [
        (b"a\r\n\tb\r\nc\n", "a\n\tb", "A\n\tB", b"A\r\n\tB\r\nc\n"),
        (b"a\r\n\tb\r\nc\n", "b\nc", "B\nC", b"a\r\n\tB\r\nC\n"),
        (b"a\r\n\tb\r\nc\n", "\tb\nc\n", "\tb\nnew\nc\n", b"a\r\n\tb\r\nnew\r\nc\n"),
        (b"a\r\n\tb\r\nc\n", "a\n\tb\nc\n", "new\na\n\tb\nc\n", b"new\r\na\r\n\tb\r\nc\n"),
        (b"a\r\n\tb\r\nc\n", "c", "c\nd", b"a\r\n\tb\r\nc\nd\n"),
        (b"a\r\n\tb\r\nc\n", "a", "a\nd", b"a\r\nd\r\n\tb\r\nc\n"),
        (b"a\r\n\tb\r\nc", "c", "c\nd", b"a\r\n\tb\r\nc\r\nd"),
        (b"a\nb\n", "a", "x\r\ny", b"x\r\ny\nb\n"),
        (b"a\nb\n", "a\r\nb", "x", b"x\n"),
        (b"a\nb", "b", "c", b"a\nc"),
        (BOM + b"a\r\nb", "a\nb", "c\nd", BOM + b"c\r\nd"),
        (b"a\rb\r", "a", "c", b"c\rb\r"),
        ("a\u2028b\r\n".encode(), "b", "c", "a\u2028c\r\n".encode()),
        (b"a.b(c\n", "a.b(c", r"\1\g<0>", b"\\1\\g<0>\n"),
    ],
)
async def test_only_the_touched_bytes_change(data: bytes, old: str, new: str, result: bytes, tmp_path: Path) -> None:
    assert await edited(tmp_path, data, old, new) == result


async def test_replace_all_gives_each_place_its_own_endings(tmp_path: Path) -> None:
    data = b"a\nb\n-\r\na\r\nb\r\n"

    assert await edited(tmp_path, data, "a\nb", "x\ny\nz", replace_all=True) == b"x\ny\nz\n-\r\nx\r\ny\r\nz\r\n"


@pytest.mark.parametrize(
    ("data", "old", "new", "result"),
    [
        (b"x = 1\n# Z\xfcrich\n", "x = 1", "x = 2", b"x = 2\n# Z\xfcrich\n"),
        ("x = 1\n# 中文\n".encode("gbk"), "x = 1", "x = 2", "x = 2\n# 中文\n".encode("gbk")),
        (
            codecs.BOM_UTF16_LE + "x = 1\r\n# 👪é\r\n".encode("utf-16-le"),
            "1\n# 👪",
            "2\n# é",
            codecs.BOM_UTF16_LE + "x = 2\r\n# éé\r\n".encode("utf-16-le"),
        ),
        (
            codecs.BOM_UTF16_BE + "a\u0a0d\u0d0ab".encode("utf-16-be"),
            "b",
            "c",
            codecs.BOM_UTF16_BE + "a\u0a0d\u0d0ac".encode("utf-16-be"),
        ),
    ],
)
async def test_other_encodings_make_the_round_trip(
    data: bytes, old: str, new: str, result: bytes, tmp_path: Path
) -> None:
    assert await edited(tmp_path, data, old, new) == result


@pytest.mark.parametrize(
    ("data", "old", "new", "words"),
    [
        (b"# Z\xfcrich\n", "Z\ufffdrich", "tea", "only plain ASCII"),
        (b"# Z\xfcrich x\n", "x", "\u00e9", "only plain ASCII"),
        ("丂A\n".encode("gbk"), "@", "B", "may begin inside a character"),
        (b"a\0b", "a", "c", "is a binary of 3 bytes, not text; it cannot be edited"),
        (b"a\nb\n", "c", "d", "does not occur in .*; read the file again"),
        (b"if x:\n\treturn 1\n", "    return 1\nend", "d", "line 2 is like its first"),
        (b"a\nb\n", "     1\ta\n     2\tb", "d", "without the line numbers of read it does"),
        (b"a\nb\na\na\n", "a", "d", r"occurs 3 times in .* \(lines 1, 3, 4\)"),
        (b"a\n", "a", "a", "are the same"),
        (b"a\n", "", "a", "old_string is empty"),
    ],
)
async def test_what_cannot_be_done_exactly_is_refused_and_changes_nothing(
    data: bytes, old: str, new: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ToolError, match=words):
        await edited(tmp_path, data, old, new)

    assert (tmp_path / "f").read_bytes() == data


async def test_the_result_says_where_and_nothing_else_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a\nb\na\n")
    (tmp_path / "f").chmod(0o640)
    context = make_context(tmp_path)
    output = await call(edit, context, file_path="f", old_str="a", new_str="c", replaceAll=True)

    assert output.content == f"changed {tmp_path}/f in 2 places (lines 1, 3)"
    assert names_in(tmp_path) == ["f"]
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640


async def test_a_file_that_is_not_there_or_too_long_is_said(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    with pytest.raises(ToolError, match="does not exist"):
        await call(edit, context, path="f", old_string="a", new_string="b")
    with (tmp_path / "long").open("wb") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(ToolError, match="longer than"):
        await call(edit, context, path="long", old_string="a", new_string="b")


LINES = st.lists(st.tuples(st.sampled_from(["a", "b", "", "\tc"]), st.sampled_from(["\n", "\r\n"])), max_size=8)


@given(LINES, LINES, LINES, st.text("abx\n", max_size=6))
def test_a_replacement_leaves_everything_around_it(
    before: list[tuple[str, str]], middle: list[tuple[str, str]], after: list[tuple[str, str]], new: str
) -> None:
    head, old, tail = ("".join(body + ending for body, ending in part) for part in (before, middle, after))
    head, old = f"{head}<", f"{old}>"
    text = f"{head}{old}{tail}"

    ((start, end),) = [span for span in _find(text, old.replace("\r\n", "\n")) if span[0] == len(head)] or [(0, 0)]
    assert (start, end) == (len(head), len(head) + len(old))
    result = _replace(text, [(start, end)], new)

    assert result.startswith(head)
    assert result.endswith(tail)
    inside = result[len(head) : len(result) - len(tail)]
    assert inside.replace("\r\n", "\n") == new


@given(LINES)
def test_replacing_a_text_by_itself_changes_no_byte(lines: list[tuple[str, str]]) -> None:
    text = "<" + "".join(body + ending for body, ending in lines) + ">"

    assert _replace(text, [(0, len(text))], text.replace("\r\n", "\n")) == text

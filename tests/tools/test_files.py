from __future__ import annotations

import codecs
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import trio

from nanotrio.errors import ToolError
from nanotrio.tools import ToolOutput, read, write
from tests.tools.contexts import call, make_context

DAMAGED = "[bytes that are not UTF-8 are shown as \ufffd; edit keeps them as they are]"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


async def read_text(directory: Path, path: str, **arguments: Any) -> str:
    bounds = arguments.pop("bounds", {})
    return (await call(read, make_context(directory, **bounds), path=path, **arguments)).content


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (b"a\nb\n", "     1\ta\n     2\tb"),
        (b"a\nb", "     1\ta\n     2\tb"),
        (b"a\r\n\tb\r\nc\n", "     1\ta\n     2\t\tb\n     3\tc"),
        (b"\n\n", "     1\t\n     2\t"),
        (codecs.BOM_UTF8 + "é\n".encode(), "     1\té"),
        (codecs.BOM_UTF16_LE + "é 👪\r\nb".encode("utf-16-le"), "     1\té 👪\n     2\tb"),
        (codecs.BOM_UTF16_BE + "é\n".encode("utf-16-be"), "     1\té"),
        ("a\u2028b\u202ec\n".encode(), "     1\ta\u2028b\u202ec"),
        (
            b"x = 1\n# Z\xfcrich\n",
            f"     1\tx = 1\n     2\t# Z\ufffdrich\n{DAMAGED}",
        ),
    ],
)
async def test_text_is_read_with_line_numbers(data: bytes, content: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(data)

    assert await read_text(tmp_path, "f") == content


async def test_a_part_is_read_by_offset_and_limit_and_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("".join(f"l{n}\n" for n in range(1, 11)))

    assert (
        await read_text(tmp_path, "f", offset=4, limit=2) == "     4\tl4\n     5\tl5\n[it goes on; read from offset=6]"
    )
    assert await read_text(tmp_path, "f", offset=9, limit=2) == "     9\tl9\n    10\tl10"
    assert (await read_text(tmp_path, "f", offset=0, limit=1)).startswith("     1\tl1\n")
    with pytest.raises(ToolError, match="has 10 lines, so none from 11 on"):
        await read_text(tmp_path, "f", offset=11)


async def test_a_long_file_is_read_within_the_bound(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("".join(f"line {n}\n" for n in range(1, 200_001)))

    content = await read_text(tmp_path, "f", limit=10**6, bounds={"max_result_bytes": 3_000})
    assert len(content.encode()) <= 3_000
    last, note = content.splitlines()[-2:]
    assert note == f"[it goes on; read from offset={int(last.split()[0]) + 1}]"
    end = await read_text(tmp_path, "f", offset=199_999)
    assert end == "199999\tline 199999\n200000\tline 200000"


async def test_a_line_of_megabytes_is_cut_and_its_length_said(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a" * 20_000_000 + b"\nb\n")

    first, second = (await read_text(tmp_path, "f")).splitlines()
    assert first.endswith("aaa [... a line of 20,000,001 bytes]")
    assert len(first) < 2_100
    assert second == "     2\tb"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "a PNG image"),
        (b"a\0b", "a binary"),
        (codecs.BOM_UTF16_LE + b"a", "a binary"),
        (b"%PDF-1.7\n", "a PDF document"),
    ],
)
async def test_a_binary_is_named_not_dumped(data: bytes, kind: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(data)

    with pytest.raises(ToolError, match=f"f is {kind} of {len(data)} bytes, not text"):
        await read_text(tmp_path, "f")
    with pytest.raises(ToolError, match=f"f is {kind} of {len(data)} bytes, not text; it cannot be written over"):
        await call(write, make_context(tmp_path), path="f", content="text")
    assert (tmp_path / "f").read_bytes() == data


async def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    with trio.fail_after(5):
        for path, words in {
            "pipe": "device, pipe or socket",
            "/dev/zero": "device, pipe or socket",
            ".": "is a directory",
            "file/inner": "a part of this path is a file",
            "": "path is empty",
            "a\0b": "NUL",
            "x" * 5_000: "name too long",
        }.items():
            with pytest.raises(ToolError, match=f"(?i){words}"):
                await read_text(tmp_path, path)
        for path in ("pipe", ".", "file/inner"):
            with pytest.raises(ToolError):
                await call(write, make_context(tmp_path), path=path, content="text")
    assert await read_text(tmp_path, "file") == f"({tmp_path}/file is empty)"
    assert await read_text(tmp_path, "/proc/self/comm")


async def test_a_name_that_is_nearly_right_is_told(tmp_path: Path) -> None:
    name = "Screenshot 1.02\u202fPM e\u0301.txt"
    (tmp_path / name).write_text("text")

    with pytest.raises(ToolError, match=re.escape(f"does not exist; there is {tmp_path}/{name}")):
        await read_text(tmp_path, "screenshot 1.02 PM \u00e9.txt")
    with pytest.raises(ToolError, match=r"other does not exist$"):
        await read_text(tmp_path, "other")


async def test_names_of_any_bytes_can_be_read_and_shown(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff")).touch()
    output = read.run(make_context(tmp_path), {"path": os.fsdecode(b"\xff"), "offset": 1, "limit": 9})
    assert not isinstance(output, ToolOutput)

    assert (await output).content == f"({tmp_path}/\ufffd is empty)"


async def test_home_is_the_environments(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("home\n")
    inner = tmp_path / "inner"
    inner.mkdir()
    context = make_context(inner, environment={"HOME": str(tmp_path)})

    assert (await call(read, context, path="~/f")).content == "     1\thome"
    with pytest.raises(ToolError, match="no HOME"):
        await call(read, make_context(inner, environment={"HOME": ""}), path="~/f")


async def test_a_new_file_is_made_with_its_directories(tmp_path: Path) -> None:
    output = await call(write, make_context(tmp_path), path="a/b/c.txt", content="é\n")

    assert output.content == f"created {tmp_path}/a/b/c.txt: 3 bytes"
    assert (tmp_path / "a/b/c.txt").read_bytes() == "é\n".encode()
    assert [path.name for path in (tmp_path / "a/b").iterdir()] == ["c.txt"]


async def test_writing_over_keeps_mode_and_follows_links(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("old")
    script.chmod(0o754)
    (tmp_path / "link").symlink_to("run.sh")

    output = await call(write, make_context(tmp_path), path="link", content="new")

    assert output.content == f"replaced {tmp_path}/link: 3 bytes"
    assert (tmp_path / "link").is_symlink()
    assert script.read_text() == "new"
    assert stat.S_IMODE(script.stat().st_mode) == 0o754


async def test_writing_over_keeps_hard_links_together(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    os.link(tmp_path / "a", tmp_path / "b")

    await call(write, make_context(tmp_path), path="a", content="new")

    assert (tmp_path / "b").read_text() == "new"


@pytest.mark.parametrize(
    ("old", "content", "new"),
    [
        (codecs.BOM_UTF8 + b"a", "b\n", codecs.BOM_UTF8 + b"b\n"),
        (codecs.BOM_UTF8 + b"a", "\ufeffb\n", codecs.BOM_UTF8 + b"b\n"),
        (codecs.BOM_UTF16_LE + b"a\0", "é", codecs.BOM_UTF16_LE + b"\xe9\0"),
        (b"Z\xfcrich", "coffee", b"coffee"),
        (b"Z\xfcrich", "café", None),
        ("中文".encode("gbk"), "中文", None),
    ],
)
async def test_writing_over_keeps_the_encoding_or_is_refused(
    old: bytes, content: str, new: bytes | None, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(old)
    if new is None:
        with pytest.raises(ToolError, match=r"would change the encoding; remove the file first"):
            await call(write, make_context(tmp_path), path="f", content=content)
    else:
        await call(write, make_context(tmp_path), path="f", content=content)
    assert (tmp_path / "f").read_bytes() == (old if new is None else new)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
async def test_a_protected_file_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    (tmp_path / "f").chmod(0o444)
    with pytest.raises(ToolError, match="write-protected"):
        await call(write, make_context(tmp_path), path="f", content="new")


def test_reading_has_no_effect_and_writing_has() -> None:
    assert (read.effect, write.effect) == (False, True)

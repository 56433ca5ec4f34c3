from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import trio
import trio.testing

from nanotrio_cli.exits import OutputClosedError
from nanotrio_cli.output import Output, encode_line, write_now


@pytest.mark.parametrize(
    "text", ["plain", "é 日本 👩‍👩‍👧", "a\u2028b\u2029c\u0085d", "nul \0 and \x1b", "lone \ud800 surrogate", "a\nb\rc"]
)
def test_a_value_is_one_line_of_utf_8_and_comes_back(text: str) -> None:
    line = encode_line({"text": text}).decode("utf-8")

    assert line.splitlines() == [line[:-1]]
    assert json.loads(line) == {"text": text}


async def test_a_slow_reader_holds_nobody_but_the_writer() -> None:
    reading, writing = os.pipe()
    try:
        output = Output(writing)
        output.add(b"x" * 1_000_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(output.drain)
            await trio.testing.wait_all_tasks_blocked()
            assert 0 < output.pending_bytes < 1_000_000
            left = 1_000_000
            while left:
                await trio.lowlevel.wait_readable(reading)
                left -= len(os.read(reading, 65_536))
        assert not output.pending_bytes
    finally:
        os.close(reading)
        os.close(writing)


async def test_a_reader_that_leaves_is_noticed_without_a_write() -> None:
    reading, writing = os.pipe()
    try:
        output = Output(writing)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(output.wait_closed)
            await trio.testing.wait_all_tasks_blocked()
            os.close(reading)
        output.add(b"x")
        with pytest.raises(OutputClosedError):
            await output.drain()
        with pytest.raises(OutputClosedError):
            write_now(b"x", writing)
    finally:
        os.close(writing)


async def test_a_file_takes_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("wb") as file:
        output = Output(file.fileno())
        output.add(b"x" * 100_000)
        await output.drain()
    assert path.stat().st_size == 100_000

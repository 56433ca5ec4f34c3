"""The runner of async tests, tried in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
import trio
import trio.testing

from tests.source import ROOT

CASES = """
import hypothesis, hypothesis.strategies as st, pytest, trio

async def test_passes():
    await trio.lowlevel.checkpoint()

async def test_fails():
    assert await trio.sleep(0), "no value"

@pytest.mark.deadline(0.05)
async def test_hangs():
    await trio.sleep_forever()

@hypothesis.given(st.integers())
async def test_property_fails(number):
    await trio.lowlevel.checkpoint()
    assert number < 1_000

async def test_warns():
    trio.sleep(0)
"""


def test_async_tests_pass_fail_and_end_at_their_deadline(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(CASES, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    plugin = ["-p", "tests.conftest", str(tmp_path / "test_cases.py")]
    done = subprocess.run([*command, *plugin], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "4 failed, 1 passed" in done.stdout, done.stdout
    assert "TooSlowError" in done.stdout
    assert "number=1000" in done.stdout
    assert "was never awaited" in done.stdout


async def test_a_virtual_clock_jumps_to_the_next_deadline(autojump_clock: trio.testing.MockClock) -> None:
    start = trio.current_time()
    await trio.sleep(3_600)
    assert trio.current_time() - start == pytest.approx(3_600)
    assert autojump_clock.current_time() == trio.current_time()


@hypothesis.given(st.integers(0, 10))
async def test_a_property_may_be_async(number: int) -> None:
    await trio.lowlevel.checkpoint()
    assert 0 <= number <= 10

"""Replacing a file leaves nothing beside it: not where it fails, not where two do it, and not for long after a kill."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nanotrio.tools.replace import replace_file

KILLED = """
import resource, signal, sys
from pathlib import Path
from nanotrio.tools.replace import replace_file
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
replace_file(Path(sys.argv[1]), b"x" * 1000)
"""
"""The system kills it at the 101st byte of the file beside."""


def killed_while_it_writes(target: Path) -> Path:
    """Return what a process has left that was killed while it replaced ``target``."""
    there = set(target.parent.iterdir())
    done = subprocess.run([sys.executable, "-c", KILLED, str(target)], check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGXFSZ
    (left,) = set(target.parent.iterdir()) - there
    return left


@pytest.mark.parametrize("old", [b"old", None])
def test_what_a_killed_process_left_is_removed_by_the_next_write_of_the_file(old: bytes | None, tmp_path: Path) -> None:
    target = tmp_path / "prices.py"
    if old:
        target.write_bytes(old)
    left = killed_while_it_writes(target)
    assert left.stat().st_size == 100
    assert not target.exists() if old is None else target.read_bytes() == old

    replace_file(target, b"new")

    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_another_writer_s_file_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "prices.py"
    left = killed_while_it_writes(target)
    with left.open() as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        replace_file(target, b"new")

    assert target.read_bytes() == b"new"
    assert sorted(tmp_path.iterdir()) == sorted([left, target])


def test_many_at_once_leave_one_whole_content_and_nothing_beside(tmp_path: Path) -> None:
    target = tmp_path / "prices.py"
    contents = [bytes([number]) * 10_000 * (number + 1) for number in range(8)]
    troubles: list[Exception] = []

    def write(data: bytes) -> None:
        try:
            for _ in range(100):
                replace_file(target, data)
        except Exception as error:  # noqa: BLE001 - shown below
            troubles.append(error)

    threads = [threading.Thread(target=write, args=[data]) for data in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not troubles
    assert target.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [target]


def test_a_name_that_cannot_be_taken_does_not_keep_a_file_from_being_written(tmp_path: Path) -> None:
    target = tmp_path / "prices.py"
    left = killed_while_it_writes(target)
    left.unlink()
    for block in (left.mkdir, lambda: os.mkfifo(left), lambda: left.symlink_to("nowhere")):
        block()
        replace_file(target, b"new")
        assert target.read_bytes() == b"new"
        assert sorted(tmp_path.iterdir()) == sorted([left, target])
        left.rmdir() if left.is_dir() else left.unlink()

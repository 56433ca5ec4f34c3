"""The command as another program runs it: a process of its own, with a home folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["COMMAND", "ROOT", "environment_in", "processes_below", "run_command"]

ROOT = Path(__file__).resolve().parent.parent
"""The root of the repository."""

COMMAND = [sys.executable, "-m", "nanotrio_cli"]
"""What ``nanotrio`` on PATH would run."""


def environment_in(home: Path, server: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a command: a home, a server's address and key, and little of ours."""
    home.mkdir(parents=True, exist_ok=True)
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "cli"))),
        "PYTHONDONTWRITEBYTECODE": "1",
        **server,
    }


def run_command(
    arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str], text: str = "", seconds: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end with ``text`` on its standard input."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=dict(environment),
        input=text,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def processes_below(directory: Path) -> list[str]:
    """Return the command lines of all processes whose working directory is ``directory`` or below it.

    So a process is found whatever became of its parents, its group and its session. Zombies have ended, and have no
    working directory.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            where = (entry / "cwd").readlink()
            line = (entry / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if where.is_relative_to(directory):
            found.append(line)
    return found

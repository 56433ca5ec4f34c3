"""What breaks inside, as a person is told of it."""

from __future__ import annotations

import subprocess
from typing import Any


def test_a_break_in_a_turn_is_lines_and_a_report(command: Any) -> None:
    source = (
        "import sys, nanotrio.swarm.life as life\n"
        "async def broken(*_): raise RuntimeError('snapped')\n"
        "life.ask_model = broken\n"
        "from nanotrio_cli.main import main\nsys.exit(main(['-p', 'x']))"
    )

    done = subprocess.run(
        ["python", "-c", source],
        cwd=command.directory,
        env=command.environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (report,) = (command.data / "logs").iterdir()
    assert [report.name in line for line in done.stderr.splitlines()] == [True, False]
    assert "snapped" in report.read_text()

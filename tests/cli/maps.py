"""How the tests of ``nanotrio map`` put items and read results."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.cli.conftest import Command

__all__ = ["lines_of", "put", "told"]


def put(command: Command, name: str, text: str | bytes) -> str:
    (command.directory / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return name


def lines_of(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def told(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return [line.removeprefix("nanotrio: ") for line in done.stderr.decode().splitlines()]

"""A model server in a process of its own, for tests that kill the client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from .model_server import KEY, environment_for
from .request_log import Seen, read_log

__all__ = ["ROOT", "ServerProcess", "server_process"]

ROOT = Path(__file__).resolve().parents[2]
"""The root of the repository."""


class ServerProcess(msgspec.Struct, frozen=True):
    """A server that runs beside the test."""

    url: str
    log: Path

    def environment(self) -> dict[str, str]:
        """Variables that point a client at it."""
        return environment_for(self.url)

    def requests(self) -> list[Seen]:
        """What it has seen so far."""
        return read_log(self.log)

    def refusals(self) -> list[Seen]:
        """The requests that broke a rule, and those on which the brain failed."""
        return [seen for seen in self.requests() if seen.problem]


@contextmanager
def server_process(brain: str, log: Path, *, latency_seconds: float = 0.0, key: str = KEY) -> Iterator[ServerProcess]:
    """Run a server in a process of its own while the block runs."""
    command = [sys.executable, "-m", "tests.servers.model_server", "--brain", brain, "--log", str(log), "--key", key]
    command += ["--latency", str(latency_seconds)]
    log.touch()
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"the model server did not start; it ended with {process.wait()}"
            yield ServerProcess(url=json.loads(line)["url"], log=log)
        finally:
            process.terminate()

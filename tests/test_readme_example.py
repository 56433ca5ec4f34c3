"""The first example of the README runs as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.invocation import ROOT, environment_in
from tests.servers.server_process import server_process


def test_the_library_example_runs_as_printed(tmp_path: Path) -> None:
    block = re.search(r"^```python[^\n]*\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert block, "the README shows no Python"
    assert "open_swarm" in block[1]
    (tmp_path / "story.txt").write_text("three words here\n")
    with server_process("tests.servers.brains:word_counter", tmp_path / "requests.jsonl") as server:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", block[1]],
            cwd=tmp_path,
            env=environment_in(tmp_path / "home", server.environment()),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        refusals = server.refusals()

    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"completed story\.txt has 3 words\. 0\.\d+\n", done.stdout), done.stdout
    assert not refusals
    assert (tmp_path / "swarm.db").exists()

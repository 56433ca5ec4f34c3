"""Importing the packages does nothing but define names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source import PACKAGES, module_names

PROBE = """
import importlib, json, os, sys, threading

def descriptors():
    return sorted(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else []

before = descriptors()
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps({"threads": threading.active_count(), "descriptors": [before, descriptors()]}))
"""


@pytest.mark.parametrize("names", [["nanotrio"], module_names()], ids=["nanotrio", "every module"])
def test_import_prints_nothing_opens_nothing_and_starts_nothing(names: list[str], tmp_path: Path) -> None:
    paths = os.pathsep.join(str(folder.parent) for folder in PACKAGES.values())
    environment = {
        "HOME": str(tmp_path),
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": paths,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-W", "error", "-c", PROBE, *names]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 1, lines
    seen = json.loads(lines[0])
    assert seen["threads"] == 1
    assert seen["descriptors"][0] == seen["descriptors"][1]
    assert list(tmp_path.iterdir()) == []

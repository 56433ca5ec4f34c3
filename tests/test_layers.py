"""Which room may import which; the contracts stand in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.source import PACKAGES, ROOT, imported, package_files

# No I/O, no clock, no chance: what is here must replay the same for ever.
PURE = [
    "errors",
    "limits",
    "messages",
    "records",
    "session",
    "later_head",
    "open_turn",
    "packing",
    "fact_form",
    "turn",
    "budget",
]
IMPURE = {
    *("trio", "httpx", "httpcore", "apsw", "sqlite3", "psycopg", "anyio", "asyncio", "rich", "prompt_toolkit"),
    *("os", "io", "socket", "select", "ssl", "subprocess", "threading", "multiprocessing", "signal", "tempfile"),
    *("pathlib", "shutil", "time", "datetime", "random", "secrets", "uuid"),
}

# Where an outside package may be imported at all.
HOMES = {
    "httpx": ["nanotrio/models/transport.py"],
    "h11": ["nanotrio/models/"],
    "apsw": ["nanotrio/stores/"],
    "psycopg": ["nanotrio/stores/"],
    "prompt_toolkit": ["cli/nanotrio_cli/"],
    "rich": ["cli/nanotrio_cli/"],
}


def test_import_contracts_are_kept() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_room_has_a_layer() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract.get("exhaustive"))
    named = {word.strip(" ()") for layer in layers for word in layer.replace(":", "|").split("|")}
    rooms = {path.stem for path in PACKAGES["nanotrio"].iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__init__", "__main__", "__pycache__"} <= named


@pytest.mark.parametrize("room", PURE)
def test_a_pure_room_imports_nothing_that_touches_the_world(room: str) -> None:
    files = [path for path in package_files() if path.relative_to(ROOT).as_posix() == f"nanotrio/{room}.py"]
    found = [(str(path.relative_to(ROOT)), *name) for path in files for name in imported(path) if name[1] in IMPURE]
    assert not found


@pytest.mark.parametrize("package", HOMES)
def test_an_outside_package_is_imported_in_its_home_alone(package: str) -> None:
    strangers = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in package_files()
        for line, name in imported(path)
        if name == package and not path.relative_to(ROOT).as_posix().startswith(tuple(HOMES[package]))
    ]
    assert not strangers

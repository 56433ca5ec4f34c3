"""The project's own sources, read once for the tests of its structure."""

from __future__ import annotations

import ast
import functools
import pkgutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"nanotrio": ROOT / "nanotrio", "nanotrio_cli": ROOT / "cli" / "nanotrio_cli"}


@functools.cache
def tracked_files() -> tuple[Path, ...]:
    """Return every file that git knows or would add; in an unpacked archive, every file."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        found = [path for path in ROOT.rglob("*") if ".venv" not in path.parts]
    else:
        found = [ROOT / name for name in listed.split("\0") if name]
    return tuple(sorted(path for path in found if path.is_file()))


def python_files() -> list[Path]:
    """Return every Python file of the project."""
    return [path for path in tracked_files() if path.suffix == ".py"]


def package_files() -> list[Path]:
    """Return the Python files of the two packages."""
    return [path for path in python_files() if any(path.is_relative_to(folder) for folder in PACKAGES.values())]


@functools.cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def module_names() -> list[str]:
    """Return the dotted name of every module of the two packages, those that run on import left out."""
    names = list(PACKAGES)
    for name, folder in PACKAGES.items():
        names += [module.name for module in pkgutil.walk_packages([str(folder)], f"{name}.")]
    return sorted(name for name in names if not name.endswith(".__main__"))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the top-level name of each absolute import in a file, at any depth of nesting."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.lineno, node.module.partition(".")[0]

"""The house rules that no linter knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from vulture import Vulture

from tests.source import ROOT, package_files, python_files, tracked_files, tree

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 500
SHAPELESS = {"utils", "util", "helpers", "helper", "manager", "managers", "core", "base", "common", "misc"}

# Put together here, so that this file holds none of them.
HOSTS = ["pypi" + ".org", "python" + "hosted", "npm" + "js", "deb." + "debian"]
FOLDERS = ["/" + name + "/" for name in ("work", "root", "opt/pypi", "opt/wheels")]

# Nothing in the project calls these, and they stay: name -> why.
KEPT_UNUSED: dict[str, str] = {
    "format_help": "argparse calls it",
    "error": "argparse calls it",
}


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_function_is_longer_than_a_page() -> None:
    long = [
        f"{short(path)}:{node.lineno} {node.name} has {length} lines"
        for path in python_files()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert not long, "\n".join(long)


def test_no_file_is_longer_than_a_noun_needs() -> None:
    counted = {short(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    assert not {name: lines for name, lines in counted.items() if lines > MAX_FILE_LINES}


def test_file_names_say_what_is_inside() -> None:
    assert not [short(path) for path in python_files() if {path.stem, path.parent.name} & SHAPELESS]


@pytest.mark.parametrize("path", [path for path in package_files() if path.name == "__init__.py"], ids=short)
def test_an_init_only_exports(path: Path) -> None:
    for index, node in enumerate(tree(path).body):
        match node:
            case ast.Import() | ast.ImportFrom():
                pass
            case ast.Expr(value=ast.Constant(value=str())) if index == 0:
                pass
            case ast.Assign(targets=[ast.Name(id="__all__" | "__version__")]):
                pass
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body):
                assert all(isinstance(line, ast.Import | ast.ImportFrom) for line in body)
            case ast.FunctionDef(name="__getattr__" | "__dir__"):
                pass
            case _:
                pytest.fail(f"{short(path)}:{node.lineno} does more than export")


def test_our_classes_do_not_inherit_from_one_another_but_errors_do() -> None:
    classes = [
        (path, node) for path in package_files() for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)
    ]
    ours = {node.name for _, node in classes}
    heirs = [
        f"{short(path)}:{node.lineno} {node.name}({name})"
        for path, node in classes
        for name in (base.id for base in node.bases if isinstance(base, ast.Name))
        if name in ours and not name.endswith("Error") and not imports_from_outside(path, name)
    ]
    assert not heirs


def imports_from_outside(path: Path, name: str) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and not node.level
        and not (node.module or "").startswith("nanotrio")
        and any((alias.asname or alias.name) == name for alias in node.names)
        for node in ast.walk(tree(path))
    )


def test_files_name_no_registry_and_no_machine() -> None:
    # A folder counts where a path begins, so that a link with such a folder in its middle does not.
    folders = [rf"(?<![\w.~}}])({re.escape(name)})" for name in FOLDERS]
    pattern = re.compile("|".join([*map(re.escape, HOSTS), *folders]))
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{short(path)}:{number}: {line.strip()[:80]}"
            for number, line in enumerate(text.splitlines(), 1)
            if pattern.search(line)
        ]
    assert not found, "\n".join(found)


def test_no_function_or_class_is_left_that_nothing_names() -> None:
    vulture = Vulture()
    vulture.scavenge([str(path) for path in python_files()])
    candidates = [
        *vulture.unused_funcs,
        *vulture.unused_classes,
        *vulture.unused_imports,
        *vulture.unreachable_code,
        *(method for method in vulture.unused_methods if method.name.startswith("_")),
    ]
    packages = set(package_files())
    left = [
        f"{short(item.filename)}:{item.first_lineno} {item.name}"
        for item in candidates
        if item.filename in packages and item.name not in KEPT_UNUSED and not re.fullmatch(r"__\w+__", item.name)
    ]
    assert not left, "\n".join(left)

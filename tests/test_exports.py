"""What each module says it exports is there, is documented, and has one home."""

from __future__ import annotations

import importlib
import inspect

import pytest

from tests.source import PACKAGES, module_names


def is_package(name: str) -> bool:
    return hasattr(importlib.import_module(name), "__path__")


FILES = [name for name in module_names() if not is_package(name)]
ROOMS = [name for name in module_names() if is_package(name)]


@pytest.mark.parametrize("name", FILES)
def test_a_file_exports_what_it_defines_and_documents_it(name: str) -> None:
    module = importlib.import_module(name)
    assert inspect.getdoc(module), f"{name} has no docstring"
    exported = getattr(module, "__all__", [])
    assert len(set(exported)) == len(exported), f"{name}.__all__ names something twice"
    for item in exported:
        assert hasattr(module, item), f"{name}.__all__ names {item}, which is not there"
        value = getattr(module, item)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__module__ == name, f"{name} exports {item}, whose home is {value.__module__}"
            assert value.__doc__, f"{name}.{item} has no docstring"


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_exports_each_name_from_one_home(name: str) -> None:
    room = importlib.import_module(name)
    exported = getattr(room, "__all__", [])
    assert len(set(exported)) == len(exported), f"{name}.__all__ names something twice"
    if exported and name in PACKAGES:
        assert inspect.getdoc(room), f"{name} has no docstring"
    for item in exported:
        assert hasattr(room, item), f"{name}.__all__ names {item}, which is not there"
        value = getattr(room, item)
        if inspect.ismodule(value) or item.startswith("__"):
            continue
        homes = [
            file
            for file in FILES
            if file.startswith(f"{name.partition('.')[0]}.")
            and item in getattr(importlib.import_module(file), "__all__", [])
            and getattr(importlib.import_module(file), item) is value
        ]
        assert len(homes) == 1, f"{name}.{item} is exported by {homes or 'no file'}"

"""``make soak`` really repeats what is said to be repeated."""

from __future__ import annotations

import re

import pytest

from tests import counts
from tests.source import ROOT, python_files

NAMES = [name for name in vars(counts) if name.isupper() and name != "SOAK"]
TESTS = {path: path.read_text(encoding="utf-8") for path in python_files() if path.is_relative_to(ROOT / "tests")}


@pytest.mark.parametrize("name", NAMES)
def test_a_count_is_used_and_read_from_the_environment_in_one_place(name: str) -> None:
    assert any(f"counts.{name}" in text for text in TESTS.values())
    reading = re.compile(rf"environ\S*NANOTRIO_{name}\b")
    assert not [path for path, text in TESTS.items() if reading.search(text)]


def test_no_property_has_a_number_of_examples_of_its_own() -> None:
    assert not [path for path, text in TESTS.items() if re.search(r"max_examples=\d", text)]

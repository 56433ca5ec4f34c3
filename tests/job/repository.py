"""The small git repository of the real job: a shop whose receipts come out wrong, with a test that says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

__all__ = ["FIXED_LINES", "PROMPT", "JobRepository", "make_repository"]

PROMPT = "Fix the failing test of this repository, and have the other modules checked."

_FILES = {
    ".gitignore": "__pycache__/\n",
    "shop/__init__.py": '"""A small shop."""\n',
    "shop/prices.py": '''"""What a basket costs, in cents."""

FREE_SHIPPING_FROM = 5000
SHIPPING = 490


def discounted(cents, percent):
    """Return the price after a discount, rounded down to whole cents."""
    return cents - cents * percent // 10


def total(basket, percent=0):
    """Return what a basket of (cents, quantity) pairs costs, shipping included."""
    goods = discounted(sum(cents * quantity for cents, quantity in basket), percent)
    if goods > FREE_SHIPPING_FROM:
        return goods
    return goods + SHIPPING
''',
    "shop/stock.py": '''"""What is in store."""


def missing(wanted, stock):
    """Return what a list of wanted names asks for beyond the stock, by name."""
    lacking = {}
    for name in wanted:
        lacking[name] = lacking.get(name, 0) + 1
    return {name: count - stock.get(name, 0) for name, count in lacking.items() if count > stock.get(name, 0)}
''',
    "shop/labels.py": '''"""What stands on a parcel."""


def label(name, street, town):
    """Return the three lines of an address, without stray spaces."""
    return "\\n".join(part.strip() for part in (name, street, town))
''',
    "tests/__init__.py": "",
    "tests/test_prices.py": '''"""Receipts come out right."""

import unittest

from shop.prices import discounted, total


class Prices(unittest.TestCase):
    def test_ten_percent_off(self):
        self.assertEqual(discounted(1000, 10), 900)

    def test_shipping_is_free_from_fifty_on(self):
        self.assertEqual(total([(2500, 2)]), 5000)

    def test_small_baskets_pay_shipping(self):
        self.assertEqual(total([(1000, 1)], percent=10), 1390)
''',
    "tests/test_labels.py": '''"""Labels come out right."""

import unittest

from shop.labels import label


class Labels(unittest.TestCase):
    def test_three_lines(self):
        self.assertEqual(label(" Ada ", "1 Lane", "Town"), "Ada\\n1 Lane\\nTown")
''',
}

FIXED_LINES = (
    ("    return cents - cents * percent // 10\n", "    return cents - cents * percent // 100\n"),
    ("    if goods > FREE_SHIPPING_FROM:\n", "    if goods >= FREE_SHIPPING_FROM:\n"),
)
"""The lines of ``shop/prices.py`` that the job changes, before and after; nothing else may change."""


class JobRepository(msgspec.Struct, frozen=True):
    """A repository at ``path``, with the log of effects beside it, outside git."""

    path: Path

    @property
    def effects(self) -> Path:
        """The file that each step with a visible effect appends its lines to."""
        return self.path.parent / "effects.log"

    def git(self, *arguments: str) -> str:
        """Run git here and return what it prints."""
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.path,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"},
        )
        return done.stdout

    def tests_pass(self) -> bool:
        """Whether the repository's own tests pass."""
        command = [sys.executable, "-m", "unittest", "-q"]
        return subprocess.run(command, cwd=self.path, capture_output=True, check=False).returncode == 0

    def effect_lines(self) -> list[str]:
        """The lines of the log of effects."""
        return self.effects.read_text().splitlines() if self.effects.exists() else []

    def problems(self) -> list[str]:
        """What is wrong with the end state, in sentences; empty when the job is done as intended."""
        found = []
        if self.git("status", "--porcelain").split("\n") != [" M shop/prices.py", ""]:
            found.append(f"not only shop/prices.py changed: {self.git('status', '--porcelain')!r}")
        expected = _FILES["shop/prices.py"]
        for before, after in FIXED_LINES:
            expected = expected.replace(before, after)
        if (self.path / "shop/prices.py").read_text() != expected:
            found.append(f"shop/prices.py is not as intended: {self.git('diff')}")
        if not self.tests_pass():
            found.append("the tests do not pass")
        lines = self.effect_lines()
        found += [
            f"ran twice without the model being told: {line}" for line in sorted(set(lines)) if lines.count(line) > 1
        ]
        ended = {line.split()[1].rpartition(".")[0] for line in lines if line.startswith("end ")}
        if ended != {"fixed", "stock", "labels"}:
            found.append(f"the steps that ended are {sorted(ended)}")
        return found


def make_repository(parent: Path) -> JobRepository:
    """Make the repository in a new directory ``repo`` of ``parent``, with one commit and a failing test."""
    repository = JobRepository(path=parent / "repo")
    for name, text in _FILES.items():
        path = repository.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    repository.git("init", "-q", "-b", "main")
    repository.git("add", "-A")
    repository.git("-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "-q", "-m", "A shop")
    return repository

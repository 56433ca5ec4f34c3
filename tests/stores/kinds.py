"""Every kind of store by its address, a new one each time, for tests that all kinds must pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stores.postgres_server import new_swarm

__all__ = ["KINDS", "Place", "new_url", "place"]

Place = Callable[[str, str], str]

KINDS = ("sqlite", "sqlite+rows", "jsonl", "postgres", "postgres+rows")


@pytest.fixture(params=KINDS)
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Gives the address of a store that is not there yet, another one each time."""
    kind: str = request.param
    if kind.startswith("postgres"):
        server = request.getfixturevalue("postgres")
        return lambda: str(server.url(new_swarm(), kind=kind))
    return lambda: f"{kind}:{tmp_path / new_swarm()}.store"


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Gives the address of the store of a kind and a name; the test's own, the same one each time."""
    swarm = new_swarm()

    def make(kind: str, name: str) -> str:
        if kind.startswith("postgres"):
            return str(request.getfixturevalue("postgres").url(f"{swarm}_{name}", kind=kind))
        return f"{kind}:{tmp_path / name}"

    return make

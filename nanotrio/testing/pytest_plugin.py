"""Fixtures for tests of a program that uses nanotrio; pytest finds them where nanotrio is installed.

They do nothing until a test asks for one, and loading them imports nothing but pytest.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from .child import Forks
    from .crash_runner import CrashRunner
    from .trial import Program

__all__ = ["MakeRunner", "crash_runner", "nanotrio_forks", "nanotrio_store"]

_names = itertools.count(1)


class MakeRunner(Protocol):
    """What the fixture ``crash_runner`` gives."""

    def __call__(
        self,
        program: Program,
        *,
        kind: str = "sqlite",
        seed: int = 0,
        data: dict[str, Any] | None = None,
        repeatable: Collection[str] = (),
    ) -> CrashRunner:
        """Return a runner of ``program`` on a new store of that kind."""
        ...


@pytest.fixture
def nanotrio_store(tmp_path: Path) -> Callable[[str], str]:
    """Gives the address of a store that is not there yet, a new one each time: ``nanotrio_store("sqlite")``.

    Kinds are ``sqlite``, ``sqlite+rows``, ``jsonl``, and those on the server that ``NANOTRIO_TEST_POSTGRES`` names, as
    in ``postgres://me@localhost/test``; without it a test that asks for one is skipped.
    """

    def make(kind: str = "sqlite") -> str:
        name = f"test_{os.getpid()}_{time.time_ns() // 1000}_{next(_names)}"
        if not kind.startswith("postgres"):
            return f"{kind}:{tmp_path / name}"
        server = os.environ.get("NANOTRIO_TEST_POSTGRES", "")
        if not server:
            pytest.skip("NANOTRIO_TEST_POSTGRES names no server")
        return f"{kind}:{server.partition(':')[2]}{'&' if '?' in server else '?'}swarm={name}"

    return make


@pytest.fixture(scope="session")
def nanotrio_forks() -> Iterator[Forks]:
    """The process that those which are killed are forked from; started when first asked for."""
    from .child import Forks

    with Forks() as forks:
        yield forks


@pytest.fixture
def crash_runner(tmp_path: Path, nanotrio_store: Callable[[str], str], nanotrio_forks: Forks) -> MakeRunner:
    """Gives a ``CrashRunner`` for a program: ``crash_runner(program, kind="jsonl", seed=1)``, on a store of its own."""
    from .crash_runner import CrashRunner
    from .trial import Trial

    def make(
        program: Program,
        *,
        kind: str = "sqlite",
        seed: int = 0,
        data: dict[str, Any] | None = None,
        repeatable: Collection[str] = (),
    ) -> CrashRunner:
        effects = tmp_path / f"effects-{next(_names)}"
        trial = Trial(store=nanotrio_store(kind), effects=str(effects), seed=seed, data=data or {})
        return CrashRunner(program, trial, seed=seed, forks=nanotrio_forks, repeatable=repeatable)

    return make

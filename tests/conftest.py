"""Runs ``async def test_*`` under Trio, with a deadline, and on a virtual clock where the test asks for one.

A test on the real clock is cancelled after 60 s, or after the seconds that ``@pytest.mark.deadline(seconds)`` gives it,
and fails where it hung. A test on the virtual clock, or one that holds the loop, is ended with its stacks printed by
pytest's own ``faulthandler_timeout``.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Awaitable, Callable
from typing import Any

import hypothesis
import pytest
import trio
import trio.testing

from nanotrio.testing.pytest_plugin import crash_runner, nanotrio_forks, nanotrio_store
from tests import counts
from tests.stores.kinds import new_url, place
from tests.stores.postgres_server import own_postgres, postgres, postgres_server

__all__ = [
    "autojump_clock",
    "crash_runner",
    "nanotrio_forks",
    "nanotrio_store",
    "new_url",
    "own_postgres",
    "place",
    "postgres",
    "postgres_server",
]

DEADLINE_SECONDS = 60.0

# "explain" would name lines of Trio's scheduler, which every async property passes through.
PHASES = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain]

hypothesis.settings.register_profile(
    "test",
    max_examples=counts.EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=PHASES,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "soak",
    max_examples=counts.EXAMPLES,
    deadline=None,
    database=None,
    phases=PHASES,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("soak" if counts.SOAK else "test")


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """A clock that stands still while anything runs and jumps to the next deadline when all tasks wait."""
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Put a plain function that runs Trio in place of an async test, or of the body of an async property."""
    test = pyfuncitem.obj
    inner = getattr(getattr(test, "hypothesis", None), "inner_test", None)
    if inspect.iscoroutinefunction(inner):
        test.hypothesis.inner_test = run_in_trio(inner, pyfuncitem)
    elif inspect.iscoroutinefunction(test):
        pyfuncitem.obj = run_in_trio(test, pyfuncitem)


def run_in_trio(test: Callable[..., Awaitable[None]], item: pytest.Function) -> Callable[..., None]:
    """Return ``test`` as a plain function that runs it on the clock that the item asked for."""
    clock = next((value for value in item.funcargs.values() if isinstance(value, trio.abc.Clock)), None)
    mark = item.get_closest_marker("deadline")
    seconds = math.inf if clock else float(mark.args[0]) if mark else DEADLINE_SECONDS

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def within_deadline() -> None:
            with trio.fail_after(seconds):
                await test(*args, **kwargs)

        trio.run(within_deadline, clock=clock)

    return run

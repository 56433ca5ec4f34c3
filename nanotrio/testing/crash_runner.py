"""One program and one store, killed again and again, and looked at from outside each time."""

from __future__ import annotations

import random
from collections.abc import Collection

import msgspec
import trio

from ..errors import StoreError
from ..stores import Store, open_store
from .assertions import (
    assert_each_call_answered,
    assert_groups_whole,
    assert_no_effect_twice,
    assert_prefix,
    assert_replays,
    assert_results_kept,
)
from .calls import Calls, read_calls
from .child import Forks
from .crash_run import Crash, Kill, run_until_killed
from .effects import read_effects
from .trial import Program, Trial

__all__ = ["CrashCounts", "CrashRunner"]

_LAST_DELAY_SECONDS = 0.01


class CrashCounts(msgspec.Struct):
    """What some trials came to; add one to another by ``add``."""

    seed: int = 0
    kills: int = 0
    between: int = 0
    """Kills that fell between an intent and its result."""
    late: int = 0
    """Kills that came after the process had ended, and so were none."""
    dispatched: int = 0
    """Calls with an intent."""
    finished: int = 0
    """Of these, calls whose outcome is known."""
    unknown: int = 0

    def add(self, other: CrashCounts) -> None:
        """Add the counts of ``other``; the seed stays."""
        for field in self.__struct_fields__[1:]:
            setattr(self, field, getattr(self, field) + getattr(other, field))

    def __str__(self) -> str:
        return (
            f"seed {self.seed}, {self.kills} kills, {self.between} between intent and result, {self.late} too late; "
            f"calls: {self.dispatched} dispatched, {self.finished} finished, {self.unknown} unknown"
        )


class CrashRunner:
    """Kills a program, lets it go on, and checks its store. For plain tests: every method blocks and runs Trio itself.

    Args:
        program: an async function of a ``Trial``, at the top of its file, or its name. It opens a swarm on
            ``trial.store``, resumes or spawns what it wants done, and returns when all is.
        trial: what it is given.
        seed: what random kills are drawn from.
        forks: processes are forked from it where given, else each is a new Python.
        repeatable: names of tools that may be run again, since they were declared idempotent.
    """

    def __init__(
        self,
        program: Program,
        trial: Trial,
        *,
        seed: int = 0,
        forks: Forks | None = None,
        repeatable: Collection[str] = (),
        deadline_seconds: float = 60.0,
    ) -> None:
        self.program = program
        self.trial = trial
        self.counts = CrashCounts(seed)
        self._forks = forks
        self._repeatable = repeatable
        self._deadline_seconds = deadline_seconds
        self._chance = random.Random(seed)  # noqa: S311 - a seed that is printed is the point
        self._acknowledged = 0
        self._crash = Calls()

    def kill_at(self, point: str, count: int = 1) -> Crash:
        """Run the program until it passes ``point`` for the ``count``-th time, and check what it leaves."""
        return self._run(Kill(point=point, count=count))

    def kill_at_random(self, most_acknowledgements: int) -> Crash:
        """Run the program and kill it at an instant drawn from the seed, then check what it leaves.

        That is after up to ``most_acknowledgements`` commits and some milliseconds; see ``Crash.acknowledgements``.
        """
        after = self._chance.randint(1, max(1, most_acknowledgements))
        return self._run(Kill(acknowledgements=after, seconds=self._chance.uniform(0.0, _LAST_DELAY_SECONDS)))

    def finish(self) -> Crash:
        """Run the program to its end, and check the store.

        Raises:
            AssertionError: the program failed, or a promise is broken; says which, and the seed.
        """
        crash = self._run(None)
        if crash.exit_code:
            raise AssertionError(f"the program ended with exit code {crash.exit_code}: {crash.output[-3000:]}")
        return crash

    def check(self) -> Calls:
        """Check the store as it is now; return what it says of the calls.

        Raises:
            AssertionError: a promise is broken.
        """
        try:
            return trio.run(self._check)
        except AssertionError as error:
            error.add_note(f"seed {self.counts.seed}, {self.counts.kills} kills so far, store {self.trial.store}")
            raise

    def _run(self, kill: Kill | None) -> Crash:
        crash = run_until_killed(
            self.program, self.trial, kill, forks=self._forks, deadline_seconds=self._deadline_seconds
        )
        self._acknowledged = max(self._acknowledged, crash.acknowledged)
        self.counts.kills += crash.killed
        self.counts.late += kill is not None and not crash.killed
        calls = self.check()
        self.counts.between += crash.killed and bool(calls.open_effects())
        self.counts.dispatched = len(calls.intended) - len(calls.joined)
        self.counts.unknown = len(calls.unknown())
        self.counts.finished = len(calls.intended.keys() & calls.ended.keys() - calls.joined) - self.counts.unknown
        self._crash = calls
        return crash

    async def _check(self) -> Calls:
        try:
            store = await open_store(self.trial.store, read_only=True)
        except StoreError as error:
            if type(error) is not StoreError or self._acknowledged:
                raise
            return Calls()  # killed before there was a store
        try:
            await self._check_store(store)
            return await read_calls(store)
        finally:
            with trio.CancelScope(shield=True):
                await store.aclose()

    async def _check_store(self, store: Store) -> None:
        await assert_prefix(store, self._acknowledged)
        await assert_groups_whole(store)
        await assert_replays(store)
        await assert_each_call_answered(store)
        await assert_no_effect_twice(store, read_effects(self.trial.effects), repeatable=self._repeatable)
        await assert_results_kept(store, self._crash)

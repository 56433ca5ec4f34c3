"""What a driver's author and a program's tests need: checks of a port, crashes on purpose, seeded faults.

Nothing here is imported before it is asked for, since pytest loads this package's plugin in every run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..crash import CRASH_POINTS
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
    from .crash_runner import CrashCounts, CrashRunner
    from .crashing import arm_from_environment, crash_at, disarm, report_acknowledged
    from .effects import EffectsLog, log_effects, read_effects
    from .pytest_plugin import MakeRunner
    from .tool_faults import unreliable_tool
    from .trial import Trial
    from .unreliable_model import UnreliableModel
    from .unreliable_store import UnreliableStore

__all__ = [
    "CRASH_POINTS",
    "Calls",
    "Crash",
    "CrashCounts",
    "CrashRunner",
    "EffectsLog",
    "Forks",
    "Kill",
    "MakeRunner",
    "Trial",
    "UnreliableModel",
    "UnreliableStore",
    "arm_from_environment",
    "assert_each_call_answered",
    "assert_groups_whole",
    "assert_no_effect_twice",
    "assert_prefix",
    "assert_replays",
    "assert_results_kept",
    "crash_at",
    "disarm",
    "log_effects",
    "read_calls",
    "read_effects",
    "report_acknowledged",
    "run_until_killed",
    "unreliable_tool",
]


def __getattr__(name: str) -> Any:
    homes = {
        "..crash": ("CRASH_POINTS",),
        ".assertions": tuple(each for each in __all__ if each.startswith("assert_")),
        ".calls": ("Calls", "read_calls"),
        ".child": ("Forks",),
        ".crash_run": ("Crash", "Kill", "run_until_killed"),
        ".crash_runner": ("CrashCounts", "CrashRunner"),
        ".crashing": ("arm_from_environment", "crash_at", "disarm", "report_acknowledged"),
        ".effects": ("EffectsLog", "log_effects", "read_effects"),
        ".pytest_plugin": ("MakeRunner",),
        ".trial": ("Trial",),
        ".unreliable_model": ("UnreliableModel",),
        ".unreliable_store": ("UnreliableStore",),
        ".tool_faults": ("unreliable_tool",),
    }
    for home, names in homes.items():
        if name in names:
            return getattr(importlib.import_module(home, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

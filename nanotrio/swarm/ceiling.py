"""How much memory the process may have, how much it has, and giving some back."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["Ceiling", "available_bytes", "give_back", "resident_bytes"]

_SHARE = 0.8
"""Of the memory there is, unless a ceiling is given."""

_RELIEVED = 0.95
"""Below this part of the ceiling all is well again; between the two nothing changes, so it does not flicker."""

_LOOKS = 256
"""A start of an agent reads the size once in so many times."""

_NONE = 1 << 62


class Ceiling:
    """Whether the process has as much memory as it may have.

    ``read`` returns its size in bytes; where a system cannot tell, 0, and the ceiling is never reached.
    """

    __slots__ = ("_looks", "is_reached", "max_bytes", "read")

    def __init__(self, max_bytes: int | None = None, read: Callable[[], int] | None = None) -> None:
        self.read = read or resident_bytes
        self.max_bytes = int(available_bytes() * _SHARE) if max_bytes is None else max_bytes
        self.is_reached = False
        self._looks = 0

    def look(self) -> bool:
        """Read the size; return whether the answer has changed."""
        size = self.read()
        was_reached = self.is_reached
        self.is_reached = size >= self.max_bytes * (_RELIEVED if was_reached else 1)
        return self.is_reached != was_reached

    def glance(self) -> bool:
        """Read the size now and then, cheap enough for each start of an agent; return whether the answer changed."""
        self._looks += 1
        return self._looks % _LOOKS == 0 and self.look()

    def trouble(self) -> str:
        """Say what is wrong, for people; empty where nothing is."""
        if not self.is_reached:
            return ""
        return (
            f"the process has {self.read() / 2**20:.0f} MiB of memory, and max_memory_bytes is "
            f"{self.max_bytes / 2**20:.0f} MiB; new agents wait until others have ended"
        )


def resident_bytes() -> int:
    """Return how much memory of the process is resident; 0 where the system does not say (it is Linux that does)."""
    try:
        with Path("/proc/self/statm").open("rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def available_bytes() -> int:
    """Return how much memory the machine has, or the control group of the process where that is less."""
    bounds = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_group_bounds()]
    return min([bound for bound in bounds if bound > 0], default=_NONE)


def _group_bounds() -> Iterator[int]:
    """Yield the bounds of the control groups above the process, in both versions of the interface."""
    root = Path("/sys/fs/cgroup")
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top, name = (root, "memory.max") if not controllers else (root / "memory", "memory.limit_in_bytes")
        group = top / path.lstrip("/")
        for each in (group, *group.parents):
            try:
                yield int((each / name).read_text())
            except (OSError, ValueError):  # no bound there ("max"), or not our file system
                continue


def give_back() -> None:
    """Give free pages back to the system, where its C library has a call for that (glibc). Blocks some milliseconds."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return

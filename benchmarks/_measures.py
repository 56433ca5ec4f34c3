"""What a benchmark looks at while something runs: stalls of the loop, memory, what was written to disk.

Everything here is read from ``/proc``, so the benchmarks run on Linux alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

__all__ = [
    "MemoryWatch",
    "Stalls",
    "cpu_seconds",
    "peak_mb",
    "print_result",
    "process_tree",
    "pss_mb",
    "refuse_tmpfs",
    "written_bytes",
]

_BEAT_SECONDS = 0.005
_LOOK_SECONDS = 0.2
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


class Stalls:
    """The longest that the loop kept a task waiting that was due."""

    def __init__(self) -> None:
        self.wall_seconds = 0.0
        self.cpu_seconds = 0.0
        """CPU time of the loop's thread between two turns of the heartbeat: what other programs do does not count."""

    def reset(self) -> None:
        """Forget what was seen."""
        self.wall_seconds = self.cpu_seconds = 0.0

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Note how late a task that sleeps for 5 ms is woken, until cancelled."""
        while True:
            before, cpu = time.perf_counter(), time.thread_time()
            await trio.sleep(_BEAT_SECONDS)
            self.wall_seconds = max(self.wall_seconds, time.perf_counter() - before - _BEAT_SECONDS)
            self.cpu_seconds = max(self.cpu_seconds, time.thread_time() - cpu)

    def figures(self) -> dict[str, float]:
        """Return both in milliseconds."""
        return {"worst_stall_ms": self.wall_seconds * 1000, "worst_stall_cpu_ms": self.cpu_seconds * 1000}


class MemoryWatch:
    """The peak of this process's proportional set size.

    The kernel walks all pages to tell it, milliseconds for each 100 MB, so it is read in a thread and only when the
    resident size, which costs microseconds, stands more than a hundredth above where it was read last.
    """

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self._resident_mb = 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            resident_mb = _resident_mb()
            if resident_mb > self._resident_mb * 1.01:
                self._resident_mb = resident_mb
                self.peak_mb = max(self.peak_mb, await trio.to_thread.run_sync(pss_mb))
            await trio.sleep(_LOOK_SECONDS)


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_MB


def pss_mb(pid: int | str = "self") -> float:
    """Return the proportional set size of a process in MB: shared pages count by how many share them."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.split("\nPss:")[1].split()[0]) / 1024


def peak_mb() -> float:
    """Return the peak resident size since the process began; no less than the proportional one."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def written_bytes(pid: int | str = "self") -> int:
    """Return what a process and those of its children that have ended and were waited for gave the disk to write."""
    return int(Path(f"/proc/{pid}/io").read_text().split("write_bytes: ")[1].split()[0])


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of its children that have ended, in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def process_tree(pid: int) -> list[int]:
    """Return the ids of a process and of all below it."""
    found = [pid]
    for each in found:
        try:
            found += map(int, Path(f"/proc/{each}/task/{each}/children").read_text().split())
        except FileNotFoundError:
            continue
    return found


def refuse_tmpfs(path: Path) -> None:
    """End the program where ``path`` lies in memory: nothing would be written to a disk."""
    command = ["stat", "-f", "-c", "%T", str(path)]
    kind = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        raise SystemExit(f"{path} is a {kind}; name a folder or a store on a real file system")


def print_result(result: Mapping[str, Any]) -> None:
    """Print a result as one line of JSON."""
    print(json.dumps({name: round(each, 4) if isinstance(each, float) else each for name, each in result.items()}))

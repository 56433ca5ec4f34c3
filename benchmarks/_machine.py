"""What a figure depends on beside the program: the machine, the versions, and how fast the machine was just then."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["fixed_loop_ms", "machine", "versions"]

_PACKAGES = ("nanotrio", "trio", "apsw", "psycopg", "cbor2", "msgspec")


def machine(folder: Path) -> dict[str, Any]:
    """Return the machine's make, and the file system that ``folder`` is on."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    stat = subprocess.run(["stat", "-f", "-c", "%T", str(folder)], capture_output=True, text=True, check=False)
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 2**20, 1),
        "kernel": platform.release(),
        "file_system": stat.stdout.strip(),
    }


def versions() -> dict[str, str]:
    """Return the versions of what is measured."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def fixed_loop_ms() -> float:
    """Return how long a fixed piece of work takes: a machine that does other work as well takes longer."""
    started = time.perf_counter()
    total = 0
    for number in range(2_000_000):
        total += number & 7
    return round((time.perf_counter() - started) * 1000, 1)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []

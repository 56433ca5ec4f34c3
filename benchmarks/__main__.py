"""Run the benchmarks, and append what each prints to its file of results.

    python -m benchmarks                          about a quarter of an hour on two quiet cores; ``make bench``
    python -m benchmarks --size full --rounds 3   all figures of docs/benchmarks.md, some hours
    python -m benchmarks --only swarm recovery

Each line of a file of results has the machine, the versions, the time of a fixed loop before and after, and the
command. ``python -m benchmarks._tables`` then writes docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._machine import fixed_loop_ms, machine, versions
from benchmarks._places import KINDS
from benchmarks._tables import RESULTS

_SWARM = "swarm --agents {agents} --roots {roots} --active {active}"


def plan(size: str) -> list[str]:
    """Return the commands of a size, without ``python -m benchmarks.``."""
    if size == "tiny":
        swarm = _SWARM.format(agents=400, roots=2, active=50)
        return [
            f"{swarm} --store sqlite",
            f"{swarm} --cancel cancel",
            "recovery --agents 400 --roots 2 --active 50 --second 0.2",
            "answers --active 50 --samples 4",
            "footprint --count 200",
            "agent_cost --small 200 --large 400 --active 50 --rounds 1 --step-agents 200",
            "journal --records 4000 --busy-records 2000 --repeats 1",
            "reopen --finished 400 --unfinished 20",
        ]
    swarm = _SWARM.format(agents=100_000, roots=10, active=5_000)
    one_tree = _SWARM.format(agents=100_000, roots=1, active=5_000)
    commands = [
        *[f"{swarm} --store {kind}" for kind in KINDS],
        *[f"{one_tree} --cancel {way}" for way in ("cancel", "scope", "sigint")],
        *[f"recovery --store {kind}" for kind in ("sqlite", "postgres")],
        *[f"answers --store {kind}" for kind in ("sqlite", "postgres")],
        "footprint --count 20000",
        "agent_cost --rounds 1",
        *[f"journal --store {kind}" for kind in ("sqlite", "jsonl", "postgres")],
    ]
    if size == "full":
        million = _SWARM.format(agents=1_000_000, roots=10, active=5_000)
        commands += [f"{million} --store {kind}" for kind in ("sqlite", "postgres")]
        commands += [f"reopen --finished 1000000 --unfinished 5000 --store {kind}" for kind in ("sqlite", "postgres")]
    else:
        commands += [f"reopen --finished 100000 --unfinished 500 --store {kind}" for kind in ("sqlite", "postgres")]
    return commands


def run(command: str, folder: Path | None, max_seconds: float) -> dict[str, Any] | str:
    """Run a command; return the object on its last line, or why there is none."""
    name, *arguments = command.split()
    arguments += ["--folder", str(folder)] if folder else []
    with subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{name}", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=max_seconds)
        except subprocess.TimeoutExpired:
            return f"ended after {max_seconds:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        return f"ended with {process.returncode}"
    try:
        result = json.loads(output.rstrip().rpartition("\n")[2])
    except ValueError:
        return "its last line is no JSON"
    return result if isinstance(result, dict) else "its last line is no object"


def main() -> int:
    """Run what the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("tiny", "default", "full"), default="default")
    parser.add_argument("--rounds", type=int, default=1, help="times the whole plan is gone through")
    parser.add_argument("--only", nargs="+", default=[], help="names of benchmarks")
    parser.add_argument("--folder", type=Path, help="for stores, on a real disk; a temporary one otherwise")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--max-minutes", type=float, help="what has not begun by then is left out; 15, full 600")
    args = parser.parse_args()
    minutes = args.max_minutes or (600 if args.size == "full" else 15)
    deadline = time.monotonic() + minutes * 60
    commands = [each for each in plan(args.size) if not args.only or each.split()[0] in args.only]
    where = machine(args.folder or Path(tempfile.gettempdir()))
    passed, failed, left_out = 0, 0, 0
    args.results.mkdir(exist_ok=True, parents=True)
    for command in commands * args.rounds:
        left = deadline - time.monotonic()
        if left <= 0:
            left_out += 1
            print(f"{command}: left out, {minutes:g} minutes are over", flush=True)
            continue
        before, load = fixed_loop_ms(), os.getloadavg()[0]
        result = run(command, args.folder, max(left, 60))
        if isinstance(result, str):
            failed += 1
            print(f"{command}: {result}", flush=True)
            continue
        passed += 1
        print(f"{command}: {json.dumps(result)}", flush=True)
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        about = {"command": command, "load": load, "fixed_loop_ms": [before, fixed_loop_ms()]}
        line = {"at": at, **result, **about, "machine": where, "versions": versions()}
        with (args.results / f"{command.split()[0]}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    print(f"benchmarks: {passed} passed, {failed} failed, {left_out} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Every check and every test, with one line each, and the counts on the last line.

``python tests/run.py`` is ``make test``; ``--soak`` sets the full counts, ``--lint`` leaves the tests out. The checks
run two at a time, a check's output is shown only where it failed, and any failure is a non-zero exit.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
TREES = [name for name in ("nanotrio", "cli", "tests", "benchmarks", "docs") if (ROOT / name).is_dir()]
MAX_TEST_SECONDS = 1_800
MAX_SOAK_SECONDS = 6 * 3_600
PACKAGES = ["nanotrio", "cli/nanotrio_cli"]

CHECKS: dict[str, list[str]] = {
    "types": ["mypy", "--strict", "--no-error-summary", *PACKAGES],
    "trio rules": [
        "flake8",
        "--select=ASYNC",
        "--extend-ignore=ASYNC109,ASYNC114,ASYNC124,ASYNC127,ASYNC9",
        "nanotrio",
        "cli",
    ],
    "format": ["ruff", "format", "--check", "--quiet", "--diff", "."],
    "lint": ["ruff", "check", "--quiet", "."],
    "layers": ["lint-imports", "--no-cache"],
    "spelling": ["codespell", *TREES, "README.md", "CHANGELOG.md", "Makefile", "pyproject.toml"],
}


class Counts(NamedTuple):
    """What ran, and how it ended."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def plus(self, other: Counts) -> Counts:
        """Return the sums."""
        return Counts(*(mine + its for mine, its in zip(self, other, strict=True)))


def run_check(name: str) -> tuple[str, int, str, float]:
    """Run one check; return its name, exit code, output and seconds."""
    start = time.perf_counter()
    command = [str(BIN / CHECKS[name][0]), *CHECKS[name][1:]]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return name, done.returncode, done.stdout, time.perf_counter() - start


def run_checks() -> Counts:
    """Run all checks; return their counts."""
    counts = Counts()
    with ThreadPoolExecutor(2) as pool:
        for future in as_completed([pool.submit(run_check, name) for name in CHECKS]):
            name, code, output, seconds = future.result()
            print(f"{'failed' if code else 'ok':8}{name:14}{seconds:6.1f} s", flush=True)
            if code:
                print(output.rstrip(), flush=True)
            counts = counts.plus(Counts(failed=1) if code else Counts(passed=1))
    return counts


def read_report(path: Path, code: int) -> Counts:
    """Return the counts in pytest's report; a run without a test, or broken off, is one failure."""
    if not path.exists():
        return Counts(failed=1)
    suites = ET.parse(path).getroot().findall("testsuite")
    total, failures, errors, skipped = (
        sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    if code and not failed:
        failed = 1
    return Counts(max(total - failures - errors - skipped, 0), failed, skipped)


def run_tests(*, soak: bool, arguments: list[str]) -> Counts:
    """Run pytest on two processes, its output passed through."""
    environment = dict(os.environ)
    options = ["-n", "2", "--dist", "worksteal", "-q", "--durations", "5", "--durations-min", "2"]
    if soak:
        environment["NANOTRIO_SOAK"] = "1"
        options += ["-o", "faulthandler_timeout=3600"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", *arguments]
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        ) as pytest:
            try:
                code = pytest.wait(MAX_SOAK_SECONDS if soak else MAX_TEST_SECONDS)
            except subprocess.TimeoutExpired as error:
                print(f"the tests were ended after {error.timeout:.0f} s", flush=True)
                return Counts(failed=1)
            finally:
                if pytest.poll() is None:
                    os.killpg(pytest.pid, signal.SIGKILL)
        return read_report(report, code)


def main() -> int:
    """Run what the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(description="Run every check and test of nanotrio.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--soak", action="store_true", help="full counts")
    what.add_argument("--lint", action="store_true", help="the checks alone")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    arguments = parser.parse_args()
    counts = run_checks()
    if not arguments.lint:
        counts = counts.plus(run_tests(soak=arguments.soak, arguments=arguments.pytest))
    print(f"nanotrio: {counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped")
    return 1 if counts.failed or not counts.passed else 0


if __name__ == "__main__":
    sys.exit(main())

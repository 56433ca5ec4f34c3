"""``nanotrio store``: look a store through, save it, copy it, drop what is old, count what is in it.

What was done is told on standard output, in lines for people or one JSON object; what is wrong as well, with exit code
1. Whatever makes a store makes a new one: the one that was named stays as it is.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
import trio

from nanotrio.counted import counted
from nanotrio.limits import usd
from nanotrio.stores import StoreCare, beside

from .care_arguments import StoreOptions
from .exits import FAILED, OK
from .output import encode_line, write_error, write_now
from .printable import printable
from .sessions import check_url

__all__ = ["care_for"]


def care_for(options: StoreOptions) -> int:
    """Do what the options say and return the exit code: 1 where something is wrong with the store.

    Raises:
        CommandLineError: an address is none.
        NanotrioError: the store cannot be used, or the new one not be made.
    """
    check_url(options.url)
    if options.target is not None:
        check_url(options.target)
    return trio.run(_care_for, options)


async def _care_for(options: StoreOptions) -> int:
    care = StoreCare(options.url)
    match options.action:
        case "check":
            return await _check(options, care)
        case "repair":
            await _repair(options, care)
        case "prune":
            await _prune(options, care)
        case "copy":
            copied = await care.copy(options.target or "")
            what = f"{counted(copied.records, 'record')} and {counted(copied.heads, 'head')}"
            said = f"copied {what} to {copied.target}, and compared them"
            _tell(options, copied, said)
        case _:
            await _stats(options, care)
    return OK


async def _check(options: StoreOptions, care: StoreCare) -> int:
    report = await care.check()
    if report.warning:
        write_error(f"nanotrio: {report.warning}")
    if report.is_whole:
        _tell(options, report, f"whole: {counted(report.records, 'record')} of {counted(report.agents, 'agent')}")
        return OK
    more = report.problem_count - len(report.problems)
    problems = [*report.problems, *([f"and {more:,} more"] if more else [])]
    advice = f"nanotrio store repair {report.url}"
    lines = [*problems, f"{counted(report.problem_count, 'problem')}; save what can be by: {advice}"]
    _tell(options, report, "\n".join(lines))
    return FAILED


async def _repair(options: StoreOptions, care: StoreCare) -> None:
    report = await care.repair(options.target or "")
    records = counted(report.records, "record")
    if not report.is_new:
        said = f"the log is whole ({records}); heads and tables were made anew"
    elif report.lost:
        said = f"saved {records} into {report.url}; lost: {report.lost}"
    else:
        said = f"saved all of {records} into {report.url}"
    _tell(options, report, said)


async def _prune(options: StoreOptions, care: StoreCare) -> None:
    before_us = round((time.time() - options.older_than_seconds) * 1e6)
    report = await care.prune(options.target or beside(options.url, "pruned"), before_us)
    _tell(
        options,
        report,
        f"dropped {counted(report.roots, 'session')} of {counted(report.agents, 'agent')}, kept {report.kept_roots:,} "
        f"of {report.kept_agents:,}: {_size(report.bytes_before)} became {_size(report.bytes_after)}\n"
        f"the new store is {report.target}; {report.source} is as it was",
    )


async def _stats(options: StoreOptions, care: StoreCare) -> None:
    summary = await care.stats()
    counts = summary.statistics
    agents = ", ".join(f"{count:,} {status}" for status, count in sorted(summary.agents.items()))
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(summary.outcomes.items()))
    usage = summary.usage
    rows = [
        ("store", counts.url),
        (
            "size",
            _size(counts.size_bytes) + (f" and {_size(counts.pending_bytes)} to be moved" * bool(counts.pending_bytes)),
        ),
        ("records", f"{counts.records:,}"),
        ("sessions", f"{summary.roots:,}"),
        ("agents", f"{counts.heads:,}" + (f" ({agents})" if agents else "")),
        ("outcomes", outcomes or "none"),
        ("unfinished", f"{summary.unfinished:,}"),
        (
            "tokens",
            f"{usage.input:,} in, {usage.output:,} out, cache {usage.cache_read:,} read, {usage.cache_write:,} written",
        ),
        ("cost", f"${usd(summary.spent_nano):,.4f}"),
        ("uncertain", f"${usd(summary.uncertain_nano):,.4f}"),
        ("owner", f"process {counts.owner.pid}" if counts.owner else "none"),
    ]
    if counts.warning:
        write_error(f"nanotrio: {counts.warning}")
    _tell(options, summary, "\n".join(f"{name:12}{value}" for name, value in rows))


def _tell(options: StoreOptions, report: Any, said: str) -> None:
    if options.json:
        write_now(encode_line(msgspec.to_builtins(report)))
    else:
        write_now((printable(said) + "\n").encode("utf-8", "replace"))


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:,.1f} KB"

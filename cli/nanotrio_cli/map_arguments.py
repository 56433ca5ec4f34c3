"""The command line of ``nanotrio map``."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from .agent_arguments import add_agent_flags

__all__ = ["MapRunOptions", "add_map"]


class MapRunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``nanotrio map``."""

    items: str
    """A file, a pattern of file names, or ``-``."""
    prompt: str
    format: str | None
    """``lines``, ``jsonl``, ``csv`` or ``glob``; None where the name of the items says."""
    output: str | None
    model: str | None
    store: str | None
    max_budget_usd: float | None
    item_budget_usd: float | None
    retries: int
    retry_failed: bool
    concurrency: int
    duplicates: str
    """``keep``, ``skip`` or ``error``."""
    max_turns: int | None
    json_schema: str | None
    """As given: the text of a schema, or the path of a file that holds one."""
    system_prompt: str | None
    append_system_prompt: str | None
    permission_mode: str | None
    allowed_tools: tuple[str, ...]
    denied_tools: tuple[str, ...]
    takeover: bool
    dry_run: bool
    no_progress: bool


def add_map(parser: argparse.ArgumentParser, filled: Any, positive_int: Any, positive_number: Any) -> None:
    """Add what may follow ``nanotrio map``."""
    add = parser.add_argument
    add("items", type=filled, metavar="ITEMS", help="a file of lines, .jsonl or .csv, a pattern in quotes, or -")
    add("--prompt", type=filled, required=True, metavar="TEMPLATE", help="with {item} and names of columns; {{ is a {")
    add("--format", choices=("lines", "jsonl", "csv", "glob"), help="of ITEMS, where its name does not say")
    add(
        "--output",
        type=filled,
        metavar="FILE",
        help="for the results, JSON lines; without it, or with -, standard output",
    )
    add("--model", type=filled, help="for example anthropic/claude-sonnet-4-5, openai-chat/NAME, scripted/NAME")
    add("--store", type=filled, metavar="URL", help="sqlite:PATH; without it each job has a file of its own")
    add("--max-budget-usd", type=positive_number, metavar="USD", help="what the whole job may cost")
    add("--item-budget-usd", type=positive_number, metavar="USD", help="what one try of an item may cost")
    add("--retries", type=_count, default=0, metavar="N", help="fresh agents for an item that failed (%(default)s)")
    add("--retry-failed", action="store_true", help="try those again that a former run left as failed")
    add("--concurrency", type=positive_int, default=32, metavar="N", help="items at work at once (%(default)s)")
    add(
        "--duplicates",
        choices=("keep", "skip", "error"),
        default="keep",
        help="what to do with an item that was there before (%(default)s)",
    )
    add("--max-turns", type=positive_int, metavar="N", help="model calls before an item's turn is ended")
    add("--json-schema", type=filled, metavar="JSON", help="a schema, or a file of one, that each result must fit")
    add_agent_flags(parser)
    add("--no-host", action="store_true", help="run in this process; so far every run does")
    add("--dry-run", action="store_true", help="show counts and the first prompts, and run nothing")
    add("--no-progress", action="store_true", help="say nothing before the end")


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)

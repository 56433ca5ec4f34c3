"""The command lines of ``nanotrio store``, ``export`` and ``sql``."""

from __future__ import annotations

import argparse
import re
from typing import Any

import msgspec

__all__ = ["ExportOptions", "SqlOptions", "StoreOptions", "add_export", "add_sql", "add_store", "made_options"]

_AGES = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``nanotrio store check|repair|prune|copy|stats``."""

    action: str
    url: str
    target: str | None
    """Where a new store is made."""
    older_than_seconds: float
    json: bool


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``nanotrio export``."""

    id: str | None
    store: str | None
    format: str
    """``jsonl`` or ``markdown``."""
    tree: bool


class SqlOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``nanotrio sql``."""

    sql: str
    store: str
    json: bool
    limit: int


def add_store(parser: argparse.ArgumentParser, filled: Any, kind: type[Any]) -> None:
    """Add what may follow ``nanotrio store``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="check|repair|prune|copy|stats")

    def add(name: str, what: str) -> Any:
        return actions.add_parser(name, prog=f"nanotrio store {name}", help=what, description=what, allow_abbrev=False)

    check = add("check", "read everything and say what is wrong")
    repair = add("repair", "make heads and tables anew, or save what can be read of a damaged store into a new one")
    prune = add("prune", "write a new store without finished sessions that are older than asked")
    copy = add("copy", "copy everything into a new store of any kind, byte for byte")
    stats = add("stats", "count what is in it")
    for each in (check, repair, prune, copy, stats):
        assert isinstance(each, kind)
        each.add_argument("url", type=filled, metavar="URL", help="for example sqlite:PATH")
        each.add_argument("--json", action="store_true", help="for machines: one JSON object")
    copy.add_argument("target", type=filled, metavar="NEW_URL", help="where nothing is yet")
    for each in (repair, prune):
        ending = "repaired" if each is repair else "pruned"
        each.add_argument("--into", dest="target", type=filled, metavar="NEW_URL", help=f"URL.{ending} without it")
    prune.add_argument("--older-than", type=_age, required=True, metavar="AGE", help="30d, 12h, 45m or 8w")


def add_export(parser: argparse.ArgumentParser, filled: Any) -> None:
    """Add what may follow ``nanotrio export``."""
    parser.add_argument("id", nargs="?", type=filled, help="a session or an agent; this folder's newest without it")
    parser.add_argument("--store", type=filled, metavar="URL", help="that store alone")
    parser.add_argument("--format", choices=("jsonl", "markdown"), default="jsonl", help="(%(default)s)")
    parser.add_argument("--tree", action="store_true", help="with everyone below it")


def add_sql(parser: argparse.ArgumentParser, filled: Any, positive_int: Any) -> None:
    """Add what may follow ``nanotrio sql``."""
    parser.add_argument("sql", type=filled, metavar="QUERY", help="one SELECT")
    kinds = "a row store: sqlite+rows:PATH or postgres+rows://...?swarm=NAME"
    parser.add_argument("--store", type=filled, required=True, metavar="URL", help=kinds)
    parser.add_argument("--json", action="store_true", help="for machines: one JSON object a row")
    parser.add_argument("--limit", type=positive_int, default=10_000, metavar="N", help="rows at most (%(default)s)")


def made_options(command: str, found: argparse.Namespace) -> StoreOptions | ExportOptions | SqlOptions:
    """Return what was parsed as a value."""
    if command == "export":
        return ExportOptions(id=found.id, store=found.store, format=found.format, tree=found.tree)
    if command == "sql":
        return SqlOptions(sql=found.sql, store=found.store, json=found.json, limit=found.limit)
    return StoreOptions(
        action=found.action,
        url=found.url,
        target=getattr(found, "target", None),
        older_than_seconds=getattr(found, "older_than", 0.0),
        json=found.json,
    )


def _age(text: str) -> float:
    found = re.fullmatch(r"(\d{1,6})([mhdw])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age; write 30d, 12h, 45m or 8w")
    return float(int(found[1]) * _AGES[found[2]])

"""What is known of the items before any money is spent: how many, what is wrong with which, the first prompts."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import msgspec

from nanotrio.counted import counted
from nanotrio.errors import UsageError
from nanotrio.limits import Limits
from nanotrio.swarm import Template
from nanotrio.swarm.template import hint

from .exits import CommandError, CommandLineError
from .map_items import FileItems, GlobItems, Items
from .map_rows import Row, RowReader

__all__ = ["Duplicates", "Survey", "check_columns", "prompt_of", "survey_of"]

_TOLD = 10
SHOWN = 3


class Survey(msgspec.Struct, frozen=True):
    """Counts and examples."""

    items: int
    """How many agents there will be."""
    duplicates: int
    first: tuple[tuple[str, str], ...]
    """Place and prompt of the first few."""


class Duplicates:
    """Knows which items were there before. It keeps a hundred bytes an item."""

    def __init__(self, policy: str, where: Callable[[Row], str], tell: Callable[[str], None]) -> None:
        self.count = 0
        self._policy = policy
        self._where = where
        self._tell = tell
        self._lines: dict[int, int] = {}

    def check(self, row: Row) -> Row | None:
        """Return the row as it is to be used, None where it is to be left out. The first one is told of."""
        if not row.line or row.problem:
            return row
        digest = int.from_bytes(blake2b(row.key, digest_size=8).digest(), "big")
        line = self._lines.setdefault(digest, row.line)
        if line == row.line:
            return row
        self.count += 1
        same = f"the same as line {line}"
        if self._policy == "error":
            return msgspec.structs.replace(row, problem=f"it is {same} (--duplicates keep or skip takes it)")
        if self.count == 1:
            kept = "done as well, as all such are; --duplicates skip leaves them out"
            what = "left out, as all such are" if self._policy == "skip" else kept
            self._tell(f"{self._where(row)} is {same}: {what}")
        return None if self._policy == "skip" else row


def prompt_of(row: Row, template: Template) -> str:
    """Return the row's prompt.

    Raises:
        UsageError: it has none; says why.
    """
    if row.problem:
        raise UsageError(row.problem)
    prompt = template.render(row.values)
    if not prompt.strip():
        raise UsageError("its prompt is empty")
    size = len(prompt.encode("utf-8", "replace"))
    if size > (most := Limits().max_message_bytes):
        raise UsageError(
            f"its prompt has {counted(size, 'byte')}, and max_message_bytes is {most:,}; let the agent read a file"
        )
    return prompt


def check_columns(template: Template, items: Items, reader: RowReader | None, row: Row | None) -> None:
    """Refuse a template that asks for what the items do not have; ``row`` is the first of them.

    Raises:
        CommandLineError: names what is asked for, and what there is.
    """
    if items.form == "csv":
        known = list(dict.fromkeys(("item", *(reader.columns if reader is not None else ()))))
    elif items.form == "glob":
        known = ["item", "text"]
    elif items.form == "jsonl":
        if row is None or row.problem:
            return
        known = list(row.values)
    else:
        known = ["item"]
    for name in template.fields:
        if name in known:
            continue
        where = "" if items.form in ("lines", "glob") or row is None else f" {items.where(row)} has"
        there = ", ".join(f"{{{one}}}" for one in known)
        raise CommandLineError(f"--prompt asks for {{{name}}}, and{where or ' there is'} {there}; {hint(name, known)}")


def survey_of(items: FileItems | GlobItems, template: Template, policy: str, tell: Callable[[str], None]) -> Survey:
    """Read everything once and return what is there; nothing is kept but digests while it is read.

    Raises:
        CommandLineError: the template asks for what is not there.
        CommandError: rows that cannot be used; ``tell`` was called with a line for each of the first few.
    """
    duplicates = Duplicates(policy, items.where, tell)
    count, bad = 0, 0
    first: list[tuple[str, str]] = []
    is_checked = False
    if items.form != "csv":
        check_columns(template, items, None, None)
    for reader, row in items.read():
        if not is_checked:
            is_checked = True
            check_columns(template, items, reader, row)
        used = duplicates.check(row)
        if used is None:
            continue
        count += 1
        try:
            prompt = prompt_of(used, template)
        except UsageError as problem:
            bad += 1
            if bad <= _TOLD:
                tell(f"{items.where(row)}: {problem}")
            continue
        if len(first) < SHOWN:
            first.append((items.where(row), prompt))
    if bad:
        more = f"; the first {_TOLD} are told" if bad > _TOLD else ""
        raise CommandError(f"{bad:,} of {counted(count, 'item')} in {items.name} cannot be used{more}; nothing was run")
    if not count:
        what = "no file has such a name" if items.form == "glob" else "there is no item in it"
        raise CommandError(f"{items.name}: {what}; nothing was run")
    return Survey(count, duplicates.count, tuple(first))

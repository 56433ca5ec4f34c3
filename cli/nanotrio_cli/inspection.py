"""``nanotrio ls``, ``show`` and ``tree``: stores as they lie, read without disturbing whoever runs them.

With a terminal they are tables and colours; without one plain text, a row a line; with ``--json`` one object a line.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import trio

from nanotrio import AgentView, read_session
from nanotrio.limits import usd
from nanotrio.messages import Message, Text, Thinking, ToolCall, ToolResult
from nanotrio.swarm.reading import Tree

from .arguments import InspectOptions
from .data_folder import DataFolder
from .exits import OK
from .folded_tree import Line, status_of, tree_lines
from .money import cost_text, view_cost
from .output import encode_line, write_error, write_now
from .printable import one_line, printable
from .result import usage_record
from .sessions import Found, Skipped, check_url, find, newest, read_trees, read_views, shown_url, working_directory
from .stream import content_records
from .transcript import call_line

__all__ = ["below", "draw", "inspect", "table", "view_record"]

_LISTED = 200
"""Agents that a list for people shows; the others are counted."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_STYLES = {
    "completed": "green",
    "running": "cyan",
    "settling": "cyan",
    "pending": "dim",
    "idle": "dim",
    "closed": "dim",
    "interrupted": "yellow",
}


def inspect(options: InspectOptions, environment: Mapping[str, str]) -> int:
    """Do what the options say and return the exit code.

    Raises:
        CommandError: nobody answers to the id.
        NanotrioError: a store cannot be read.
    """
    return trio.run(_inspect, options, environment)


async def _inspect(options: InspectOptions, environment: Mapping[str, str]) -> int:
    many = options.store is None
    if options.store is not None:
        check_url(options.store)
    urls = DataFolder(environment).stores() if many else [options.store or ""]
    if options.command == "ls":
        await _list(options, urls, one_of_many=many)
        return OK
    if options.command == "tree" and options.id is None and not many:
        views = await read_views(urls[0], Skipped(of_many=False))
        _print_tree(options, views, None)
        return OK
    if options.id is None:
        found = await newest(urls, working_directory(), one_of_many=many)
    else:
        found = await find(urls, options.id, one_of_many=many)
    if options.command == "tree":
        _print_tree(options, await found.read_tree(), found.view.id)
    else:
        await _show(options, found)
    return OK


def view_record(view: AgentView, url: str) -> dict[str, Any]:
    """Return an agent as an object for machines."""
    return {
        "id": view.id,
        "name": view.name,
        "session_id": view.uuid,
        "parent": view.parent or None,
        "root": view.root,
        "depth": view.depth,
        "status": view.status,
        "outcome": view.outcome,
        "model": view.model,
        "turn": view.turn,
        "usage": usage_record(view.usage),
        "cost_usd": None if view.unpriced else usd(view.spent_nano),
        "uncertain_cost_usd": usd(view.uncertain_nano),
        "task": view.task,
        "directory": view.directory,
        "created_us": view.created_us,
        "updated_us": view.updated_us,
        "store": shown_url(url) if url else "",
    }


async def _list(options: InspectOptions, urls: Sequence[str], *, one_of_many: bool) -> None:
    rows: list[tuple[AgentView, str, int]] = []
    skipped = Skipped(of_many=one_of_many)
    for url in urls:
        if options.all:
            views = await read_views(url, skipped)
            sizes = Counter(view.root for view in views)
            rows += [(view, url, sizes[view.id]) for view in views]
        else:
            trees = await read_trees(url, skipped)
            rows += [(tree.root if options.json else _shown(tree), url, tree.agents) for tree in trees]
    skipped.tell()
    if not options.all:
        rows.sort(key=lambda row: row[0].updated_us, reverse=True)
    if options.json:
        for start in range(0, len(rows), _LISTED):
            some = rows[start : start + _LISTED]
            write_now(b"".join(encode_line(view_record(view, url)) for view, url, _ in some))
        return
    shown = rows[:_LISTED]
    if os.isatty(1):
        drawn = table("session", "when", "agents", "status", "cost", "task", whole=5)
        for view, _, size in shown:
            drawn.add_row(*(_cell(cell) for cell in _short_cells(view, size)))
        draw(drawn)
    else:
        write_now("".join("\t".join(_cells(view, size)) + "\n" for view, _, size in shown).encode())
    if rest := rows[_LISTED:]:
        write_error(f"nanotrio: and {_counted(rest)} more; --json lists all {len(rows):,}")


def _shown(tree: Tree) -> AgentView:
    """Return a root as people are shown it: one of a map, that has no task and takes no turn, as its job stands."""
    if tree.root.task or not tree.first_task:
        return tree.root
    status = tree.root.status
    if tree.is_unfinished:
        status = "running" if tree.is_owned else "interrupted"
    return msgspec.structs.replace(tree.root, status=status, task=f"map: {tree.first_task}")


def _counted(rows: Sequence[tuple[AgentView, str, int]]) -> str:
    counts = Counter(status_of(view) for view, _, _ in rows)
    return ", ".join(f"{count:,} {status}" for status, count in counts.most_common())


def _cells(view: AgentView, size: int) -> tuple[str, ...]:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(view.updated_us / 1e6))
    name = printable(view.name) if view.parent else view.uuid
    return (name, when, f"{size:,}" if size else "", status_of(view), view_cost(view), one_line(view.task, 60))


def _short_cells(view: AgentView, size: int) -> tuple[str, ...]:
    """Return the same for a line of a terminal, with room for the task: of a UUID, the beginning is as good."""
    name, when, agents, status, cost, task = _cells(view, size)
    if not view.parent and _UUID.fullmatch(name):
        name = name[:8]
    if view.uncertain_nano:
        cost = f"{cost_text(view.spent_nano, unpriced=view.unpriced)}+"
    return name, when, agents, status, cost, task


def _print_tree(options: InspectOptions, views: Sequence[AgentView], top: int | None) -> None:
    if options.json:
        chosen = below(views, top)
        write_now(b"".join(encode_line(view_record(view, options.store or "")) for view in chosen))
        return
    lines = tree_lines(views, root=top)
    if os.isatty(1):
        draw(*(_styled(line) for line in lines))
    else:
        write_now("".join(line.text() + "\n" for line in lines).encode())


def below(views: Sequence[AgentView], top: int | None) -> list[AgentView]:
    """Return ``top`` and its descendants in order of creation; parents come before their children."""
    ordered = sorted(views, key=lambda view: view.id)
    if top is None:
        return ordered
    kept = {top}
    for view in ordered:
        if view.parent in kept:
            kept.add(view.id)
    return [view for view in ordered if view.id in kept]


async def _show(options: InspectOptions, found: Found) -> None:
    session = await read_session(found.url, found.view.id)
    if options.json:
        write_now(encode_line({"type": "agent", **view_record(found.view, found.url)}))
        for message in session.messages:
            write_now(encode_line({"type": message.role, "content": content_records(message), "model": message.model}))
        return
    view = found.view
    head = f"{view.name}  {status_of(view)}  {view_cost(view)}  {view.model}\nsession {found.root.uuid}\n"
    head += f"in {view.directory}\nstore {shown_url(found.url)}\n"
    write_now(printable(head).encode())
    for message in session.messages:
        write_now(("\n" + _message_text(message)).encode("utf-8", "replace"))
    if session.turn is None and session.ended is not None and session.ended.fact.reason:
        fact = session.ended.fact
        write_now(printable(f"\n{fact.status}: {fact.reason}\n").encode("utf-8", "replace"))


def _message_text(message: Message) -> str:
    lines: list[str] = []
    for part in message.parts:
        match part:
            case Text():
                mark = "> " if message.role == "user" else ""
                lines += [mark + line for line in printable(part.text).splitlines()]
            case Thinking():
                lines.append(f"(thinking: {one_line(part.text, 200)})" if part.text else "(thinking, not shown)")
            case ToolCall():
                lines.append(f"• {call_line(part, 200)}")
            case ToolResult():
                lines.append(f"  {'failed: ' if part.is_error else ''}{one_line(part.content, 200)}")
    return "\n".join(lines) + "\n"


def table(*columns: str, whole: int = 0) -> Any:
    """Return an empty table for ``draw``; the first ``whole`` columns keep their width, the others make room."""
    import rich.table

    made = rich.table.Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        made.add_column(column, no_wrap=index < whole, overflow="ellipsis")
    return made


def _cell(text: str) -> Any:
    import rich.text

    return rich.text.Text(text, style=_STYLES.get(text, ""), no_wrap=True, overflow="ellipsis")


def _styled(line: Line) -> Any:
    import rich.text

    if line.folded:
        return rich.text.Text(line.branch + line.folded, style="dim")
    text = rich.text.Text(line.branch + line.name, no_wrap=True, overflow="ellipsis")
    text.append(f"  {line.status}", style=_STYLES.get(line.status, "red"))
    text.append(f"  {line.cost}", style="dim")
    return text.append(f"  {line.task}")


def draw(*things: Any) -> None:
    """Draw on the terminal through rich, and write what it drew ourselves."""
    import rich.console

    console = rich.console.Console()
    with console.capture() as drawn:
        for thing in things:
            console.print(thing)
    write_now(drawn.get().encode("utf-8", "replace"))

"""``nanotrio export``: one session, whole, as JSON lines or Markdown.

JSON lines are those of ``show --json``, and at the end of each agent one with the outcome of its last turn. In Markdown
what tools were told and said is fenced, by a fence longer than any in it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, assert_never

import trio

from nanotrio import AgentView, read_session
from nanotrio.limits import usd
from nanotrio.messages import Message, Text, Thinking, ToolCall, ToolResult
from nanotrio.session import Session

from .care_arguments import ExportOptions
from .data_folder import DataFolder
from .exits import OK
from .folded_tree import status_of
from .inspection import below, view_record
from .output import encode_line, write_now
from .printable import printable
from .sessions import Found, check_url, find, newest, working_directory
from .stream import content_records

__all__ = ["export"]


def export(options: ExportOptions, environment: Mapping[str, str]) -> int:
    """Print what the options name and return the exit code.

    Raises:
        CommandLineError: the address of the store is none.
        CommandError: nobody answers to the id.
        NanotrioError: a store cannot be read.
    """
    if options.store is not None:
        check_url(options.store)
    return trio.run(_export, options, environment)


async def _export(options: ExportOptions, environment: Mapping[str, str]) -> int:
    many = options.store is None
    urls = DataFolder(environment).stores() if many else [options.store or ""]
    if options.id is not None:
        found = await find(urls, options.id, one_of_many=many)
    else:
        found = await newest(urls, working_directory(), one_of_many=many)
    views = below(await found.read_tree(), found.view.id) if options.tree else [found.view]
    for view in views:
        session = await read_session(found.url, view.id)
        if options.format == "jsonl":
            write_now(b"".join(encode_line(record) for record in _records(view, found, session)))
        else:
            text = _markdown(view, found, session)
            write_now((printable(text) if os.isatty(1) else text).encode("utf-8", "replace"))
    return OK


def _records(view: AgentView, found: Found, session: Session) -> Iterator[dict[str, Any]]:
    yield {"type": "agent", **view_record(view, found.url)}
    for message in session.messages:
        yield {
            "type": message.role,
            "agent": view.name,
            "content": content_records(message),
            "model": message.model,
        }
    if session.ended is not None:
        fact = session.ended.fact
        yield {
            "type": "outcome",
            "agent": view.name,
            "turn": session.ended.turn,
            "status": fact.status,
            "reason": fact.reason,
            "result": fact.result,
            "last_text": fact.last_text,
        }


def _markdown(view: AgentView, found: Found, session: Session) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(view.created_us / 1e6))
    cost = "unknown" if view.unpriced else f"${usd(view.spent_nano):.4f}"
    about = {
        "session": found.root.uuid,
        "status": status_of(view),
        "model": view.model,
        "directory": view.directory,
        "created": f"{when} UTC",
        "cost": cost,
    }
    blocks = [f"# {view.name}", "\n".join(f"- {name}: {value}" for name, value in about.items())]
    for message in session.messages:
        blocks.append("## User" if message.role == "user" else f"## Assistant ({message.model})")
        blocks += _parts(message)
    if session.turn is None and session.ended is not None and session.ended.fact.reason:
        blocks += ["## Outcome", f"{session.ended.fact.status}: {session.ended.fact.reason}"]
    return "\n\n".join(block for block in blocks if block) + "\n\n"


def _parts(message: Message) -> Iterator[str]:
    for part in message.parts:
        match part:
            case Text():
                yield part.text
            case Thinking():
                yield "\n".join(f"> {line}" for line in part.text.splitlines())
            case ToolCall():
                yield f"**{part.name}**\n\n{_fenced(part.arguments, 'json')}"
            case ToolResult():
                yield f"**{'failed' if part.is_error else 'result'}**\n\n{_fenced(part.content)}"
            case _:
                assert_never(part)


def _fenced(text: str, language: str = "") -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip(chr(10))}\n{fence}"

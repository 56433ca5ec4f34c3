"""The page on questions in SQL: its columns are the tables' columns, and its queries tell what a swarm did."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import trio

import nanotrio
from nanotrio.errors import ModelError
from nanotrio.models import Conversation, Price, Reply, ScriptedModel, reply_calls, reply_text
from nanotrio.stores.answer import Answer
from nanotrio.stores.query import query
from tests.source import ROOT
from tests.stores.test_rows import LOG, write_log_to

PAGE = (ROOT / "docs" / "guides" / "sql.md").read_text(encoding="utf-8")
TABLES = ["agents", "messages", "tool_calls", "mail", "usage"]
QUERIES = dict(re.findall(r"^## ([^\n]*)\n(?:(?!^## ).)*?^```sql\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
on_row_stores = pytest.mark.parametrize("new_url", ["sqlite+rows", "postgres+rows"], indirect=True)


@on_row_stores
@pytest.mark.parametrize("table", TABLES)
async def test_the_page_names_every_column_and_no_other(table: str, new_url: Callable[[], str]) -> None:
    section = PAGE.split(f"\n## {table}\n")[1].split("\n## ")[0]
    url = new_url()
    await write_log_to(url, LOG, (100,))
    columns = (await query(url, f"SELECT * FROM {table}")).columns
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == columns


@nanotrio.tool
async def fetch(page: str) -> str:
    """Fetch a page. page: which."""
    if page == "lost":
        raise ValueError("no such page")
    return f"{page} is here"


def _answer(conversation: Conversation) -> Any:
    match conversation.task, conversation.steps:
        case "lead", 0:
            specs = [{"prompt": task, "name": task} for task in ("reader", "writer")]
            return reply_calls(("spawn_agents", {"agents": specs}), ("wait_agents", {}))
        case "reader", 0:
            return reply_calls(("fetch", {"page": "one"}), ("fetch", {"page": "lost"}))
        case "reader", 1:
            return reply_calls(("spawn_agent", {"prompt": "helper", "name": "helper", "background": False}))
        case "writer", 0:
            return reply_calls(("fetch", {"page": "two"}), text="I begin.")
        case "writer", _:
            return ModelError("the model is gone", kind="rejected")
        case "stuck", 0:
            return reply_calls(("hang", {}))
        case task, _:
            return reply_text(f"{task} is done")


def _script(conversation: Conversation) -> Reply:
    answer: Reply = _answer(conversation)
    return answer


async def _run(url: str) -> dict[str, Answer]:
    """Run a swarm on the store, cut it off within a call, let it go on, and ask everything on the page."""
    model = ScriptedModel(_script, price=Price(1_000, 1_000, 1_000, 1_000))
    scope = trio.CancelScope()

    @nanotrio.tool
    async def hang() -> str:
        """Do not return."""
        scope.cancel()
        await trio.sleep_forever()
        return ""

    with scope:
        async with nanotrio.open_swarm(store=url, model=model, tools=[fetch, hang], environment={}) as swarm:
            await (await swarm.spawn("lead")).wait()
            await (await swarm.spawn("stuck")).wait()
    async with nanotrio.open_swarm(store=url, model=model, tools=[fetch, hang], environment={}) as swarm:
        for agent in await swarm.resume_all():
            await agent.wait()
    return {title: await query(url, sql) for title, sql in QUERIES.items()}


@on_row_stores
async def test_the_queries_on_the_page_tell_what_a_swarm_did(new_url: Callable[[], str]) -> None:
    answers = await _run(new_url())
    assert not any(answer.is_cut or answer.behind for answer in answers.values())
    rows = {title: answer.rows for title, answer in answers.items()}
    assert [row[:2] for row in rows.pop("Cost by subtree")] == [("reader.2", 2), ("writer.3", 1)]
    tools = rows.pop("Slowest tools")
    assert {name: told for name, *told in [row[:3] for row in tools]} == {
        "fetch": [3, 1],
        "hang": [1, 1],
        "spawn_agent": [1, 0],
        "spawn_agents": [1, 0],
        "wait_agents": [1, 0],
    }
    times = [(float(mean or 0), float(longest or 0)) for *_, mean, longest in tools]
    assert all(mean <= longest for mean, longest in times)
    assert times == sorted(times, key=lambda pair: -pair[0])
    failed = rows.pop("Agents that failed, with their last text")
    assert [row[:4] for row in failed] == [("writer.3", "failed", "the model is gone", "I begin.")]
    assert rows == {"What is unread": [], "Calls whose outcome nobody knows": [("agent.5", "hang", "{}")]}

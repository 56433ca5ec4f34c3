"""The page on questions in SQL: its columns are the tables' columns, and its queries run."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest

from nanotrio.stores.query import query
from tests.source import ROOT
from tests.stores.test_rows import LOG, write_log

PAGE = (ROOT / "docs" / "guides" / "sql.md").read_text(encoding="utf-8")
TABLES = ["agents", "messages", "tool_calls", "mail", "usage"]
QUERIES = re.findall(r"^## ([^\n]*)\n(?:(?!^## ).)*?^```sql\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("table", TABLES)
async def test_the_page_names_every_column_and_no_other(table: str, tmp_path: Path) -> None:
    section = PAGE.split(f"\n## {table}\n")[1].split("\n## ")[0]
    await write_log(tmp_path / "rows.db", LOG, (100,))
    connection = apsw.Connection(f"{tmp_path}/rows.db")
    columns = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
    connection.close()
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == columns


@pytest.mark.parametrize(("title", "sql"), QUERIES, ids=[title for title, _ in QUERIES])
async def test_every_query_on_the_page_runs(title: str, sql: str, tmp_path: Path) -> None:
    await write_log(tmp_path / "rows.db", LOG, (100,))
    answer = await query(f"sqlite+rows:{tmp_path}/rows.db", sql)
    assert answer.columns
    expected = {
        "Cost by subtree": [("w.2", 1, 20, None)],
        "Agents that failed, with their last text": [
            ("root.1", "failed", "no money", "I start.", "1970-01-01 00:00:00")
        ],
    }
    assert answer.rows == expected.get(title, answer.rows)


def test_there_are_queries_on_the_page() -> None:
    assert len(QUERIES) >= 5

"""A question in SQL to a row store, answered without disturbing its owner."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import apsw
import trio

from ..errors import UsageError
from .address import parse_url
from .answer import SEVERAL, Answer, Value
from .sqlite_file import check_file, connect, explain
from .sqlite_rows import rows_seq

__all__ = ["query"]

_SECONDS: Final = 300.0
_QUERIES = trio.CapacityLimiter(4)
_NOTHING = re.compile(r"(?>\s|;|--[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
"""What may follow a statement without being another one."""


async def query(url: str, sql: str, *, limit: int = 10_000, seconds: float = _SECONDS) -> Answer:
    """Run one SQL query on the tables of a row store, for reading only. Checkpoints.

    A transaction is held for as long as the query runs, and no longer. Cancelling it ends it at once, on a server too.
    A server ends it after ``seconds``. The SQL is that of SQLite or Postgres; of what Postgres returns, numbers stay
    numbers, truth becomes 1 or 0, and the rest is its text.

    Raises:
        UsageError: the SQL is wrong, is several statements, or would write, it ran for too long, or the store has no
            tables.
        StoreError: the store cannot be read.
    """
    address = parse_url(url)
    if address.server is not None:
        from .postgres_query import query_postgres

        return await query_postgres(address.server, sql, limit, seconds)
    if address.scheme not in ("sqlite", "sqlite+rows"):
        raise UsageError(
            f"{url} has no tables to ask; copy it with `nanotrio store copy {url} sqlite+rows:PATH` and ask the copy"
        )
    asked = _Asked(address.path, sql, limit)
    try:
        return await trio.to_thread.run_sync(asked.answer, limiter=_QUERIES, abandon_on_cancel=True)
    finally:
        asked.interrupt()


class _Asked:
    """A query in its thread; ``interrupt`` is the one method for another thread."""

    def __init__(self, path: Path, sql: str, limit: int) -> None:
        self.path = path
        self.sql = sql
        self.limit = limit
        self._db: apsw.Connection | None = None
        self._is_over = False

    def interrupt(self) -> None:
        self._is_over = True
        db = self._db
        if db is not None:
            db.interrupt()

    def answer(self) -> Answer:
        if not check_file(self.path):
            raise UsageError(f"there is no store at {self.path}")
        try:
            db = connect(self.path, read_only=True)
            try:
                return self._answer(db)
            finally:
                self._db = None
                db.close()
        except apsw.Error as error:
            raise explain(error, self.path) from error

    def _answer(self, db: apsw.Connection) -> Answer:
        db.set_busy_timeout(10_000)
        done = rows_seq(db)
        if done < 0:
            raise UsageError(
                f"{self.path} has no tables; opened once as sqlite+rows:{self.path}, it gets them and keeps them"
            )
        last: int = db.execute("SELECT coalesce(max(seq), 0) FROM log").get
        db.authorizer = _reads_only
        self._db = db
        try:
            if self._is_over:
                return Answer((), [], is_cut=False, behind=0)
            columns: list[str] = []
            is_begun = False

            def note_columns(cursor: apsw.Cursor, statement: str, _bindings: object) -> bool:
                nonlocal is_begun
                if is_begun:  # a comment, which is passed over as a statement of its own
                    return True
                is_begun = True
                if not _NOTHING.fullmatch(self.sql.removeprefix(statement)):
                    raise UsageError(SEVERAL)
                # Once it has run, a query without a row has no columns to tell any more.
                columns[:] = [name for name, *_ in cursor.get_description()]
                return True

            cursor = db.cursor()
            cursor.exec_trace = note_columns
            rows: list[tuple[Value, ...]] = []
            is_cut = False
            for row in cursor.execute(self.sql):
                if len(rows) == self.limit:
                    is_cut = True
                    break
                rows.append(row)
            return Answer(tuple(columns), rows, is_cut=is_cut, behind=last - done)
        except apsw.AuthError as error:
            raise UsageError("the query cannot be run: it does more than read") from error
        except (apsw.SQLError, apsw.ReadOnlyError, apsw.MisuseError, ValueError) as error:
            raise UsageError(f"the query cannot be run: {error}") from error


def _reads_only(action: int, *_: str | None) -> int:
    allowed = (apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE)
    return apsw.SQLITE_OK if action in allowed else apsw.SQLITE_DENY

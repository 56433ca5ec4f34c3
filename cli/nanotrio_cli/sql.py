"""``nanotrio sql``: a question to a row store, for reading only.

On a terminal the answer is a table, elsewhere CSV (RFC 4180, with newlines as line ends), with ``--json`` an object a
line. Blobs are shown in hexadecimal.
"""

from __future__ import annotations

import csv
import io
import os
from typing import Any

import trio

from nanotrio.counted import counted
from nanotrio.stores import Answer, query

from .care_arguments import SqlOptions
from .exits import OK
from .inspection import draw, table
from .output import encode_line, write_error, write_now
from .printable import one_line
from .sessions import check_url

__all__ = ["ask"]

_CELL_CHARACTERS = 200


def ask(options: SqlOptions) -> int:
    """Run the query, print the answer and return the exit code.

    Raises:
        CommandLineError: the address of the store is none.
        NanotrioError: the query is wrong, or the store has no tables or cannot be read.
    """
    check_url(options.store)
    answer = trio.run(_query, options)
    if options.json:
        names = answer.columns
        write_now(b"".join(encode_line(dict(zip(names, map(_plain, row), strict=True))) for row in answer.rows))
    elif os.isatty(1):
        _draw(answer)
    else:
        write_now(_csv(answer).encode("utf-8", "replace"))
    if answer.is_cut:
        write_error(f"nanotrio: there are more than {counted(len(answer.rows), 'row')}; --limit N shows more")
    if answer.behind:
        write_error(
            f"nanotrio: the tables lack {counted(answer.behind, 'record')} at the end of the log, which a run wrote "
            "that named the store without +rows; opened once with it they are there"
        )
    return OK


async def _query(options: SqlOptions) -> Answer:
    return await query(options.store, options.sql, limit=options.limit)


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _csv(answer: Answer) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(answer.columns)
    writer.writerows([[_plain(value) for value in row] for row in answer.rows])
    return text.getvalue()


def _draw(answer: Answer) -> None:
    import rich.text

    drawn = table(*(one_line(name, _CELL_CHARACTERS) for name in answer.columns))
    for row in answer.rows:
        cells = ["" if value is None else one_line(str(_plain(value)), _CELL_CHARACTERS) for value in row]
        drawn.add_row(*(rich.text.Text(cell) for cell in cells))
    draw(drawn)

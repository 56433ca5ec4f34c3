"""Write the stores that are kept here, by the version of nanotrio that is installed.

    python -m tests.stores.kept.make v1

They stay as they are: a later version must open, list, resume and copy what an earlier one wrote. When the form on disk
changes, another pair is written by the last release that had the old one.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import trio

import nanotrio
from nanotrio.models import Conversation, ScriptedModel, reply_calls, reply_text
from nanotrio.stores import StoreCare
from tests.stores.postgres_server import PostgresServer

HERE = Path(__file__).parent


@nanotrio.tool
async def press(button: str) -> str:
    """Press a button. button: which."""
    if button == "stuck":
        await trio.sleep_forever()
    return f"{button} was pressed"


def script(conversation: Conversation) -> Any:
    """Answer by task: a family, an agent whose tool never ends, or plain text."""
    match conversation.task, conversation.steps:
        case "family", 0:
            children = [{"name": "kid", "prompt": f"press {word}", "background": False} for word in ("red", "blue")]
            return reply_calls(*[("spawn_agent", child) for child in children])
        case task, 0 if task.startswith("press "):
            return reply_calls(("press", {"button": task.removeprefix("press ")}))
        case task, _:
            return reply_text(f"{task} is done, caf\u00e9 \u2014 W\0s")


async def write(url: str) -> None:
    """Write a family, a fork of it, a closed agent, and one that is cut off in the middle of a call."""
    with trio.move_on_after(1):
        async with nanotrio.open_swarm(
            store=url, model=ScriptedModel(script), tools=[press], system="Be short.", directory="/", environment={}
        ) as swarm:
            family = await swarm.spawn("family", budget_usd=5)
            await family.wait()
            fork = await family.fork()
            await fork.send("go on")
            await fork.wait()
            closed = await swarm.spawn("plain")
            await closed.wait()
            await closed.close()
            await swarm.spawn("press stuck")
            await trio.sleep_forever()


def dump(source: str) -> str:
    """Copy a store into Postgres and return what makes it again: SQL for the schema ``nanotrio_kept``."""
    server = PostgresServer()
    try:
        server.start()
        trio.run(StoreCare(source).copy, server.url("kept"))
        command = [server.programs / "pg_dump", "--schema=nanotrio_kept", "--inserts", "--no-owner", "--no-privileges"]
        place = ["--host", server.folder, "--port", str(server.port), "--username", "postgres", "postgres"]
        text = subprocess.run([*command, *place], check=True, capture_output=True, text=True).stdout
    finally:
        server.remove()
    # Settings of the session are those of the server's version, backslashes are for psql, and some servers lack LZ4.
    left_out = ("SET ", "SELECT pg_catalog.set_config", "\\", "--")
    lines = [line for line in text.splitlines() if line and not line.startswith(left_out)]
    return "\n".join([line for line in lines if "SET COMPRESSION" not in line]) + "\n"


def main() -> None:
    """Write ``NAME.db.gz``, ``NAME.jsonl`` and ``NAME.sql`` beside this file."""
    name = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.db"
        trio.run(write, f"sqlite:{path}")
        (HERE / f"{name}.db.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        other = Path(folder) / f"{name}.jsonl"
        trio.run(StoreCare(f"sqlite:{path}").copy, f"jsonl:{other}")
        for ending in ("", ".heads"):
            (HERE / f"{name}.jsonl{ending}").write_bytes(Path(f"{other}{ending}").read_bytes())
        (HERE / f"{name}.sql").write_text(dump(f"sqlite:{path}"))


if __name__ == "__main__":
    main()

"""A swarm on Postgres: it runs, its process is killed, and it goes on where it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import nanotrio
from nanotrio.models import Conversation, Reply, ScriptedModel, reply_calls, reply_text
from nanotrio.records import Head
from nanotrio.stores import Owner, open_store
from tests.stores.postgres_server import NamedServer, PostgresServer, new_swarm

ROOT = Path(__file__).parents[2]
CHILDREN = 12
ACTIVE = 4


@nanotrio.tool
def note(number: str) -> str:
    """Add a line to the notes. number: what to add."""
    with Path("notes.txt").open("a", encoding="utf-8") as notes:
        notes.write(f"{number}\n")
    return "noted"


def script(conversation: Conversation) -> Reply:
    """A root that waits for its children; a child that notes its number in a file, once, and hands it in."""
    kind, _, number = conversation.task.partition(" ")
    if kind == "root":
        return reply_text("noted")
    if conversation.steps == 0:
        return reply_calls(("note", {"number": number}))
    return reply_calls(("submit_result", {"result": number}))


async def run_until_killed(url: str) -> None:
    """The program that dies, some commits after its start."""
    model = ScriptedModel(script, name="scripted/notes", latency_seconds=0.01)
    async with nanotrio.open_swarm(store=url, model=model, tools=[note], max_active=ACTIVE) as swarm:
        root = await swarm.spawn("root", name="root")
        for number in range(CHILDREN):
            await root.spawn(f"child {number}", name="w")
        await swarm.flush()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await root.wait()
        await trio.sleep_forever()


def test_a_swarm_on_postgres_is_killed_and_goes_on(
    postgres: PostgresServer | NamedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    url = postgres.url(new_swarm())
    program = "import sys, trio; from tests.swarm.test_postgres_swarm import run_until_killed as run; "
    command = [sys.executable, "-c", program + "trio.run(run, sys.argv[1])", url]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    heads, owner = trio.run(go_on, url)
    assert len(heads) == CHILDREN + 1
    assert not [head.name for head in heads if head.unfinished]
    assert owner is None
    notes = (tmp_path / "notes.txt").read_text().split()
    # None twice; those in flight at the kill may never have been written, and their agents were told so.
    assert len(set(notes)) == len(notes)
    assert CHILDREN - ACTIVE <= len(notes) <= CHILDREN


async def go_on(url: str) -> tuple[list[Head], Owner | None]:
    model = ScriptedModel(script, name="scripted/notes", latency_seconds=0.01)
    async with nanotrio.open_swarm(store=url, model=model, tools=[note]) as swarm:
        await swarm.resume_all()
    store = await open_store(url, read_only=True)
    found = await store.heads(), (await store.statistics()).owner
    await store.aclose()
    return found

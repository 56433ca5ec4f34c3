"""Stores that earlier releases wrote: they are opened, listed, resumed and copied by this one."""

from __future__ import annotations

import gzip
from contextlib import suppress
from pathlib import Path

import apsw
import psycopg
import pytest

import nanotrio
from nanotrio.errors import NewerStoreError
from nanotrio.messages import Text, ToolResult
from nanotrio.models import ScriptedModel
from nanotrio.records import FORMAT_VERSION
from nanotrio.stores import StoreCare, open_store
from nanotrio.stores.postgres_address import parse_postgres_url
from nanotrio.stores.postgres_connection import TrioConnection, connect
from nanotrio.stores.postgres_schema import STEPS as SCHEMA_STEPS
from nanotrio.stores.postgres_schema import upgrade as upgrade_schema
from nanotrio.stores.sqlite_file import STEPS, upgrade
from tests.stores.kept.make import HERE, press, script
from tests.stores.postgres_server import NamedServer, PostgresServer, new_swarm

FORMS = [f"v{form}" for form in range(1, FORMAT_VERSION + 1)]
KEPT = [f"{kind}:{form}" for form in FORMS for kind in ("sqlite", "jsonl", "postgres", "postgres+rows")]
EXPECTED = [
    ("agent.1", "idle", "completed"),
    ("kid.2", "idle", "completed"),
    ("kid.3", "idle", "completed"),
    ("agent.4", "idle", "completed"),
    ("agent.5", "closed", "completed"),
    ("agent.6", "interrupted", None),
]


def unpack(server: PostgresServer | NamedServer, swarm: str, form: str) -> None:
    """Make a kept store again in Postgres."""
    server.execute((HERE / f"{form}.sql").read_text().replace("nanotrio_kept", f"nanotrio_{swarm}"))


@pytest.fixture(params=KEPT)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Unpack a kept store and return its address."""
    kind, _, form = request.param.partition(":")
    if kind.startswith("postgres"):
        swarm = new_swarm()
        server = request.getfixturevalue("postgres")
        unpack(server, swarm, form)
        return str(server.url(swarm, kind=kind))
    if kind == "sqlite":
        (tmp_path / "old").write_bytes(gzip.decompress((HERE / f"{form}.db.gz").read_bytes()))
    else:
        for ending in ("", ".heads"):
            (tmp_path / f"old{ending}").write_bytes((HERE / f"{form}.jsonl{ending}").read_bytes())
    return f"{kind}:{tmp_path}/old"


async def test_a_kept_store_is_listed_and_whole(url: str) -> None:
    views = await nanotrio.read_store(url)
    assert [(view.name, view.status, view.outcome) for view in views] == EXPECTED
    report = await StoreCare(url).check()
    assert report.problems == ()
    family = await nanotrio.read_session(url, 1)
    texts = [part.text for message in family.messages for part in message.parts if isinstance(part, Text)]
    assert texts == ["family", "family is done, caf\u00e9 \u2014 W\0s"]
    fork = await nanotrio.read_session(url, 4)
    assert fork.messages[: len(family.messages)] == family.messages
    assert fork.snapshot_seq == 0


async def test_a_kept_store_is_resumed_and_goes_on(url: str) -> None:
    async with nanotrio.open_swarm(
        store=url, model=ScriptedModel(script), tools=[press], directory="/", environment={}
    ) as swarm:
        (agent,) = await swarm.resume_all()
        outcome = await agent.wait()
        assert (outcome.status, outcome.agent) == ("completed", 6)
        fork = await (await swarm.resume("agent.1")).fork()
        assert fork.id == 7
    session = await nanotrio.read_session(url, 6)
    (result,) = [part for message in session.messages for part in message.parts if isinstance(part, ToolResult)]
    assert "outcome unknown" in result.content
    assert (await StoreCare(url).check()).is_whole


@pytest.mark.parametrize("kind", ["sqlite", "sqlite+rows", "jsonl"])
async def test_a_kept_store_is_copied_and_pruned(url: str, kind: str, tmp_path: Path) -> None:
    await StoreCare(url).copy(f"{kind}:{tmp_path}/copy")
    assert await nanotrio.read_store(f"{kind}:{tmp_path}/copy") == await nanotrio.read_store(url)
    report = await StoreCare(url).prune(f"{kind}:{tmp_path}/pruned", 1 << 60)
    assert (report.roots, report.kept_roots) == (3, 1)


def test_there_is_a_step_from_every_form_but_the_last() -> None:
    assert sorted(STEPS) == list(range(1, FORMAT_VERSION))
    assert sorted(SCHEMA_STEPS) == list(range(1, FORMAT_VERSION))


async def test_a_file_is_taken_forward_step_by_step(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    path.write_bytes(gzip.decompress((HERE / "v1.db.gz").read_bytes()))
    db = apsw.Connection(str(path))
    done: list[int] = []
    steps = {form: lambda _db, form=form: done.append(form) for form in (1, 2)}
    upgrade(db, steps, to=3)
    upgrade(db, steps, to=3)
    assert (done, db.pragma("user_version")) == ([1, 2], 3)
    db.pragma("wal_checkpoint")
    db.close()
    with pytest.raises(NewerStoreError, match="form 3, this one knows 1"):
        await open_store(f"sqlite:{path}")


async def test_a_schema_is_taken_forward_step_by_step_with_its_owner_or_not_at_all(
    postgres: PostgresServer | NamedServer,
) -> None:
    swarm = new_swarm()
    unpack(postgres, swarm, "v1")
    address = parse_postgres_url(postgres.url(swarm))

    async def second(connection: TrioConnection, schema: str) -> None:
        await connection.execute(f"ALTER TABLE {schema}.log ADD COLUMN added int".encode())

    async def third(connection: TrioConnection, schema: str) -> None:
        await connection.execute(f"UPDATE {schema}.log SET added = {last[0]}".encode())

    last = ["nonsense"]
    steps = {1: second, 2: third}
    forms = f"SELECT version, (SELECT count(*) FROM information_schema.columns WHERE table_schema = 'nanotrio_{swarm}'"
    forms += f" AND table_name = 'log') FROM nanotrio_{swarm}.owner"
    for value, expected in (("nonsense", (1, 5)), ("7", (3, 6)), ("8", (3, 6))):
        last[0] = value
        connection = await connect(address.parameters)
        await connection.execute("BEGIN")
        with suppress(psycopg.errors.UndefinedColumn):
            await upgrade_schema(connection, address, steps, 3)
            await connection.execute("COMMIT")
        connection.discard()
        assert postgres.execute(forms) == [expected]
    assert postgres.execute(f"SELECT DISTINCT added FROM nanotrio_{swarm}.log") == [(7,)]
    with pytest.raises(NewerStoreError, match="form 3, this one knows 1"):
        await open_store(postgres.url(swarm))

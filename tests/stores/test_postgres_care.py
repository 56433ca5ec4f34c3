"""Forks, and the care of stores, on a real Postgres."""

from __future__ import annotations

from pathlib import Path

import nanotrio
from nanotrio.models import ScriptedModel, reply_text
from nanotrio.stores import StoreCare, beside, query
from tests.stores.postgres_server import PASSWORD, NamedServer, PostgresServer, new_swarm


async def test_a_fork_is_checked_copied_both_ways_and_pruned(
    postgres: PostgresServer | NamedServer, tmp_path: Path
) -> None:
    url, other = postgres.url(new_swarm()), f"sqlite+rows:{tmp_path}/rows.db"
    model = ScriptedModel(lambda c: reply_text(f"step {c.steps} of {c.task}"))
    async with nanotrio.open_swarm(store=url, model=model, environment={}, directory=tmp_path) as swarm:
        source = await swarm.spawn("one")
        await source.wait()
        fork = await source.fork()
        await fork.send("two")
        await fork.wait()
    reports = [await StoreCare(url).check(), await StoreCare(url).copy(other), await StoreCare(url).stats()]
    assert reports[0].problems == ()
    assert await nanotrio.read_store(other) == await nanotrio.read_store(url)
    again = postgres.url(new_swarm())
    reports.append(await StoreCare(other).copy(again))
    assert await nanotrio.read_session(again, 2) == await nanotrio.read_session(url, 2)
    pruned = beside(url, "pruned")
    reports.append(await StoreCare(url).prune(pruned, 1 << 60))
    assert reports[-1].kept_agents == 2, "the fork stands on the other one's chain"
    assert await nanotrio.read_store(pruned) == await nanotrio.read_store(url)
    reports.append(await StoreCare(url).repair())
    assert not reports[-1].is_new
    assert not any(PASSWORD in str(each) or "s3cret" in str(each) for each in reports)


async def test_the_beginning_of_a_log_with_a_gap_is_saved_into_a_new_swarm(
    postgres: PostgresServer | NamedServer,
) -> None:
    swarm = new_swarm()
    url = postgres.url(swarm, kind="postgres+rows")
    async with nanotrio.open_swarm(store=url, model=ScriptedModel(lambda c: reply_text(c.task))) as running:
        for number in range(5):
            await (await running.spawn(f"task {number}")).wait()
    postgres.execute(f"DELETE FROM nanotrio_{swarm}.log WHERE seq = 15")
    assert "record 15 of postgres" in "".join((await StoreCare(url).check()).problems)
    report = await StoreCare(url).repair()
    assert (report.is_new, report.records) == (True, 14)
    assert report.lost.startswith("what follows record 14, since record 15 of postgres")
    assert report.lost.endswith(" is missing")
    saved = beside(url, "repaired")
    assert (await StoreCare(saved).check()).is_whole
    assert (await query(saved, "SELECT count(*) FROM agents WHERE status = 'idle'")).rows[0][0] >= 2

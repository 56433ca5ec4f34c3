"""Looking a store through, saving what can be read of it, copying it, counting what is in it."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import apsw
import cbor2
import msgspec
import pytest
import trio

import nanotrio
from nanotrio.errors import StoreDamagedError, StoreError, StoreOwnedError, UsageError
from nanotrio.fact_form import encode_facts
from nanotrio.limits import Limits
from nanotrio.models import ScriptedModel, reply_calls, reply_text
from nanotrio.records import Content, Fact, Head, MailArrived, Profile, Record, Settled, Spawned
from nanotrio.stores import Batch, StoreCare, open_store, parse_url, query, this_process
from nanotrio.stores.postgres_address import parse_postgres_url
from tests.stores.kinds import KINDS, Place
from tests.stores.postgres_server import NamedServer, PostgresServer

each_kind = pytest.mark.parametrize("kind", KINDS)
each_file = pytest.mark.parametrize("kind", ["sqlite", "sqlite+rows", "jsonl"])


def _script(conversation: nanotrio.models.Conversation) -> nanotrio.models.Reply:
    if conversation.task.startswith("child"):
        return reply_text(f"{conversation.task} W\0s is done")
    if conversation.steps == 0:
        calls = [("spawn_agent", {"name": "w", "prompt": f"child {n}", "background": False}) for n in range(5)]
        return reply_calls(*calls)
    return reply_text("all done")


async def _run_swarm(url: str) -> None:
    async with nanotrio.open_swarm(store=url, model=ScriptedModel(_script)) as swarm:
        outcome = await (await swarm.spawn("root")).wait()
        assert outcome.status == "completed", outcome.reason


async def _records(url: str) -> list[Record]:
    store = await open_store(url, read_only=True)
    try:
        return await store.scan(0, limit=1_000_000)
    finally:
        await store.aclose()


def _uncounted(head: Head) -> Head:
    """Without the agent up to which it counts, which tells when it was made."""
    return msgspec.structs.replace(head, counted_agent=0)


async def _heads(url: str) -> list[Head]:
    store = await open_store(url, read_only=True)
    try:
        return await store.heads()
    finally:
        await store.aclose()


async def _write(url: str, *batches: Batch) -> None:
    store = await open_store(url)
    await store.acquire(this_process())
    for batch in batches:
        await store.commit(batch)
    await store.aclose()


def _digested(body: bytes) -> Content:
    return Content(blake2b(body, digest_size=16).digest(), body)


def _record(seq: int, prev: int, agent: int, *facts: Fact) -> Record:
    return Record(seq, prev, agent, seq, encode_facts(facts))


def _sound(count: int) -> Iterator[Record]:
    """Return one agent's sound log."""
    profile = Profile("a/model", 0, (), Limits(), "/")
    yield _record(1, 0, 0, _digested(cbor2.dumps(msgspec.to_builtins(profile))))
    yield _record(2, 0, 1, Spawned(0, 1, 0, "a.1", 1), MailArrived("prompt", 0, "go on" * 100))
    for seq in range(3, count + 1):
        yield _record(seq, seq - 1, 1, MailArrived("text", 0, f"mail {seq} " * 20))


@each_kind
async def test_what_a_swarm_wrote_is_whole(kind: str, place: Place) -> None:
    url = place(kind, "store")
    await _run_swarm(url)
    report = await StoreCare(url).check()
    assert report.problems == ()
    assert report.is_whole
    assert (report.agents, report.heads) == (6, 6)
    assert report.records == len(await _records(url))


PROBLEMS: list[tuple[list[Record], list[Head], int, str]] = [
    ([_record(1, 0, 1, Settled())], [], 0, "does not say that it was spawned"),
    ([Record(1, 0, 1, 0, b"\xff")], [], 0, "record 1: a record of 1 byte is not CBOR"),
    ([Record(1, 0, 1, 0, b'\x81\x82cnew"')], [], 0, "record 1: "),
    ([_record(1, 0, 0, Content(b"x" * 16, b"y"))], [], 0, "another digest"),
    ([_record(1, 0, 1, Spawned(0, 1, 0, "a", 7))], [], 0, "refers to content in record 7"),
    ([_record(1, 0, 0, _digested(b"x")), [*_sound(2)][1]], [], 0, "record 1 should be a profile, and is none that can"),
    ([*_sound(3), _record(4, 2, 1, Settled())], [], 0, "names 2 as the one before it, which is 3"),
    ([*_sound(3), _record(4, 4, 1, Settled())], [], 0, "record 4 names 4 as the one before it"),
    ([*_sound(3), _record(4, 1, 0)], [], 0, "is on no chain"),
    (list(_sound(3)), [Head(5, 0, 5, "x", "idle", False, 1, 0)], 0, "a head of agent 5 and no record"),
    (list(_sound(3)), [Head(1, 0, 1, "x", "idle", False, 4, 0)], 0, "names record 4, and its last is 3"),
    (list(_sound(3)), [Head(1, 0, 1, "x", "idle", False, 2, 0)], 3, "stands at record 2, and its last is 3"),
    (list(_sound(3)), [], 3, "1 agent has no head"),
]


@each_kind
@pytest.mark.parametrize(("records", "heads", "heads_seq", "words"), PROBLEMS, ids=[case[3] for case in PROBLEMS])
async def test_what_does_not_hold_is_said_in_a_sentence(
    kind: str, records: list[Record], heads: list[Head], heads_seq: int, words: str, place: Place
) -> None:
    url = place(kind, "store")
    await _write(url, Batch(1, records, heads, heads_seq))
    report = await StoreCare(url).check()
    assert not report.is_whole
    assert words in " | ".join(report.problems)


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
async def test_a_copy_is_exact_between_any_two_kinds(source: str, target: str, place: Place) -> None:
    one, other = place(source, "one"), place(target, "other")
    await _run_swarm(one)
    report = await StoreCare(one).copy(other)
    assert await _records(other) == await _records(one)
    assert await _heads(other) == await _heads(one)
    assert (report.records, report.heads) == (len(await _records(one)), 6)
    assert (await StoreCare(other).check()).is_whole
    with pytest.raises(StoreError, match=r"holds \d+ records; name a new store"):
        await StoreCare(one).copy(other)
    async with nanotrio.open_swarm(store=other, model=ScriptedModel(_script)) as swarm:
        assert len(swarm.agents()) <= 6
    if target.endswith("+rows"):
        assert (await query(other, "SELECT count(*) FROM agents")).rows == [(6,)]


@each_kind
async def test_a_store_is_checked_copied_and_counted_while_its_owner_writes(
    kind: str, place: Place, tmp_path: Path
) -> None:
    url = place(kind, "store")
    store = await open_store(url)
    await store.acquire(this_process())
    records = list(_sound(9000))
    reports = []

    async def write() -> None:
        for number in range(90):
            part = records[number * 100 : number * 100 + 100]
            head = Head(1, 0, 1, "a.1", "running", True, part[-1].seq, 0)
            with_head = ([head], part[-1].seq) if number % 3 == 0 else ()
            await store.commit(Batch(number + 1, part, *with_head))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        for number in range(5):
            reports.append(await StoreCare(url).copy(f"jsonl:{tmp_path}/copy{number}"))
            assert (await StoreCare(f"jsonl:{tmp_path}/copy{number}").check()).problems == ()
            assert (await StoreCare(url).stats()).statistics.owner == this_process()
    await store.aclose()
    for number, report in enumerate(reports):
        assert await _records(f"jsonl:{tmp_path}/copy{number}") == records[: report.records]


@each_kind
async def test_heads_and_tables_that_are_lost_or_wrong_are_made_anew_in_place(
    kind: str, place: Place, tmp_path: Path, postgres: PostgresServer | NamedServer
) -> None:
    url = place(kind, "store")
    await _run_swarm(url)
    heads, records = await _heads(url), await _records(url)
    bad = [Head(agent, 0, 1, "wrong", "running", True, 1, 0) for agent in range(1, 5)]
    await _write(url, Batch(1, (), bad))
    if kind == "sqlite+rows":
        connection = apsw.Connection(f"{tmp_path}/store")
        connection.execute("DELETE FROM agents")
        connection.close()
    elif kind == "postgres+rows":
        postgres.execute(f"DELETE FROM nanotrio_{parse_postgres_url(url).swarm}.agents")
    assert not (await StoreCare(url).check()).is_whole
    report = await StoreCare(url).repair()
    assert (report.url, report.is_new, report.lost, report.records) == (parse_url(url).url, False, "", len(records))
    assert [_uncounted(head) for head in await _heads(url)] == [_uncounted(head) for head in heads]
    assert await _records(url) == records
    assert (await StoreCare(url).check()).is_whole
    if kind.endswith("+rows"):
        assert (await query(url, "SELECT count(*) FROM agents")).rows == [(6,)]


@each_file
async def test_the_beginning_that_can_be_read_is_saved_into_a_new_store(kind: str, tmp_path: Path) -> None:
    url, path = f"{kind}:{tmp_path}/store", tmp_path / "store"
    records = list(_sound(5000))
    await _write(url, *[Batch(number + 1, records[number * 100 : number * 100 + 100]) for number in range(50)])
    whole = path.read_bytes()
    at = len(whole) // 2 if kind == "jsonl" else whole.index(b"mail 2500 ")
    damaged = whole[: at - 6000] + bytes(12_000) + whole[at + 6000 :]
    path.write_bytes(damaged)
    assert not (await StoreCare(url).check()).is_whole
    with pytest.raises(StoreDamagedError):
        await StoreCare(url).copy(f"jsonl:{tmp_path}/copy")
    report = await StoreCare(url).repair()
    assert (report.url, report.is_new) == (f"{url}.repaired", True)
    assert report.lost.startswith(f"what follows record {report.records:,}, since {tmp_path}/store is damaged ")
    assert "repair" not in report.lost
    assert 1000 < report.records < 4000
    assert await _records(report.url) == records[: report.records]
    assert report.records % 100 == 0 or kind != "jsonl"
    assert path.read_bytes()[: len(damaged)] == damaged, "the damaged one is as it was"
    assert (await StoreCare(report.url).check()).is_whole
    with pytest.raises(StoreError, match="name a new store"):
        await StoreCare(url).repair()
    again = await StoreCare(url).repair(f"jsonl:{tmp_path}/elsewhere")
    assert again.records == report.records


@pytest.mark.parametrize("offset", range(0, 4000, 500))
async def test_what_some_zeroed_bytes_cost_is_told_with_the_last_record_that_was_saved(
    offset: int, tmp_path: Path
) -> None:
    url, path = f"sqlite:{tmp_path}/store", tmp_path / "store"
    records = list(_sound(5000))
    await _write(url, *[Batch(number + 1, records[number * 100 : number * 100 + 100]) for number in range(50)])
    whole = path.read_bytes()
    at = whole.index(b"mail 2500 ") // 4096 * 4096 + offset
    path.write_bytes(whole[:at] + bytes(300) + whole[at + 300 :])
    report = await StoreCare(url).repair()
    assert 2000 < report.records < 2520
    said = f"what follows record {report.records:,}, since {path} is damaged "
    assert report.lost in (
        f"{said}({why})"
        for why in (
            "database disk image is malformed",
            f"record {report.records + 1} is missing",
            f"record {report.records + 1} is empty",
        )
    )


@each_kind
async def test_a_record_that_is_missing_from_a_chain_is_told_with_what_can_be_done(kind: str, place: Place) -> None:
    url = place(kind, "store")
    await _write(url, Batch(1, list(_sound(3))))
    store = await open_store(url, read_only=True)
    with pytest.raises(StoreDamagedError, match=r"record 9 of .* is missing; put a copy back, .*nanotrio store repair"):
        await store.load([(9, 0)])
    await store.aclose()


@each_kind
async def test_a_store_is_not_made_anew_from_itself(kind: str, place: Place, tmp_path: Path) -> None:
    url = place(kind, "store")
    await _run_swarm(url)
    others = [url, url.replace("+rows", "", 1)]
    if not kind.startswith("postgres"):
        (tmp_path / "link").symlink_to(tmp_path / "store")
        others.append(f"{kind}:{tmp_path}/link")
    for other in others:
        for work in (StoreCare(url).copy(other), StoreCare(url).repair(other), StoreCare(url).prune(other, 0)):
            with pytest.raises(
                UsageError, match=r"^the new store and the one it is made from are the same, .*; name a"
            ):
                await work
    assert (await StoreCare(url).check()).is_whole


async def test_a_store_with_a_live_owner_is_not_repaired(tmp_path: Path) -> None:
    url = f"jsonl:{tmp_path}/store"
    store = await open_store(url)
    await store.acquire(this_process())
    with pytest.raises(StoreOwnedError):
        await StoreCare(url).repair()
    await store.aclose()


@each_kind
async def test_what_is_in_a_store_is_counted(kind: str, place: Place) -> None:
    url = place(kind, "store")
    await _run_swarm(url)
    summary = await StoreCare(url).stats()
    assert (summary.agents, summary.outcomes) == ({"idle": 6}, {"completed": 6})
    assert (summary.roots, summary.unfinished) == (1, 0)
    assert summary.usage.output > 0
    assert summary.statistics.url == parse_url(url).url

"""How long the loop stands still while the journal writes as fast as it can: printed, and held to 50 ms in a soak.

A heartbeat asks to be woken each millisecond. What it is late by is a stall: another task's slice, a commit on the
loop, a fight for the interpreter lock, or somebody else's process on the same core. So the processor time that this
process used meanwhile, all threads together, is looked at too: of a stall no more than that is its own doing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable

import pytest
import trio

from nanotrio.journal import Journal, JournalLimits
from nanotrio.records import Head, Record
from nanotrio.stores import open_store, this_process
from tests import counts

AGENTS = 2_000
FACTS = bytes(200)
BEAT_SECONDS = 0.001
MOST_SECONDS = 0.05


async def beat(stalls: list[tuple[float, float]]) -> None:
    """Note how late each beat comes, and the processor time of this process meanwhile, in seconds."""
    while True:
        wall, own = time.perf_counter(), time.process_time()
        await trio.sleep(BEAT_SECONDS)
        stalls.append((time.perf_counter() - wall - BEAT_SECONDS, time.process_time() - own))


@pytest.mark.deadline(300)
async def test_the_loop_goes_on_while_the_journal_writes_at_full_rate(
    new_url: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = new_url()
    store = await open_store(url)
    tenure = await store.acquire(this_process())
    last = dict.fromkeys(range(1, AGENTS + 1), 0)

    def heads(agents: Iterable[int]) -> list[Head]:
        return [Head(agent, 0, agent, f"a.{agent}", "running", True, last[agent], 0) for agent in agents]

    journal = Journal(store, tenure, heads, limits=JournalLimits(heads_records=10_000))
    stalls: list[tuple[float, float]] = []
    start = time.perf_counter()
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        nursery.start_soon(beat, stalls)
        for group_number in range(counts.STALL_RECORDS // 20):
            group = []
            for place in range(20):
                seq = journal.next_seq + place
                agent = (group_number * 20 + place) % AGENTS + 1
                group.append(Record(seq, last[agent], agent, seq, FACTS))
                last[agent] = seq
            journal.append_nowait(group)
            if journal.is_full:
                await journal.room()
            elif group_number % 10 == 9:
                await trio.lowlevel.checkpoint()
        await journal.flush()
        nursery.cancel_scope.cancel()
    seconds = time.perf_counter() - start
    durable = journal.durable_seq
    await journal.aclose(trio.current_time() + 10)
    await store.aclose()
    assert durable == counts.STALL_RECORDS
    longest = max(late for late, _ in stalls)
    own = max(min(late, busy) for late, busy in stalls)
    with capsys.disabled():
        sys.stderr.write(
            f"\nloop stalls on {url.partition(':')[0]}: longest {longest * 1e3:.1f} ms, of its own doing at "
            f"most {own * 1e3:.1f} ms, in {len(stalls)} beats; {durable / seconds:,.0f} records a second\n"
        )
    if counts.SOAK:
        assert own < MOST_SECONDS

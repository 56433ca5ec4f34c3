"""Run as a program: appends groups to the store whose address is argv[1] until it is killed, seeded by argv[2].

Each number that is acknowledged as durable is written to stdout, eight bytes each. The facts of a record say which
group it belongs to: its first number, how many there are, and some bytes of filling.
"""

from __future__ import annotations

import os
import random
import struct
import sys
from collections.abc import Iterable

import trio

from nanotrio.journal import Journal, JournalLimits
from nanotrio.records import Head, Record
from nanotrio.stores.address import open_store
from nanotrio.stores.owner import this_process
from nanotrio.stores.tail import read_tail


async def main(url: str, seed: int) -> None:
    chance = random.Random(seed)
    store = await open_store(url)
    tenure = await store.acquire(this_process())
    tail = await read_tail(store, tenure.heads_seq)
    last = dict.fromkeys(range(1, 60), 0)
    last.update({head.agent: head.last_seq for head in await store.heads()})
    last.update(tail.last_seq)

    def heads(agents: Iterable[int]) -> list[Head]:
        return [Head(agent, 0, agent, f"a.{agent}", "running", True, last[agent], 0) for agent in agents]

    # A small queue, so that a store which is slower than the hasty task still answers the patient ones at once.
    limits = JournalLimits(heads_records=500, heads_slice=16, max_queued_bytes=2 << 20)
    journal = Journal(store, tenure, heads, tail=tail, limits=limits)

    def append() -> int:
        first, count = journal.next_seq, chance.choice((1, 1, 1, 2, 3, 40))
        group = []
        for seq in range(first, first + count):
            agent = chance.randrange(1, 60)
            filling = bytes(chance.choice((10, 100, 1000)))
            group.append(Record(seq, last[agent], agent, 0, struct.pack("<qq", first, count) + filling))
            last[agent] = seq
        journal.append_nowait(group)
        return first + count - 1

    async def patient() -> None:
        while True:
            seq = append()
            await journal.durable(seq)
            os.write(1, struct.pack("<q", seq))

    async def hasty() -> None:
        while True:
            for _ in range(chance.randrange(30)):
                append()
            await journal.room()
            await trio.sleep(chance.random() * 0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        for _ in range(3):
            nursery.start_soon(patient)
        nursery.start_soon(hasty)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]))

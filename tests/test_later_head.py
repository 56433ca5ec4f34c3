"""A head that is brought up to date is the one that the whole chain gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nanotrio.later_head import LaterHead
from tests.lives import Life, replayed

SEEDS = st.integers(0, 2**32)


@given(SEEDS, st.integers(1, 60), st.integers(0, 2**32))
def test_a_head_and_the_records_after_it_give_the_head_of_the_chain(seed: int, rounds: int, cut: int) -> None:
    life = Life(seed, snapshot_chance=0.1)
    life.run(rounds)
    records = life.records
    start = cut % (len(records) + 1)
    former = replayed(records[:start]).head("scripted/x", 3, 4, 5) if start else None
    later = LaterHead(life.session.agent, former)
    for count, record in enumerate(records[start:], start + 1):
        later.apply(record)
        head = later.head("scripted/x")
        if head is None:
            assert former is not None
        else:
            counts = (3, 4, 5) if former else (0, 0, 0)
            assert head == replayed(records[:count]).head("scripted/x", *counts)
        assert later.last_seq == record.seq


def test_the_chain_is_rarely_needed() -> None:
    unknown = total = 0
    for seed in range(200):
        life = Life(seed)
        life.run(40)
        start = len(life.records) // 3 + 1
        later = LaterHead(life.session.agent, replayed(life.records[:start]).head())
        for record in life.records[start:]:
            later.apply(record)
            total += 1
            unknown += later.head() is None
    assert unknown / total < 0.2

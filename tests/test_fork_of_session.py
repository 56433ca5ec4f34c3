"""A fork is the same whether it was made beside its living source or replayed along both chains."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanotrio.errors import RecordError
from nanotrio.fact_form import decode_facts, encode_facts
from nanotrio.messages import ToolCall, ToolResult, Usage
from nanotrio.records import Fact, MailArrived, Record, Snapshot, Spawned, TurnStarted
from nanotrio.session import Session
from tests.lives import Life, replayed

SEEDS = st.integers(0, 2**32)
FORK = 40


def _fork(life: Life) -> tuple[Session, Record]:
    """Fork a living session as a swarm does; return the fork and its first record."""
    session = life.session.fork(FORK)
    prev, seq, at_us = session.last_seq, life.seq + 5, life.at_us + 5
    spawned = Spawned(0, FORK, 0, f"child.{FORK}", 3, "a-uuid")
    session.begin_record(seq, at_us)
    session.apply_facts((spawned,))
    return session, Record(seq, prev, FORK, at_us, encode_facts([spawned]))


def _chain(life: Life, fork: Record) -> list[Record]:
    return [record for record in life.records if record.seq <= fork.prev] + [fork]


@given(SEEDS, st.integers(1, 60))
def test_a_fork_made_live_equals_its_replay(seed: int, rounds: int) -> None:
    life = Life(seed, snapshot_chance=0.2)
    life.run(rounds)
    if life.session.ended is None:
        return
    session, record = _fork(life)

    chain = _chain(life, record)
    assert replayed(chain) == session
    assert replayed(chain).head() == session.head()
    for index, each in enumerate(chain):
        if isinstance(decode_facts(each.facts)[0], Snapshot):
            assert replayed(chain[index:]) == session
            assert session.snapshot_seq >= each.seq
    snapshots = [each.seq for each in chain if isinstance(decode_facts(each.facts)[0], Snapshot)]
    assert session.snapshot_seq == max(snapshots, default=0)


@given(SEEDS, st.integers(1, 60))
def test_a_fork_lives_on_and_can_be_forked_again(seed: int, rounds: int) -> None:
    life = Life(seed, snapshot_chance=0.1)
    life.run(rounds)
    if life.session.ended is None:
        return
    first, record = _fork(life)
    again = first.fork(FORK + 1)
    assert again.last_seq == record.prev
    chain = _chain(life, record)
    seq = record.seq

    def add(*facts: Fact, with_snapshot: bool = False) -> None:
        nonlocal seq
        seq += 1
        prev = first.last_seq
        first.begin_record(seq, seq)
        written = [*([first.snapshot()] if with_snapshot else []), *facts]
        first.apply_facts(written)
        chain.append(Record(seq, prev, FORK, seq, encode_facts(written)))

    add(MailArrived("prompt", 0, "go on"), with_snapshot=True)
    add(TurnStarted(first.turns + 1, seq))
    assert replayed(chain) == first
    assert replayed(chain[-2:]) == first
    assert first.snapshot_seq == chain[-2].seq


@given(SEEDS, st.integers(1, 60))
def test_a_fork_has_a_valid_conversation_and_nothing_else_of_its_source(seed: int, rounds: int) -> None:
    life = Life(seed)
    life.run(rounds)
    if life.session.ended is None:
        return
    before = len(life.session.messages)
    session, _ = _fork(life)

    assert len(life.session.messages) == before
    assert session.messages == life.session.messages[: len(session.messages)]
    assert (session.status, session.turn, session.unread, session.is_unfinished) == ("idle", None, (), False)
    assert session.usage == Usage()
    assert (session.spent_nano, session.uncertain_nano, session.unpriced, session.reserved_nano) == (0, 0, 0, 0)
    assert session.report() == (Usage(), 0, 0, 0)
    assert (session.agent, session.root, session.parent, session.uuid) == (FORK, FORK, 0, "a-uuid")
    calls = [part.id for message in session.messages for part in message.parts if isinstance(part, ToolCall)]
    results = [part.call_id for message in session.messages for part in message.parts if isinstance(part, ToolResult)]
    assert results == calls


def test_a_fork_of_what_no_turn_has_ended_of_is_refused_by_name() -> None:
    session = Session(1)
    session.begin_record(1, 1)
    session.apply_facts((Spawned(0, 1, 0, "a.1", 0),))
    session.begin_record(2, 2)
    with pytest.raises(RecordError, match="record 2 forks a session of which no turn had ended"):
        session.apply_facts((Spawned(0, 2, 0, "a.2", 0),))

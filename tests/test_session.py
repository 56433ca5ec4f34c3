"""A session is what its facts make it, live or replayed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nanotrio.errors import RecordError
from nanotrio.fact_form import decode_facts
from nanotrio.limits import Limits
from nanotrio.mail import Mail, render_mails
from nanotrio.messages import Message, Text, ToolCall, ToolResult, Usage
from nanotrio.records import (
    ChildEnded,
    Closed,
    MailArrived,
    MailReturned,
    MailTaken,
    Restarted,
    Settled,
    Snapshot,
    Spawned,
    TurnEnded,
    TurnStarted,
)
from nanotrio.session import SNAPSHOT_RECORDS, Session
from tests.lives import Life, replayed

SEEDS = st.integers(0, 2**32)


@given(SEEDS, st.integers(1, 60))
def test_live_state_equals_replayed_state(seed: int, rounds: int) -> None:
    life = Life(seed)
    life.run(rounds)

    assert replayed(life.records) == life.session
    assert replayed(life.records).head() == life.session.head()


@given(SEEDS, st.integers(1, 60))
def test_replay_may_begin_at_any_snapshot(seed: int, rounds: int) -> None:
    life = Life(seed, snapshot_chance=0.2)
    life.run(rounds)

    whole = replayed(life.records)
    assert whole == life.session
    for index, record in enumerate(life.records):
        if isinstance(decode_facts(record.facts)[0], Snapshot):
            assert replayed(life.records[index:]) == whole


@given(SEEDS, st.integers(1, 60))
def test_every_prefix_can_be_replayed_and_goes_on(seed: int, rounds: int) -> None:
    life = Life(seed)
    life.run(rounds)
    cut = seed % len(life.records) + 1

    session = replayed(life.records[:cut])
    assert session.last_seq == life.records[cut - 1].seq
    for record in life.records[cut:]:
        session.apply(record)
    assert session == life.session


@given(SEEDS, st.integers(1, 80))
def test_each_call_has_exactly_one_result_in_order(seed: int, rounds: int) -> None:
    life = Life(seed)
    life.run(rounds)

    messages = life.session.messages
    for index, message in enumerate(messages):
        calls = [part.id for part in message.parts if isinstance(part, ToolCall)]
        results = [part.call_id for part in messages[index + 1].parts if isinstance(part, ToolResult)] if calls else []
        assert results == calls
        assert len(set(calls)) == len(calls)
        assert all(calls)
        if any(isinstance(part, ToolResult) for part in message.parts):
            assert any(isinstance(part, ToolCall) for part in messages[index - 1].parts)


@given(st.text(alphabet=" \n\t\u00a0\u3000ab\u00e4.", max_size=200))
def test_the_task_is_the_beginning_of_the_first_prompt_on_one_line(prompt: str) -> None:
    session = Session(1)
    session.apply_facts((MailArrived("prompt", 0, prompt),))

    assert session.task == " ".join(prompt[:160].split())[:80]


@given(SEEDS, st.integers(1, 60))
def test_totals_are_own_plus_what_children_reported(seed: int, rounds: int) -> None:
    life = Life(seed)
    life.run(rounds)

    usage, spent, uncertain, unpriced = Usage(), 0, 0, 0
    reserved = 0
    for record in life.records:
        for fact in decode_facts(record.facts):
            match type(fact).__name__:
                case "Replied" | "AttemptFailed":
                    usage += fact.usage  # type: ignore[union-attr]
                    spent += fact.cost_nano or 0  # type: ignore[union-attr]
                    unpriced += fact.cost_nano is None  # type: ignore[union-attr]
                    uncertain += getattr(fact, "uncertain_nano", 0)
                    reserved = 0
                case "ChildEnded":
                    usage += fact.usage  # type: ignore[union-attr]
                    spent += fact.cost_nano  # type: ignore[union-attr]
                    uncertain += fact.uncertain_nano  # type: ignore[union-attr]
                    unpriced += fact.unpriced  # type: ignore[union-attr]
                case "Reserved":
                    reserved = fact.amount_nano  # type: ignore[union-attr]
                case "Restarted":
                    uncertain, reserved = uncertain + reserved, 0
    session = life.session
    assert (session.usage, session.spent_nano, session.uncertain_nano, session.unpriced) == (
        usage,
        spent,
        uncertain,
        unpriced,
    )
    assert session.reserved_nano == reserved


def test_reports_sum_to_the_total() -> None:
    session = Session(2)
    session.begin_record(1, 1)
    session.apply_facts((Spawned(1, 1, 1, "a.2", 0),))
    told = 0
    for number in range(3):
        session.apply_facts((ChildEnded(3, "b.3", 1, "completed", "", "", "", Usage(5), 100 + number),))
        told += session.report()[1]
        session.apply_facts((Settled(),))
        assert session.report() == (Usage(), 0, 0, 0)
    assert told == session.spent_nano == 303


@example(798906452, 25)  # closed, restarted and closed again
@given(SEEDS, st.integers(1, 60))
def test_unread_mail_is_only_ever_consumed_or_returned(seed: int, rounds: int) -> None:
    life = Life(seed)
    life.run(rounds)

    session = life.session
    told = "\n".join(part.text for message in session.messages for part in message.parts if isinstance(part, Text))
    taken = {
        seq
        for record in life.records
        for fact in decode_facts(record.facts)
        if isinstance(fact, MailTaken)
        for seq in fact.seqs
    }
    facts = [fact for record in life.records for fact in decode_facts(record.facts)]
    returned = max([fact.read_seq for fact in facts if isinstance(fact, MailReturned)], default=0)
    unread = {mail.seq for mail in session.unread}
    for record in life.records:
        for fact in decode_facts(record.facts):
            if isinstance(fact, MailArrived) and fact.text != "do it":
                fates = (fact.text in told, record.seq in unread)
                assert sum(fates) == 1 or (returned >= record.seq and not any(fates)), (fact, record.seq in taken)


def test_a_closed_session_takes_mail_again_once_it_is_restarted() -> None:
    session = Session(1)
    session.begin_record(1, 1)
    session.apply_facts((Spawned(0, 0, 0, "a.1", 0), MailArrived("prompt", 0, "x"), TurnStarted(1, 1)))
    session.apply_facts((TurnEnded("cancelled", "why", "", ""), Closed("why"), Settled()))
    assert session.status == "closed"
    assert not session.is_unfinished

    session.apply_facts((Restarted(),))
    assert session.status == "idle"
    session.begin_record(2, 2)
    session.apply_facts((MailArrived("prompt", 0, "again"),))
    assert session.is_unfinished


def test_time_in_which_no_process_ran_is_not_counted() -> None:
    session = Session(1)
    session.begin_record(1, 1_000_000)
    session.apply_facts((Spawned(0, 0, 0, "a.1", 0),))
    session.apply_facts((MailArrived("prompt", 0, "x"),))
    session.apply_facts((TurnStarted(1, 1),))
    session.begin_record(2, 4_000_000)
    session.begin_record(3, 900_000_000)
    session.apply_facts((Restarted(),))
    assert session.turn is not None
    assert session.turn.elapsed_us == 3_000_000
    assert session.turn.since_us == 900_000_000


def _chain(text: str, records: int) -> tuple[Session, list[int]]:
    """Return a session that got as many mails and read each, and the records that began with a snapshot."""
    session = Session(1)
    session.begin_record(1, 1)
    session.apply_facts((Spawned(0, 0, 0, "a.1", 0),))
    made = []
    for seq in range(2, records):
        session.begin_record(seq, seq)
        if session.is_due_for_snapshot():
            session.apply_facts((session.snapshot(),))
            made.append(seq)
        session.apply_facts((MailArrived("text", 0, text),))
        session.apply_facts((TurnStarted(seq, seq),))
    return session, made


def test_a_small_session_with_a_long_chain_is_saved_every_thousand_records() -> None:
    session = Session(1, name="a.1")
    made = []
    for seq in range(1, 10 * SNAPSHOT_RECORDS):
        session.begin_record(seq, seq)
        if session.is_due_for_snapshot():
            session.apply_facts((session.snapshot(),))
            made.append(seq)
    assert made == list(range(SNAPSHOT_RECORDS, 10 * SNAPSHOT_RECORDS, SNAPSHOT_RECORDS))


def test_the_bytes_of_snapshots_stay_in_proportion_to_the_chain() -> None:
    text = "x" * 1_000
    session, made = _chain(text, 20 * SNAPSHOT_RECORDS)
    assert made[0] == SNAPSHOT_RECORDS
    assert 3 <= len(made) <= 6  # each about twice as large as the one before
    assert session.snapshot_bytes < 20 * SNAPSHOT_RECORDS * len(text) * 1.2


def test_an_evicted_session_goes_on_and_is_whole_when_it_is_restored() -> None:
    session, _ = _chain("a text", 20)
    twin, _ = _chain("a text", 20)
    session.evict()
    assert not session.messages
    assert session.message_count == 18
    session.evict()
    for each in (session, twin):
        each.begin_record(20, 20)
        each.apply_facts((MailArrived("text", 0, "another"), TurnStarted(20, 20)))
        each.apply_facts((TurnEnded("completed", "", "", "done", ()),))
    assert session.ended == twin.ended
    assert session.ended is not None
    assert session.ended.messages == 19
    replayed_then, _ = _chain("a text", 20)
    session.restore(replayed_then.messages)
    assert session == twin


def test_an_evicted_session_gets_no_snapshot() -> None:
    session, _ = _chain("a text", SNAPSHOT_RECORDS)
    session.evict()
    session.begin_record(SNAPSHOT_RECORDS, 1)
    assert not session.is_due_for_snapshot()


def test_what_was_not_dropped_is_not_put_back() -> None:
    session, _ = _chain("a text", 20)
    session.evict()
    with pytest.raises(RecordError, match="had 18 messages at record 19, and the store has 1"):
        session.restore([Message("user", (Text("a text"),))])


def test_a_notice_tells_fifty_ends_and_counts_the_rest() -> None:
    mails = [Mail(number, "child", number, f"kid.{number}", "completed: ok") for number in range(60)]
    lines = render_mails(mails).split("\n")
    assert len(lines) == 51
    assert lines[0] == "[kid.0 completed: ok]"
    assert lines[-1] == "and 10 more: list_agents"
    assert len(render_mails(mails[:50]).split("\n")) == 50


def test_texts_are_never_dropped_or_cut_since_nothing_else_shows_them() -> None:
    texts = [Mail(number, "text", 2, "kid.2", f"text {number} " + "x" * 5_000) for number in range(60)]
    prompts = [Mail(number, "prompt", 0, "", f"prompt {number}.") for number in range(60)]
    told = render_mails([*texts, *prompts])
    assert all(mail.text in told for mail in [*texts, *prompts])


def test_a_long_end_is_cut_and_says_so() -> None:
    told = render_mails([Mail(1, "child", 2, "kid.2", "completed: " + "y" * 9_000)])
    assert len(told) < 4_200
    assert "9011 characters in all" in told


def test_a_mail_says_where_it_comes_from() -> None:
    assert render_mails([Mail(1, "prompt", 0, "", "do it")]) == "do it"
    assert render_mails([Mail(1, "steer", 0, "", "left")]) == "left"
    assert render_mails([Mail(1, "text", 2, "kid.2", "hi")]) == "[message from kid.2] hi"
    assert render_mails([Mail(1, "returned", 0, "", "gone")]) == "[returned] gone"


def test_limits_and_messages_survive_a_snapshot() -> None:
    life = Life(5)
    session = life.session
    session.limits = Limits(turn_seconds=float("inf"), budget_nano=3)
    session.messages = [Message("user", (ToolResult("a", "W\0s\0l", True),))]
    life.record(session.snapshot())
    copy = Session(7)
    copy.begin_record(session.last_seq, session.updated_us)
    copy.apply_facts((session.snapshot(),))
    passed = {"snapshot_records": 0, "snapshot_bytes": 0, "grown_bytes": 0}
    assert msgspec.structs.asdict(copy) | passed == msgspec.structs.asdict(session) | passed


def test_a_number_beyond_64_bits_survives_a_snapshot_too() -> None:
    session = Session(7, name="a.7", limits=Limits(budget_nano=10**25))
    copy = Session(7)
    copy.begin_record(1, 1)
    copy.apply_facts((session.snapshot(),))
    assert copy.limits == session.limits

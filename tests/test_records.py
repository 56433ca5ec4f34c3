"""Records read back what was written, by this version or a newer one."""

from __future__ import annotations

import contextlib

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanotrio.errors import RecordError
from nanotrio.fact_form import decode_facts, encode_facts
from nanotrio.limits import Limits
from nanotrio.messages import Text, Thinking, ToolCall, Usage
from nanotrio.records import (
    ChildEnded,
    Content,
    Fact,
    LimitsSet,
    MailArrived,
    MailTaken,
    Record,
    Replied,
    Settled,
    Spawned,
    Submitted,
    ToolEnded,
    TurnEnded,
    TurnStarted,
)

TEXT = st.text(st.characters(exclude_categories=("Cs",)))

NUMBER = st.integers(0, 300) | st.integers(0, 2**70)

FACTS: st.SearchStrategy[Fact] = st.one_of(
    st.builds(MailArrived, st.sampled_from(["prompt", "text", "steer"]), st.integers(0, 2**40), TEXT, TEXT),
    st.builds(Content, st.binary(min_size=16, max_size=16), st.binary()),
    st.builds(ToolEnded, TEXT, TEXT, st.booleans(), TEXT),
    st.builds(MailTaken, st.lists(st.integers(0, 2**40)).map(tuple)),
    st.builds(
        Replied,
        TEXT,
        st.lists(
            st.one_of(
                st.builds(Text, TEXT),
                st.builds(Thinking, TEXT, TEXT, TEXT),
                st.builds(ToolCall, TEXT, TEXT, TEXT, TEXT),
            )
        ).map(tuple),
        st.sampled_from(["end", "tool_use", "pause"]),
        st.builds(Usage, st.integers(0, 10**9), st.integers(0, 10**9)),
        st.one_of(st.none(), st.integers(0, 2**62)),
    ),
    st.builds(Spawned, NUMBER, NUMBER, st.integers(0, 64), TEXT, NUMBER, TEXT),
    st.builds(TurnStarted, NUMBER, NUMBER),
    st.builds(Submitted, TEXT | st.integers(0, 70_000).map("x".__mul__)),
    st.builds(TurnEnded, st.just("failed"), TEXT, TEXT, TEXT, st.lists(TEXT, max_size=30).map(tuple)),
    st.just(Settled()),
    st.builds(
        ChildEnded,
        *(NUMBER, TEXT, NUMBER, st.just("completed"), TEXT, TEXT, TEXT),
        *(st.builds(Usage, NUMBER, NUMBER, NUMBER, NUMBER), NUMBER, NUMBER, NUMBER, st.booleans()),
    ),
    st.just(LimitsSet(Limits(turn_seconds=float("inf"), budget_nano=None))),
)


@given(st.lists(FACTS))
def test_facts_read_back_as_they_were_written(facts: list[Fact]) -> None:
    assert decode_facts(encode_facts(facts)) == tuple(facts)


@given(st.lists(FACTS, max_size=30))
def test_facts_are_written_as_any_writer_of_cbor_writes_them(facts: list[Fact]) -> None:
    assert encode_facts(facts) == cbor2.dumps(msgspec.to_builtins(facts, builtin_types=(bytes,)))


def test_what_is_not_of_its_fields_type_is_written_all_the_same() -> None:
    facts = (MailArrived("text", 1.5, "a \ud800 b", ""), Settled())  # type: ignore[arg-type]
    assert cbor2.loads(encode_facts(facts)) == [["mail", "text", 1.5, "a \ufffd b", ""], ["settled"]]


@given(st.lists(FACTS, min_size=1), st.data())
def test_a_cut_record_is_refused_at_every_byte(facts: list[Fact], data: st.DataObject) -> None:
    whole = encode_facts(facts)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(RecordError):
        decode_facts(whole[:cut])


@given(st.binary(max_size=200))
def test_bytes_that_are_no_record_are_refused_and_nothing_else_is_raised(data: bytes) -> None:
    with contextlib.suppress(RecordError):
        decode_facts(data)


def test_a_newer_versions_fields_are_passed_over_and_survive_copying() -> None:
    facts = cbor2.dumps([["ended", "call_1", "out", False, "", {"new": 1}, 7], ["settled", "later"]])
    record = Record(1, 0, 1, 0, facts)
    assert decode_facts(record.facts) == (ToolEnded("call_1", "out"), Settled())

    copied = msgspec.structs.replace(record, seq=9, prev=4)
    assert copied.facts == facts


def test_a_newer_profile_and_newer_parts_are_read_too() -> None:
    facts = cbor2.dumps([["replied", "m", [["text", "hi", "new field"]], "end", [1, 2, 3, 4, 5], None, "extra"]])
    assert decode_facts(facts) == (Replied("m", (Text("hi"),), "end", Usage(1, 2, 3, 4), None),)


def test_an_older_writers_missing_fields_have_their_defaults() -> None:
    facts = cbor2.dumps([["spawned", 0, 0, 0, "a.1", 4], ["child", 2, "b.2", 1, "completed", "", "", "", [], 5]])
    assert decode_facts(facts) == (
        Spawned(0, 0, 0, "a.1", 4),
        ChildEnded(2, "b.2", 1, "completed", "", "", "", Usage(), 5),
    )


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(RecordError, match=r"'teleported'.*open the store with the nanotrio that wrote it"):
        decode_facts(cbor2.dumps([["settled"], ["teleported", 1]]))


def test_nul_and_every_character_survive() -> None:
    fact = ToolEnded("a", "W\0s\0l\0 \\u0000 \U0001f469‍\U0001f469\u2028")
    assert decode_facts(encode_facts([fact])) == (fact,)

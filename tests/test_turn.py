"""The loop of an agent, as two pure functions."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanotrio.fact_form import decode_facts
from nanotrio.limits import Limits
from nanotrio.messages import Part, StopReason, Text, ToolCall, ToolResult, Usage
from nanotrio.records import Fact, MailArrived, Replied, Reserved, Spawned, ToolEnded, TurnEnded, TurnStarted
from nanotrio.session import Session
from nanotrio.turn import (
    CUT_OFF,
    INTERRUPTED,
    NOT_RUN,
    Admitted,
    AskModel,
    Effect,
    EndTurn,
    Failed,
    Input,
    Intend,
    ModelReplied,
    Restart,
    Retry,
    RunTools,
    Stop,
    Submit,
    ToolReturned,
    absorb,
    advance,
)
from tests.lives import LIMITS, Life


def begun(limits: Limits = LIMITS, **fields: object) -> Session:
    session = Session(1, **fields)  # type: ignore[arg-type]
    session.begin_record(1, 1)
    feed(session, Spawned(0, 0, 0, "a.1", 0), MailArrived("prompt", 0, "go"))
    feed(session, *advance(session, limits).facts)
    return session


def feed(session: Session, *facts: Fact) -> None:
    session.apply_facts(facts)


def take(session: Session, event: Input) -> tuple[Fact, ...]:
    facts = absorb(session, event)
    feed(session, *facts)
    return facts


def reply(*parts: Part, stop: StopReason = "tool_use", usage: Usage = Usage(1, 1)) -> ModelReplied:  # noqa: B008
    return ModelReplied(Replied("scripted/test", parts, stop, usage, 1))


def call(id: str, problem: str = "") -> ToolCall:
    return ToolCall(id, "read", "{}", problem)


def due(session: Session, limits: Limits = LIMITS) -> Effect | None:
    return advance(session, limits).effect


def results(session: Session) -> list[tuple[str, str]]:
    return [(part.call_id, part.content) for part in session.messages[-1].parts if isinstance(part, ToolResult)]


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_neither_function_changes_the_session(seed: int, rounds: int) -> None:
    life = Life(seed)
    life.run(rounds)
    before = copy.deepcopy(life.session)
    advance(life.session, LIMITS)
    for event in (Stop("cancelled"), Restart(), Failed("transient", "x"), Submit("1"), Admitted(3), reply(call("a"))):
        absorb(life.session, event)
    assert life.session == before


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_every_turn_that_began_ended_once(seed: int, rounds: int) -> None:
    life = Life(seed)
    life.run(rounds)
    open_turn = 0
    for record in life.records:
        for fact in decode_facts(record.facts):
            if isinstance(fact, TurnStarted):
                assert open_turn == 0
                open_turn = fact.turn
            elif isinstance(fact, TurnEnded) and open_turn:
                open_turn = 0
    assert open_turn == 0
    assert life.session.turn is None


def test_an_idle_agent_has_nothing_due() -> None:
    assert advance(Session(1), LIMITS) == advance(Session(1, status="closed"), LIMITS)
    assert due(Session(1)) is None


def test_mail_begins_a_turn_and_asks_the_model() -> None:
    session = Session(1)
    session.begin_record(1, 1)
    feed(session, MailArrived("prompt", 0, "go"))
    decision = advance(session, LIMITS)
    assert decision.facts == (TurnStarted(1, 1),)
    assert isinstance(decision.effect, AskModel)


def test_calls_are_run_then_the_model_is_asked_again_with_results_in_order() -> None:
    session = begun()
    take(session, reply(call("a"), call("b"), call("c")))
    effect = due(session)
    assert isinstance(effect, RunTools)
    assert [each.id for each in effect.calls] == ["a", "b", "c"]
    take(session, ToolReturned("c", "3"))
    take(session, ToolReturned("a", "1"))
    take(session, ToolReturned("a", "again"))
    effect = due(session)
    assert isinstance(effect, RunTools)
    assert [each.id for each in effect.calls] == ["b"]
    take(session, ToolReturned("b", "2"))
    assert results(session) == [("a", "1"), ("b", "2"), ("c", "3")]
    assert isinstance(due(session), AskModel)


def test_a_call_with_a_problem_never_runs_and_is_answered_at_once() -> None:
    session = begun()
    facts = take(session, reply(call("a", "not JSON"), call("b")))
    assert ToolEnded("a", "not JSON", True, "read: bad arguments") in facts
    effect = due(session)
    assert isinstance(effect, RunTools)
    assert [each.id for each in effect.calls] == ["b"]


@pytest.mark.parametrize(
    "ids", [("", ""), ("a", "a"), ("", "a", "a", ""), ("call_1_1_1", "x", "x"), ("call_1_1_1", "x", "x", "call_1_2_1")]
)
def test_calls_that_share_an_id_or_have_none_get_their_own(ids: tuple[str, ...]) -> None:
    session = begun()
    take(session, reply(*[call(each) for each in ids]))
    effect = due(session)
    assert isinstance(effect, RunTools)
    named = [each.id for each in effect.calls]
    assert len(set(named)) == len(ids)
    assert all(named)


def test_the_end_of_a_turn_answers_every_open_call() -> None:
    session = begun()
    take(session, reply(call("a"), call("b"), call("c")))
    take(session, Intend(("a", "b")))
    take(session, ToolReturned("a", "1"))
    take(session, Stop("cancelled", "why"))
    assert results(session) == [("a", "1"), ("b", CUT_OFF), ("c", NOT_RUN)]
    assert session.ended is not None
    assert session.ended.fact.status == "cancelled"


def test_a_restart_answers_intended_calls_as_unknown_and_leaves_the_others_to_run() -> None:
    session = begun()
    take(session, reply(call("a"), call("b"), call("c"), call("d"), call("e")))
    take(session, Intend(("a", "b", "e")))
    take(session, Intend(("d",), child=9))
    take(session, ToolReturned("a", "1"))
    take(session, Restart(frozenset("e")))
    take(session, Restart(frozenset("e")))
    effect = due(session)
    assert isinstance(effect, RunTools)
    assert [each.id for each in effect.calls] == ["c", "d", "e"]
    for each in effect.calls:
        take(session, ToolReturned(each.id, "ok"))
    assert results(session) == [("a", "1"), ("b", INTERRUPTED), ("c", "ok"), ("d", "ok"), ("e", "ok")]


def test_a_restart_counts_an_open_reservation_as_uncertain_once() -> None:
    session = begun()
    assert take(session, Admitted(70)) == (Reserved(70),)
    take(session, Restart())
    take(session, Restart())
    assert (session.reserved_nano, session.uncertain_nano) == (0, 70)


@pytest.mark.parametrize(
    ("stop", "text", "status"),
    [
        ("end", "done", "completed"),
        ("end", "", "failed"),
        ("max_tokens", "half", "failed"),
        ("refusal", "no", "failed"),
    ],
)
def test_how_the_model_stops_decides_the_outcome(stop: StopReason, text: str, status: str) -> None:
    session = begun()
    take(session, reply(*([Text(text)] if text else []), stop=stop))
    effect = due(session)
    assert isinstance(effect, EndTurn)
    assert effect.status == status
    assert bool(effect.reason) == (status == "failed")


def test_a_pause_asks_the_model_to_go_on() -> None:
    session = begun()
    take(session, reply(Text("hm"), stop="pause"))
    assert isinstance(due(session), AskModel)


def test_a_submitted_result_ends_the_turn_once_all_calls_are_answered() -> None:
    session = begun()
    take(session, reply(call("a"), call("b")))
    take(session, Submit('{"x":1}'))
    take(session, ToolReturned("a", "submitted"))
    assert isinstance(due(session), RunTools)
    take(session, ToolReturned("b", "x"))
    assert due(session) == EndTurn("completed", result='{"x":1}', is_final=True)


def test_failures_are_tried_again_up_to_the_limit_and_a_reply_starts_the_count_anew() -> None:
    session = begun()
    for attempt in range(1, LIMITS.max_attempts):
        take(session, Failed("transient", "reset"))
        assert due(session) == Retry("transient", attempt, "reset")
    take(session, reply(Text("hm"), stop="pause"))
    assert isinstance(due(session), AskModel)
    for _ in range(LIMITS.max_attempts):
        take(session, Failed("rate_limited", "429"))
    assert due(session) == EndTurn("failed", f"429 ({LIMITS.max_attempts} attempts)")


@pytest.mark.parametrize("kind", ["auth", "quota", "rejected", "not_found", "too_long"])
def test_a_failure_that_no_retry_helps_ends_the_turn_at_once(kind: str) -> None:
    session = begun()
    take(session, Failed(kind, "no"))
    assert due(session) == EndTurn("failed", "no")


def test_the_same_mistake_three_steps_in_a_row_ends_the_turn() -> None:
    session = begun()
    for number in range(3):
        assert isinstance(due(session), AskModel)
        take(session, reply(call(f"{number}a", "bad"), call(f"{number}b", "bad")))
    effect = due(session)
    assert isinstance(effect, EndTurn)
    assert effect.status == "failed"
    assert "3 times in a row" in effect.reason


def test_a_good_call_between_mistakes_starts_the_count_anew() -> None:
    session = begun()
    for number in range(4):
        take(session, reply(call(f"{number}", "bad")))
        take(session, reply(call(f"{number}g")))
        take(session, ToolReturned(f"{number}g", "ok"))
    assert isinstance(due(session, Limits()), AskModel)


def test_max_steps_names_the_agent_and_the_bound() -> None:
    session = begun()
    limits = Limits(max_steps=2)
    for number in range(2):
        take(session, reply(call(f"{number}")))
        take(session, ToolReturned(f"{number}", "ok"))
    effect = due(session, limits)
    assert effect == EndTurn("failed", "max_steps of a.1 reached (2 model calls in one turn)")


def test_max_turns_holds_before_the_first_call_of_the_turn_beyond_it() -> None:
    limits = Limits(max_turns=1)
    session = begun(limits)
    take(session, reply(Text("one"), stop="end"))
    take(session, Stop("completed"))
    session.begin_record(2, 2)
    feed(session, MailArrived("prompt", 0, "again"))
    decision = advance(session, limits)
    assert decision.effect == EndTurn("failed", "max_turns of a.1 reached (1)")
    assert decision.facts == (TurnStarted(2, 2),)


def test_max_tokens_holds_before_the_first_call_of_a_turn() -> None:
    limits = Limits(max_tokens=2)
    session = begun(limits)
    take(session, reply(Text("one"), stop="end"))
    take(session, Stop("completed"))
    session.begin_record(2, 2)
    feed(session, MailArrived("prompt", 0, "again"))
    assert advance(session, limits).effect == EndTurn("budget_exceeded", "max_tokens of a.1 reached (2)")


def test_a_steer_is_read_between_steps_and_a_prompt_waits_for_the_next_turn() -> None:
    session = begun()
    session.begin_record(2, 2)
    feed(session, MailArrived("prompt", 0, "later"))
    session.begin_record(3, 3)
    feed(session, MailArrived("steer", 0, "left"))
    take(session, reply(call("a")))
    take(session, ToolReturned("a", "ok"))
    decision = advance(session, LIMITS)
    feed(session, *decision.facts)
    assert isinstance(decision.effect, AskModel)
    assert session.messages[-1].parts == (Text("left"),)
    assert [mail.text for mail in session.unread] == ["later"]

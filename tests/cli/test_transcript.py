from __future__ import annotations

from typing import Any

import pytest

from nanotrio.messages import Message, Text, ToolCall, ToolResult, Usage
from nanotrio.swarm.events import (
    AgentSpawned,
    AttemptRetried,
    BudgetWarned,
    Event,
    MessageReplied,
    StoreTroubled,
    TextDelta,
    ToolFinished,
    ToolStarted,
)
from nanotrio_cli.transcript import Transcript, call_line, call_text

ROOT, CHILD = 1, 2


def delta(text: str, agent: int = ROOT) -> TextDelta:
    return TextDelta(agent, f"agent.{agent}", text)


def replied(text: str, agent: int = ROOT) -> MessageReplied:
    return MessageReplied(agent, f"agent.{agent}", Message("assistant", (Text(text),), "m"), Usage(), 0)


def shown(*events: Event, **options: Any) -> str:
    transcript = Transcript(ROOT, **options)
    return "".join(piece.text for event in events for piece in transcript.pieces(event))


@pytest.mark.parametrize(
    "events",
    [
        [delta("one "), delta("two"), replied("one two")],
        [delta("one "), replied("one two")],
        [replied("one two")],
    ],
    ids=["all pieces", "the last one lost", "all lost"],
)
def test_an_answer_is_shown_once_and_whole_whatever_was_lost(events: list[Event]) -> None:
    assert shown(*events) == "one two\n"


def test_an_answer_with_a_hole_is_shown_again() -> None:
    assert shown(delta("one "), delta("three"), replied("one two three")) == "one three\none two three\n"


def test_a_second_try_starts_over() -> None:
    again = AttemptRetried(ROOT, "agent.1", "the stream was cut", 1.0)

    assert shown(delta("half of"), again, delta("whole"), replied("whole")) == (
        "half of\nagent.1 tries again in 1.0 s: the stream was cut\nwhole\n"
    )


def test_a_child_speaks_by_its_notes_alone() -> None:
    events = [AgentSpawned(CHILD, "kid.2", ROOT, "look"), delta("secret", CHILD), replied("secret", CHILD)]

    assert shown(*events) == "+ kid.2: look\n"


def test_a_call_is_one_line_and_a_failure_another() -> None:
    call = ToolCall("1", "bash", '{"command": "make\\nmake test", "timeout": 5}')

    assert shown(ToolStarted(ROOT, "agent.1", call)) == "• bash make make test\n"
    assert shown(ToolFinished(ROOT, "agent.1", call, ToolResult("1", "fine"))) == ""
    told = shown(ToolFinished(ROOT, "agent.1", call, ToolResult("1", "no\nway", is_error=True)))
    assert told == "bash failed: no way\n"


def test_trouble_with_the_store_is_shown_at_once_and_its_end_too() -> None:
    assert shown(StoreTroubled(0, "disk full"), StoreTroubled(0, "")) == "disk full\nthe store takes writes again\n"


@pytest.mark.parametrize("arguments", ["{}", "[1]", "nonsense", '{"a": "\\ud800"}'])
def test_odd_arguments_do_no_harm(arguments: str) -> None:
    call = ToolCall("1", "tool", arguments)

    assert call_line(call).startswith("tool")
    assert call_text(call).startswith("tool")
    call_text(call).encode()


def test_what_a_person_judges_is_whole_and_spelled_out() -> None:
    call = ToolCall("1", "bash", '{"command": "' + "x" * 5_000 + '; rm -rf \\u001b[8m~\\nsecond"}')

    text = call_text(call)

    assert "x" * 5_000 + "; rm -rf \\x1b[8m~\n    second" in text


def test_a_cap_that_is_nearly_spent_is_told_whoever_holds_it() -> None:
    assert shown(BudgetWarned(7, "kid.7", 8, 10, "80 % of the budget of kid.7 is spent")) == (
        "80 % of the budget of kid.7 is spent\n"
    )

"""Results that must be of a form: told what is missing, tried a few times, and never without the prose."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import signal
import threading
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest

from nanotrio.errors import ToolError, UsageError
from nanotrio.messages import Usage
from nanotrio.swarm.result import check_result, schema_of
from nanotrio.testing import assert_replays
from tests.swarm.worlds import by_task, opened, reply_calls, reply_text, taped_store


class Finding(msgspec.Struct):
    path: str
    line: Annotated[int, msgspec.Meta(ge=1)]
    when: dt.date | None = None


@dataclasses.dataclass
class Report:
    title: str
    findings: list[Finding]


REPORT = {"title": "Leaks", "findings": [{"path": "a.py", "line": 3, "when": "2026-01-02"}]}


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"findings": []}, "missing: title; present: findings;"),
        ({}, "missing: title, findings; present: nothing;"),
        (
            {"title": "x", "findings": [{"line": 3}, {}]},
            "missing: findings[0].path, findings[1].path, findings[1].line",
        ),
        ({"title": 5, "findings": [{"path": "a", "line": 0}]}, "$.findings[0].line: 0 is less than the minimum of 1"),
        ({"title": "x", "findings": [{"path": "a", "line": 1, "when": "soon"}]}, "[0].when: 'soon' is not a 'date'"),
        ({"title": 5, "findings": []}, "$.title: 5 is not of type 'string'; present: title, findings;"),
        ("prose", "$: 'prose' is not of type 'object'"),
        ([], "$: [] is not of type 'object'"),
    ],
)
def test_what_does_not_fit_is_told_field_by_field(result: Any, says: str) -> None:
    with pytest.raises(ToolError) as raised:
        check_result(schema_of(Report), json.dumps(result))
    assert says in str(raised.value)


class Left(msgspec.Struct, tag=True):
    x: int
    finding: Finding | None = None


class Right(msgspec.Struct, tag=True):
    y: int
    z: Literal["a", "b"] = "a"


@pytest.mark.parametrize(
    ("type_", "result", "says"),
    [
        (Finding | None, {"line": 0}, "missing: path; $.line: 0 is less than the minimum of 1; present: line;"),
        (Right | None, {"type": "Right", "y": 1, "z": "c"}, "$.z: 'c' is not one of ['a', 'b']; present: type, y, z;"),
        (Left | Right, {"type": "Right"}, "schema: missing: y; present: type;"),
        (Left | Right, {"type": "Left", "finding": {"line": 1}}, "missing: x, finding.path; present: type, finding;"),
        (Left | Right, {"type": "Middle"}, "$: {'type': 'Middle'} is not valid under any of the given schemas"),
        (Finding | None, 3, "$: 3 is not valid under any of the given schemas"),
        (list[Finding | None], [None, {"path": "a"}], "missing: $[1].line;"),
    ],
)
def test_of_what_may_be_one_of_several_the_one_that_was_meant_is_told(type_: Any, result: Any, says: str) -> None:
    with pytest.raises(ToolError) as raised:
        check_result(schema_of(type_), json.dumps(result))
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("type_", "result", "value"),
    [
        (dict[int, str], {"3": "x"}, {3: "x"}),
        (Right, {"type": "Right", "y": 3.0}, Right(3)),
        (list[float], [1, 2.0], [1.0, 2.0]),
        (dt.timedelta, "PT3S", dt.timedelta(seconds=3)),
        (Decimal, "1.50", Decimal("1.50")),
        (UUID, "6ba7b810-9dad-11d1-80b4-00c04fd430c8", UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")),
    ],
)
async def test_what_fits_the_schema_of_a_type_becomes_one(type_: Any, result: Any, value: Any) -> None:
    async with opened(by_task(root=[reply_calls(("submit_result", {"result": result}))])) as swarm:
        outcome = await (await swarm.spawn("root go", result_type=type_)).wait()
    assert outcome.result_as(type_) == value


@pytest.mark.parametrize("type_", [dt.date, dt.timedelta, Decimal, UUID, {"type": "string", "format": "date-time"}])
def test_a_text_that_is_not_of_the_format_of_its_type_does_not_fit(type_: Any) -> None:
    with pytest.raises(ToolError, match="'soon' is not a '"):
        check_result(schema_of(type_), '"soon"')


def test_what_is_told_is_bounded() -> None:
    schema = schema_of(
        {"type": "object", "required": [f"r{n}" for n in range(500)], "additionalProperties": {"type": "string"}}
    )
    value = {f"p{n}" * 200: ["x" * 10_000] for n in range(300)}
    with pytest.raises(ToolError) as raised:
        check_result(schema, json.dumps(value))
    assert "and 480 more" in str(raised.value)
    assert len(str(raised.value)) < 12_000


@pytest.mark.parametrize("type_", [Report, json.loads(schema_of(Report)), schema_of(Report)])
async def test_a_result_is_checked_against_a_type_a_schema_or_its_text_and_comes_back_typed(type_: Any) -> None:
    replies = [
        reply_calls(("submit_result", {"result": {"title": "x"}})),
        reply_calls(("submit_result", {"result": REPORT})),
    ]
    store = taped_store()
    async with opened(by_task(root=replies), store=store) as swarm:
        outcome = await (await swarm.spawn("root go", result_type=type_)).wait()
    assert (outcome.status, outcome.steps) == ("completed", 2)
    assert outcome.result == REPORT
    report = outcome.result_as(Report)
    assert report == Report("Leaks", [Finding("a.py", 3, dt.date(2026, 1, 2))])
    assert outcome.result_as(dict) == REPORT
    with pytest.raises(UsageError, match=r"the result of agent\.1 is no Finding: Object missing required field `path`"):
        outcome.result_as(Finding)
    async with opened(by_task(root=replies), store=await store.as_of(len(store.batches))) as swarm:
        again = await (await swarm.resume(1)).wait()
        assert again.result_as(Report) == report, "after a restart, where no type was named"


@pytest.mark.parametrize("type_", ["[]", "3", "null", "{", "", {"a": {1}}, 5, type("Own", (), {})])
def test_a_result_type_that_cannot_be_told_as_a_schema_is_refused_in_one_line(type_: Any) -> None:
    with pytest.raises(UsageError, match="schema") as raised:
        schema_of(type_)
    assert "\n" not in str(raised.value)


class Tree(msgspec.Struct):
    kids: list[Tree] = []


@pytest.mark.parametrize(
    "type_",
    [
        Tree,
        True,
        {"$ref": "#/definitions/a", "definitions": {"a": {"enum": [{"$ref": "#/none"}]}}},
        {"$ref": "#leaf", "$defs": {"x": {"$anchor": "leaf"}}},
        {"properties": {"$ref": {"type": "string"}}},
        {"$id": "http://x.example/a", "$ref": "b", "$defs": {"b": {"$id": "b"}}},
    ],
)
def test_references_that_lead_somewhere_are_let_be(type_: Any) -> None:
    assert schema_of(json.dumps(type_) if type_ is True else type_)


async def test_one_that_never_hands_it_in_fails_after_three_tries_and_keeps_its_prose() -> None:
    prose = "There are three leaks; the worst is in a.py."
    async with opened(by_task(root=[reply_text(prose)])) as swarm:
        outcome = await (await swarm.spawn("root go", result_type=Report)).wait()
    assert (outcome.status, outcome.result, outcome.steps) == ("failed", None, 3)
    assert outcome.last_text == prose
    assert outcome.reason == "the same mistake 3 times in a row: no result by submit_result that fits the schema"
    with pytest.raises(UsageError, match=r"agent\.1 has no result: its turn ended as failed: the same mistake"):
        outcome.result_as(Report)


async def test_wrong_results_of_different_kinds_are_bounded_too() -> None:
    """Each try is wrong in another way, and that they are wrong is the mistake."""

    def root(c: Any) -> Any:
        wrong = [{"title": c.steps}, {"findings": c.steps}, "text", [c.steps]][c.steps % 4]
        return reply_calls(("submit_result", {"result": wrong}), text=f"try {c.steps}")

    async with opened(by_task(root=root)) as swarm:
        outcome = await (await swarm.spawn("root go", result_type=Report)).wait()
    assert outcome.status == "failed"
    assert outcome.steps == 3
    assert outcome.reason == (
        "the same mistake 3 times in a row: no result by submit_result that fits the schema: "
        "the result does not fit its schema: $: 'text' is not of type 'object'; submit it again"
    )
    assert outcome.last_text == "try 2"


async def test_a_child_is_held_to_the_schema_that_a_model_asked_for_and_its_parent_reads_the_prose() -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    told: list[str] = []

    def root(c: Any) -> Any:
        told.extend(result.content for result in c.results)
        if c.steps < 2:
            task = ["good go", "bad go"][c.steps]
            return reply_calls(("spawn_agent", {"prompt": task, "result_schema": schema, "background": False}))
        return reply_text("end")

    script = by_task(
        root=root, good=[reply_calls(("submit_result", {"result": {"n": 3}}))], bad=[reply_text("I could not count.")]
    )
    async with opened(script) as swarm:
        await (await swarm.spawn("root go")).wait()
    assert told[0] == 'agent.2 completed: {"n": 3}'
    assert told[1].startswith("agent.3 failed: the same mistake 3 times in a row")
    assert told[1].endswith("; its last text: I could not count.")


ENDLESS = {
    "pattern": ({"type": "string", "pattern": "^(a+)+$"}, "a" * 60 + "!"),
    "name": ({"type": "object", "patternProperties": {"^(a+)+$": {}}}, {"a" * 60 + "!": 1}),
    "alternatives": (
        {"$defs": {"n": {"anyOf": [{"items": {"$ref": "#/$defs/n"}, "minItems": 1}] * 3}}, "$ref": "#/$defs/n"},
        json.loads("[" * 60 + "]" * 60),
    ),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_a_check_that_would_not_end_is_given_up(what: str) -> None:
    schema, value = ENDLESS[what]
    with pytest.raises(ToolError, match=r"cannot be held to its schema within 0\.25 s"):
        check_result(schema_of(schema), json.dumps(value))
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    check_result(schema_of({"type": "string"}), '"fine"')


def test_a_timer_that_somebody_has_set_goes_on_after_a_check() -> None:
    former = signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_VIRTUAL, 1_000)
    try:
        check_result('{"type": "string"}', '"fine"')
        assert 900 < signal.getitimer(signal.ITIMER_VIRTUAL)[0] < 1_001
        assert signal.getsignal(signal.SIGVTALRM) is signal.SIG_IGN
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


def test_a_result_can_be_checked_in_any_thread() -> None:
    found: list[BaseException] = []

    def check() -> None:
        try:
            check_result('{"type": "string"}', "3")
        except ToolError as error:
            found.append(error)

    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    assert len(found) == 1


@pytest.mark.parametrize("usage", [Usage(1.5, 1), Usage(-1, 1), Usage(1, "2")])  # type: ignore[arg-type]
async def test_a_usage_that_cannot_be_counted_fails_the_call_and_not_the_store(usage: Usage) -> None:
    store = taped_store()
    async with opened([reply_text("done", usage=usage)], store=store) as swarm:
        outcome = await (await swarm.spawn("go")).wait()
        assert outcome.status == "failed"
        assert "each must be a whole number, 0 or more" in outcome.reason
    await assert_replays(store)

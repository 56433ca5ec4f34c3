from __future__ import annotations

from typing import Any

import pytest

from nanotrio.messages import Usage
from nanotrio.swarm.outcome import Outcome
from nanotrio_cli.money import cost_text
from nanotrio_cli.result import Ending, Spending, result_record, spending, subtype_of
from tests.cli.test_folded_tree import view


def ending(status: Any = "completed", reason: str = "", **fields: Any) -> Ending:
    outcome = Outcome(
        status, reason, "done" if status == "completed" else None, "said", 1, "agent.1", 1, 2, Usage(), 0, 0, 0
    )
    return Ending(session_id="s", duration_ms=5, outcome=outcome, steps=2, **fields)


@pytest.mark.parametrize(
    ("given", "subtype"),
    [
        (ending(), "success"),
        (ending("failed", "max_steps of agent.1 reached (3)"), "error_max_turns"),
        (ending("failed", "the server is down"), "error_during_execution"),
        (ending("budget_exceeded", "max_steps is not it"), "error_max_budget_usd"),
        (ending("deadline_exceeded", "late"), "error_during_execution"),
        (ending("cancelled", "stop"), "error_during_execution"),
        (ending("completed", error="interrupted by SIGINT"), "error_during_execution"),
        (Ending(session_id="", duration_ms=0, error="no store"), "error_during_execution"),
    ],
)
def test_the_subtype_says_how_it_ended(given: Ending, subtype: str) -> None:
    assert subtype_of(given) == subtype
    assert result_record(given)["is_error"] is (subtype != "success")


def test_an_error_is_never_a_result_and_its_last_text_is_kept() -> None:
    record = result_record(ending("failed", "the server is down"))

    assert (record["result"], record["errors"], record["last_text"]) == (None, ["the server is down"], "said")


def test_an_unknown_price_is_null_and_never_nothing() -> None:
    models = {"a/known": Spending(Usage(1), 5_000_000), "b/unknown": Spending(Usage(2), 0, 0, 1)}

    record = result_record(ending(models=models))

    assert record["total_cost_usd"] is None
    assert record["usage"]["input_tokens"] == 3
    assert record["model_usage"]["a/known"]["cost_usd"] == 0.005
    assert record["model_usage"]["b/unknown"]["cost_usd"] is None


def test_what_a_tree_used_is_split_by_model_without_counting_twice() -> None:
    root = view(1, spent_nano=100)
    child = view(2, 1, spent_nano=60)
    grandchild = view(3, 2, spent_nano=25)

    models = spending([root, child, grandchild])

    assert sum(one.cost_nano for one in models.values()) == 100
    assert models["m"].cost_nano == 100


@pytest.mark.parametrize(
    ("cost", "unpriced", "uncertain", "text"),
    [
        (0, 0, 0, "$0.0000"),
        (1_234_567, 0, 0, "$0.0012"),
        (0, 1, 0, "unknown"),
        (10**9, 3, 0, "$1.0000 + unknown"),
        (10**9, 0, 10**8, "$1.0000 (+ up to $0.1000)"),
    ],
)
def test_costs_as_people_read_them(cost: int, unpriced: int, uncertain: int, text: str) -> None:
    assert cost_text(cost, unpriced=unpriced, uncertain_nano=uncertain) == text

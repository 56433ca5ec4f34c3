"""The final record of ``-p``: what a run came to, in Claude Code's shape.

Numbers are this run's own: where a session goes on, what it had used before is subtracted. ``nanotrio show`` and
``nanotrio ls`` have the session's totals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from nanotrio.limits import usd
from nanotrio.messages import Usage
from nanotrio.swarm.outcome import AgentView, Outcome

__all__ = ["Ending", "Spending", "result_record", "result_text", "spending", "subtype_of", "usage_record"]


class Spending(msgspec.Struct, frozen=True):
    """What one model was used for, by agents of one tree."""

    usage: Usage = Usage()
    cost_nano: int = 0
    uncertain_nano: int = 0
    unpriced: int = 0

    def __add__(self, other: Spending) -> Spending:
        return Spending(
            self.usage + other.usage,
            self.cost_nano + other.cost_nano,
            self.uncertain_nano + other.uncertain_nano,
            self.unpriced + other.unpriced,
        )

    def __sub__(self, other: Spending) -> Spending:
        mine, its = (msgspec.structs.astuple(self.usage), msgspec.structs.astuple(other.usage))
        return Spending(
            Usage(*(max(one - two, 0) for one, two in zip(mine, its, strict=True))),
            max(self.cost_nano - other.cost_nano, 0),
            max(self.uncertain_nano - other.uncertain_nano, 0),
            max(self.unpriced - other.unpriced, 0),
        )


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the final record tells, gathered before the swarm closed."""

    session_id: str
    duration_ms: int
    outcome: Outcome | None = None
    """None where the run was cut off, or failed before a turn ended."""
    error: str = ""
    """Why there is no outcome, or why the run failed in spite of it; a sentence."""
    steps: int = 0
    models: Mapping[str, Spending] = {}
    denials: Sequence[Mapping[str, Any]] = ()
    wants_structure: bool = False

    @property
    def is_error(self) -> bool:
        """Whether the command ends with exit code 1."""
        return bool(self.error) or self.outcome is None or self.outcome.status != "completed"

    @property
    def reason(self) -> str:
        """A sentence that says why it is an error; empty where it is none."""
        if self.error:
            return self.error
        if self.outcome is None:
            return "the run ended without an outcome"
        return (self.outcome.reason or self.outcome.status) if self.is_error else ""


def spending(views: Iterable[AgentView]) -> dict[str, Spending]:
    """Split what a tree used by model.

    A view in a list counts itself and all below it, so an agent's own part is what is left without its children.
    """
    found = list(views)
    totals = {view.id: _spent(view) for view in found}
    children: dict[int, Spending] = {}
    for view in found:
        children[view.parent] = children.get(view.parent, Spending()) + totals[view.id]
    models: dict[str, Spending] = {}
    for view in found:
        own = totals[view.id] - children.get(view.id, Spending())
        if own != Spending():
            models[view.model] = models.get(view.model, Spending()) + own
    return models


def _spent(view: AgentView) -> Spending:
    return Spending(view.usage, view.spent_nano, view.uncertain_nano, view.unpriced)


def usage_record(usage: Usage) -> dict[str, int]:
    """Return token counts under the names that the Messages format has for them."""
    return {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }


def subtype_of(ending: Ending) -> str:
    """Return Claude Code's word for how the run ended."""
    if not ending.is_error:
        return "success"
    outcome = ending.outcome
    if outcome is not None and not ending.error:
        if outcome.status == "budget_exceeded":
            return "error_max_budget_usd"
        if outcome.status == "failed" and "max_steps" in outcome.reason:
            return "error_max_turns"
        if outcome.status == "failed" and ending.wants_structure and "submit_result" in outcome.reason:
            return "error_max_structured_output_retries"
    return "error_during_execution"


def result_text(outcome: Outcome) -> str:
    """Return a completed turn's result as text; a value that is none is written as JSON."""
    if isinstance(outcome.result, str):
        return outcome.result
    return "" if outcome.result is None else msgspec.json.encode(outcome.result).decode()


def result_record(ending: Ending) -> dict[str, Any]:
    """Return the final record.

    A cost is null where a call's price is unknown. ``result`` is null where the run is an error; the last text that
    the model wrote, if any, then stands in ``last_text``.
    """
    total = sum(ending.models.values(), Spending())
    outcome = ending.outcome
    done = outcome if not ending.is_error else None
    record: dict[str, Any] = {
        "type": "result",
        "subtype": subtype_of(ending),
        "is_error": ending.is_error,
        "result": None if done is None else result_text(done),
        "session_id": ending.session_id,
        "num_turns": ending.steps,
        "duration_ms": ending.duration_ms,
        "total_cost_usd": None if total.unpriced else usd(total.cost_nano),
        "usage": usage_record(total.usage),
        "model_usage": {name: _model_record(one) for name, one in sorted(ending.models.items())},
        "structured_output": done.result if done is not None and ending.wants_structure else None,
        "permission_denials": list(ending.denials),
        "errors": [ending.reason] if ending.is_error else [],
    }
    if total.uncertain_nano:
        record["uncertain_cost_usd"] = usd(total.uncertain_nano)
    if ending.is_error and outcome is not None and outcome.last_text:
        record["last_text"] = outcome.last_text
    return record


def _model_record(one: Spending) -> dict[str, Any]:
    return {**usage_record(one.usage), "cost_usd": None if one.unpriced else usd(one.cost_nano)}

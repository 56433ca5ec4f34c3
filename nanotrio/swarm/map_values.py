"""What may be asked of a map, and what it answers with, as values."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

import msgspec

from ..errors import UsageError
from ..given import a_text, whole
from ..limits import Limits, nano_usd, usd
from ..messages import Usage, clean_text
from ..records import OutcomeStatus
from ..tools import Tool
from .spawning import SpawnOptions
from .template import Template, values_of

__all__ = ["MapOptions", "MapResult", "MapStatistics", "Plan", "plan_of", "without"]

_MIN_LOOK_AHEAD = 1_000


class MapOptions(TypedDict, total=False):
    """Keyword arguments of ``swarm.map``. Up to ``result_type`` they are those of ``spawn``, for each item's agent."""

    model: str
    system: str
    tools: Sequence[Tool | Callable[..., Any] | str]
    timeout_seconds: float
    limits: Limits
    directory: Path | str
    permission_mode: str
    result_type: Any
    name: str
    """Of the job's root; ``map`` by default."""
    budget_usd: float
    """Caps the job as a whole."""
    job: str
    """The job's id. On a store that has a job of this id it goes on: finished items' results come from the store,
    without a model call, unfinished ones are resumed, and the rest is started. Without it each map is a new job.
    The id of a new one is a word: no ``/``, white space or control characters."""
    item_budget_usd: float
    """Caps each agent."""
    retries: int
    """How often a failed item is given to a fresh agent; 0 by default. What a budget stopped is not."""
    retry_failed: bool
    """Give fresh agents also to items that a former run of the job left as failed."""
    max_active: int
    """Items at work at once; by default as many as the swarm has slots."""
    look_ahead: int
    """Items of the window; by default 1,000, or twice ``max_active`` where that is more."""
    key: Callable[[Any], bytes]
    """What of an item makes it the same item as in a former run; by default all of it, as JSON, and its prompt."""


class MapResult(msgspec.Struct, frozen=True):
    """What became of one item."""

    index: int
    """Its place among the items, from 0."""
    item: Any
    status: OutcomeStatus
    result: Any
    """As in ``Outcome``; of the ``result_type`` where that is a type. None where it did not complete."""
    text: str
    """The last text the model wrote."""
    reason: str
    """Empty when completed; else a sentence."""
    cost_nano: int
    """Of all its agents and their descendants, like the counts below."""
    uncertain_nano: int
    unpriced: int
    usage: Usage
    attempts: int
    """Agents it was given to; 0 where none could be started."""
    agent: int
    """Id of the last of them, 0 where there is none."""
    name: str

    @property
    def cost_usd(self) -> float:
        """The cost in dollars."""
        return usd(self.cost_nano)


class MapStatistics(msgspec.Struct, frozen=True):
    """How far a map is; results that wait for their turn count as done."""

    items: int
    """Read so far."""
    completed: int
    failed: int
    """Ended in any other way."""
    restored: int
    """Of these two, those whose results came from the store."""
    active: int
    """At work."""


class Plan(msgspec.Struct, frozen=True):
    """What was asked for, checked."""

    check: Callable[[Any], None]
    """Refuses the first item where the template asks for what it does not have, as all items would be failures."""
    render: Callable[[Any], str]
    key: Callable[[Any], bytes] | None
    job: str
    goes_on: bool
    root: SpawnOptions
    """Of the job's root."""
    child: SpawnOptions
    """Of each item's agent."""
    budget_nano: int | None
    retries: int
    retry_failed: bool
    max_active: int
    look_ahead: int


def plan_of(prompt: str | Callable[[Any], str], options: MapOptions, slots: int) -> Plan:
    """Check what was asked for.

    Raises:
        UsageError: a value that cannot be used.
    """
    if "uuid" in options:
        raise UsageError("map takes no uuid; give job, which names its root")
    if unknown := options.keys() - MapOptions.__annotations__.keys():
        raise UsageError(f"map takes no {', '.join(sorted(unknown))}; it takes {', '.join(MapOptions.__annotations__)}")
    spawn = cast("SpawnOptions", without(options, *_OWN))
    retries = whole(options.get("retries", 0), "retries")
    max_active = whole(options.get("max_active", slots), "max_active", 1)
    look_ahead = whole(options.get("look_ahead", max(_MIN_LOOK_AHEAD, 2 * max_active)), "look_ahead", 1)
    job = a_text(options.get("job", str(uuid.uuid4())), "job")
    if not job:
        raise UsageError("job is empty; leave it out for a job that is not gone on with")
    job = clean_text(job)
    child = cast("SpawnOptions", without(spawn, "name", "budget_usd"))
    if (item_budget := options.get("item_budget_usd")) is not None:
        child["budget_usd"] = item_budget
    root = cast("SpawnOptions", {"name": "map", **without(spawn, "result_type", "timeout_seconds"), "uuid": job})
    budget = spawn.get("budget_usd")
    check, render = _renderer(prompt)
    return Plan(
        check=check,
        render=render,
        key=options.get("key"),
        job=job,
        goes_on="job" in options,
        root=root,
        child=child,
        budget_nano=None if budget is None else nano_usd(budget),
        retries=retries,
        retry_failed=options.get("retry_failed", False),
        max_active=max_active,
        look_ahead=look_ahead,
    )


_OWN = ("job", "item_budget_usd", "retries", "retry_failed", "max_active", "look_ahead", "key")


def without(options: Any, *names: str) -> dict[str, Any]:
    """Return options without those of these names."""
    return {name: value for name, value in options.items() if name not in names}


def _renderer(prompt: str | Callable[[Any], str]) -> tuple[Callable[[Any], None], Callable[[Any], str]]:
    if not isinstance(prompt, str):
        return lambda _: None, partial(_called, prompt)
    template = Template(prompt)
    return partial(_check, template), lambda item: template.render(values_of(item))


def _check(template: Template, item: Any) -> None:
    try:
        names = values_of(item)
    except Exception:  # noqa: BLE001 - an item that nothing can be read from is told of in its result
        return
    template.check(names)


def _called(prompt: Callable[[Any], str], item: Any) -> str:
    made: Any = prompt(item)
    if isinstance(made, str):
        return made
    if isinstance(made, Coroutine):
        made.close()
        raise UsageError("the prompt is an async function; give one that returns a text at once")
    raise UsageError(f"the prompt's function returned a {type(made).__name__}, not a text")

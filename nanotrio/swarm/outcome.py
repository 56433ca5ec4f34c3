"""How a turn ended, and how an agent stands, as values for the user."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from ..errors import UsageError
from ..limits import usd
from ..messages import Usage
from ..records import OutcomeStatus, Status
from ..session import Session

__all__ = ["AgentView", "Outcome", "convert_result", "outcome_of"]

_T = TypeVar("_T")


class Outcome(msgspec.Struct, frozen=True):
    """The one outcome of a turn.

    ``usage`` and the costs are the agent's own and its descendants', over all turns so far. ``agent`` is the id to go
    on from, whatever the status.
    """

    status: OutcomeStatus
    reason: str
    """Empty when completed; else a sentence: what happened and what held."""
    result: Any
    """What ``submit_result`` handed in, else the last text. None where the turn did not complete.

    Where a ``result_type`` was asked for it fits its schema, and is what JSON can hold: see ``result_as``.
    """
    last_text: str
    """The last text the model wrote in this turn, whatever the status."""
    agent: int
    name: str
    turn: int
    steps: int
    """Model calls that were answered in this turn."""
    usage: Usage
    cost_nano: int
    uncertain_nano: int
    """What calls that a crash cut off may have cost beyond ``cost_nano``."""
    unpriced: int
    """Model calls whose price is unknown; where it is not 0 the cost is a lower bound."""
    survivors: tuple[str, ...] = ()
    """Descendants that the end of the turn cut off, and processes that would not go."""

    @property
    def cost_usd(self) -> float:
        """The cost in dollars."""
        return usd(self.cost_nano)

    def result_as(self, type_: type[_T]) -> _T:
        """Return the result as a value of ``type_``, a Struct, a dataclass or whatever else msgspec knows.

        ``result`` itself is what JSON can hold, whatever type was asked for: so it is the same in another process and
        after a restart, where only the schema is known.

        Raises:
            UsageError: the turn did not complete, or its result is of another form; the message has the status and
                the reason, and ``last_text`` what the model said.
        """
        if self.status != "completed":
            raise UsageError(f"{self.name} has no result: its turn ended as {self.status}: {self.reason}")
        try:
            return convert_result(self.result, type_)
        except msgspec.ValidationError as error:
            name = getattr(type_, "__name__", type_)
            raise UsageError(f"the result of {self.name} is no {name}: {error}; spawn it with result_type=") from error


def convert_result(value: Any, type_: type[_T]) -> _T:
    """Return a value of JSON that fits the schema of ``type_`` as one of that type.

    Raises:
        ValidationError: msgspec's; it is none.
    """
    try:
        return msgspec.convert(value, type_, str_keys=True)
    except msgspec.ValidationError:
        return msgspec.convert(_whole(value), type_, str_keys=True)


def _whole(value: Any) -> Any:
    """Return a value of JSON with whole numbers as integers, which is what a schema takes 3.0 for."""
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class AgentView(msgspec.Struct, frozen=True, gc=False):
    """An agent as it stands; a snapshot."""

    id: int
    name: str
    parent: int
    root: int
    depth: int
    status: Status | str
    """A ``Status``, or ``"interrupted"``: unfinished in a store whose owner is gone."""
    model: str
    turn: int
    outcome: OutcomeStatus | None
    usage: Usage
    """Its own and its descendants', like the three that follow. The view of a single agent in memory has what
    descendants used once they end; ``agent.budget()`` and the lists of views have those at work too."""
    spent_nano: int
    uncertain_nano: int
    unpriced: int
    waiting_for: str
    """Why it is not making progress now (a child, a slot, a reservation, a rate limit), or empty."""
    task: str
    """The beginning of its first prompt."""
    uuid: str
    created_us: int
    updated_us: int
    directory: str = ""
    """Where it works."""
    permission_mode: str = ""
    tools: tuple[str, ...] = ()
    unreported_nano: int = 0
    """The part of spent and uncertain that its parent has not been told of."""


def outcome_of(session: Session) -> Outcome:
    """Return the outcome of the session's last turn that ended; call it only where one has."""
    ended = session.ended
    assert ended is not None
    fact = ended.fact
    result: Any = None
    if fact.status == "completed":
        result = json.loads(fact.result) if fact.result else fact.last_text
    return Outcome(
        status=fact.status,
        reason=fact.reason,
        result=result,
        last_text=fact.last_text,
        agent=session.agent,
        name=session.name,
        turn=ended.turn,
        steps=ended.steps,
        usage=session.usage,
        cost_nano=session.spent_nano,
        uncertain_nano=session.uncertain_nano,
        unpriced=session.unpriced,
        survivors=fact.survivors,
    )

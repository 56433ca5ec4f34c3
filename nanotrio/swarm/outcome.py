"""How a turn ended, and how an agent stands, as values for the user."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ..limits import usd
from ..messages import Usage
from ..records import OutcomeStatus, Status
from ..session import Session

__all__ = ["AgentView", "Outcome", "outcome_of"]


class Outcome(msgspec.Struct, frozen=True):
    """The one outcome of a turn.

    ``usage`` and the costs are the agent's own and its descendants', over all turns so far. ``agent`` is the id to go
    on from, whatever the status.
    """

    status: OutcomeStatus
    reason: str
    """Empty when completed; else a sentence: what happened and what held."""
    result: Any
    """What ``submit_result`` handed in, else the last text. None where the turn did not complete."""
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

"""What a session knows of its open turn, and of the last one that ended."""

from __future__ import annotations

from typing import cast

import msgspec

from .messages import ToolCall, ToolResult
from .records import TurnEnded

__all__ = ["NO_CALLS", "Ended", "OpenCall", "Turn"]


class OpenCall(msgspec.Struct, gc=False):
    """A call of the last reply, on its way to its one result."""

    call: ToolCall
    intended: bool = False
    """It may have been dispatched: its intent is on record."""
    child: int = 0
    """It waits for this child."""
    result: ToolResult | None = None


NO_CALLS = cast("list[OpenCall]", ())
"""No calls, the same for all turns: most have none for most of their life. Never appended to."""


class Turn(msgspec.Struct, gc=False, omit_defaults=True):
    """A turn that is open."""

    number: int
    since_us: int
    """When it began, or was taken up again after a restart."""
    elapsed_us: int = 0
    """How long it had run before ``since_us``; time in which no process ran is not counted."""
    steps: int = 0
    """Model calls that were answered."""
    tool_calls: int = 0
    stop: str = ""
    """Why the last reply stopped; empty where the model is to be asked next."""
    calls: list[OpenCall] = NO_CALLS
    last_text: str = ""
    submitted: str | None = None
    failed_attempts: int = 0
    """In a row."""
    failure_kind: str = ""
    failure: str = ""
    mistake: str = ""
    mistakes: int = 0
    """Steps in a row with the same mistake."""
    mistake_step: int = 0

    def count_mistake(self, mistake: str) -> None:
        """Count what the model did wrong, or that it did not; see ``mistakes``."""
        if not mistake:
            self.mistake, self.mistakes = "", 0
        elif mistake.partition("\n")[0] != self.mistake.partition("\n")[0]:
            self.mistake, self.mistakes, self.mistake_step = mistake, 1, self.steps
        elif self.mistake_step != self.steps:
            self.mistake, self.mistakes, self.mistake_step = mistake, self.mistakes + 1, self.steps


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The last turn that ended: its number, its steps and the fact that ended it."""

    turn: int
    steps: int
    fact: TurnEnded
    seq: int = 0
    """The number of its record, from which a fork goes on."""
    messages: int = 0
    """How many there were then."""
    snapshot_seq: int = 0
    """The newest snapshot then."""

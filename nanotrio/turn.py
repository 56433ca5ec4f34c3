"""The loop of an agent, without I/O: what an input makes true, and what the state asks for next.

Theory of operation
-------------------
Two pure functions drive every turn::

    absorb(session, input)           -> facts that the input makes true
    advance(session, limits, now_us) -> facts that are due anyhow, and the one effect to perform next

``swarm`` applies the facts, performs the effect, turns what came of it into an input, and goes round. The effect is a
function of the state alone; so an agent that is taken up after a crash needs no plan of its own: it asks ``advance``
like any other, and goes on with whatever is due::

    no turn    --unread mail-->  TurnStarted ---------------------------> AskModel
    turn open  --calls without a result --------------------------------> RunTools
               --an attempt failed, and may be tried again -------------> Retry
               --a result was submitted, the model stopped, a bound held-> EndTurn
               --else: read the news, ---------------------------------> AskModel

An agent that was never given a task begins no turn: it only holds its children.

A turn ends by ``absorb(Stop(...))`` alone, whether it completed or was stopped from outside: every call that is still
open gets its one result there, so the history a provider sees is valid after any end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import msgspec

from .errors import TRANSIENT_KINDS
from .limits import Limits
from .messages import ToolCall, Usage
from .open_turn import Turn
from .records import (
    AttemptFailed,
    Fact,
    MailRead,
    OutcomeStatus,
    Replied,
    Reserved,
    Restarted,
    Submitted,
    ToolEnded,
    ToolIntended,
    TurnEnded,
    TurnStarted,
    Unfit,
)
from .session import Session

__all__ = [
    "INTERRUPTED",
    "Admitted",
    "AskModel",
    "Decision",
    "Effect",
    "EndTurn",
    "Failed",
    "Input",
    "Intend",
    "ModelReplied",
    "Refuse",
    "Restart",
    "Retry",
    "RunTools",
    "Stop",
    "Submit",
    "ToolReturned",
    "absorb",
    "advance",
]

INTERRUPTED = (
    "interrupted; outcome unknown: the process ended before the result was stored. Check before doing it again."
)
NOT_RUN = "not run: the turn ended first"
CUT_OFF = "interrupted; outcome unknown: the turn was ended while this call ran. Check before doing it again."


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """A reservation was made for the next model call, and an ancestor has a budget."""

    amount_nano: int


class ModelReplied(msgspec.Struct, frozen=True, gc=False):
    """The model's whole reply, as the fact that will be stored."""

    reply: Replied


class Failed(msgspec.Struct, frozen=True, gc=False):
    """An attempt of a model call failed."""

    kind: str
    message: str
    usage: Usage = Usage()
    cost_nano: int | None = 0
    uncertain_nano: int = 0


class Intend(msgspec.Struct, frozen=True, gc=False):
    """Calls are about to be dispatched, or wait for ``child``."""

    call_ids: tuple[str, ...]
    child: int = 0


class ToolReturned(msgspec.Struct, frozen=True, gc=False):
    """A call came back. ``mistake`` names what the model did wrong, where the call never ran."""

    call_id: str
    content: str
    is_error: bool = False
    mistake: str = ""


class Submit(msgspec.Struct, frozen=True, gc=False):
    """The agent handed in its result, a JSON text."""

    result: str


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """The text that the turn would have ended with is not the result that was asked for; ``text`` tells the model."""

    text: str


class Restart(msgspec.Struct, frozen=True, gc=False):
    """A new owner takes the agent up. Calls in ``repeatable`` may be run again though their intent is on record."""

    repeatable: frozenset[str] = frozenset()


class Stop(msgspec.Struct, frozen=True, gc=False):
    """The turn ends now, with this outcome; ``survivors`` names descendants it cuts off."""

    status: OutcomeStatus
    reason: str = ""
    result: str = ""
    survivors: tuple[str, ...] = ()


Input: TypeAlias = Admitted | ModelReplied | Failed | Intend | ToolReturned | Submit | Refuse | Restart | Stop


@final
class AskModel(msgspec.Struct, frozen=True, gc=False):
    """Reserve, and make one attempt of a model call."""


@final
class RunTools(msgspec.Struct, frozen=True, gc=False):
    """Run these calls; each comes back as one ``ToolReturned``."""

    calls: tuple[ToolCall, ...]


@final
class Retry(msgspec.Struct, frozen=True, gc=False):
    """Wait as the kind of failure asks, then ask the model again."""

    kind: str
    attempt: int
    message: str


@final
class EndTurn(msgspec.Struct, frozen=True, gc=False):
    """Absorb a ``Stop`` with this outcome. ``is_final`` says that descendants still running are to be ended."""

    status: OutcomeStatus
    reason: str = ""
    result: str = ""
    is_final: bool = False


Effect: TypeAlias = AskModel | RunTools | Retry | EndTurn


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Facts to apply, then the effect to perform; no effect means that no turn is open and no mail waits."""

    facts: tuple[Fact, ...] = ()
    effect: Effect | None = None


_ASK = AskModel()
_ASK_NOW = Decision((), _ASK)
_IDLE = Decision()


def advance(session: Session, limits: Limits) -> Decision:
    """Return what the state asks for next. Pure; the session is not changed."""
    turn = session.turn
    if turn is None:
        if not session.has_news or session.status == "closed" or not session.task:
            return _IDLE
        begin = TurnStarted(session.turns + 1, session.last_seq)
        return Decision((begin,), _spent(session, limits, begin.turn) or _ASK)
    if turn.calls:
        return Decision((), RunTools(tuple([call.call for call in turn.calls if call.result is None])))
    end = _end_of(session, turn, limits)
    if end is not None:
        return Decision((), end)
    if turn.failure_kind:
        return Decision((), Retry(turn.failure_kind, turn.failed_attempts, turn.failure))
    if session.unread and any(mail.is_told_between_steps for mail in session.unread):
        return Decision((MailRead(session.last_seq),), _ASK)
    return _ASK_NOW


def _end_of(session: Session, turn: Turn, limits: Limits) -> EndTurn | None:
    """Return how the turn ends, if it does."""
    if turn.submitted is not None:
        return EndTurn("completed", result=turn.submitted, is_final=True)
    if turn.stop in ("end", "tool_use"):  # without calls, or they would have been answered
        if turn.last_text:
            return EndTurn("completed")
        return EndTurn("failed", "the model ended its turn without a word")
    if turn.stop == "max_tokens":
        return EndTurn("failed", f"the reply was cut off at max_output_tokens ({limits.max_output_tokens})")
    if turn.stop == "refusal":
        return EndTurn("failed", "the model refused to go on")
    if turn.failure_kind and (turn.failure_kind not in TRANSIENT_KINDS or turn.failed_attempts >= limits.max_attempts):
        tries = f" ({turn.failed_attempts} attempts)" if turn.failed_attempts > 1 else ""
        return EndTurn("failed", f"{turn.failure}{tries}")
    if turn.mistakes >= limits.max_bad_calls:
        mistake = turn.mistake.replace("\n", ": ")
        return EndTurn("failed", f"the same mistake {turn.mistakes} times in a row: {mistake}")
    if turn.steps >= limits.max_steps:
        return EndTurn("failed", f"max_steps of {session.name} reached ({limits.max_steps} model calls in one turn)")
    if turn.tool_calls > limits.max_tool_calls:
        return EndTurn("failed", f"max_tool_calls of {session.name} reached ({limits.max_tool_calls} in one turn)")
    return _spent(session, limits, turn.number)


def _spent(session: Session, limits: Limits, turn: int) -> EndTurn | None:
    """Return how a turn ends for what was used up over the agent's life, if it does."""
    if turn > limits.max_turns:
        return EndTurn("failed", f"max_turns of {session.name} reached ({limits.max_turns})")
    if limits.max_tokens is not None and sum(msgspec.structs.astuple(session.usage)) >= limits.max_tokens:
        return EndTurn("budget_exceeded", f"max_tokens of {session.name} reached ({limits.max_tokens})")
    return None


def absorb(session: Session, event: Input) -> tuple[Fact, ...]:
    """Return the facts that ``event`` makes true. Pure; the session is not changed."""
    return _ABSORB[type(event)](session, event)


def _absorb_reply(session: Session, event: ModelReplied) -> tuple[Fact, ...]:
    reply = event.reply
    ids: set[str] = {""}
    is_bad = is_unnamed = False
    for part in reply.parts:
        if type(part) is ToolCall:
            is_unnamed = is_unnamed or part.id in ids
            ids.add(part.id)
            is_bad = is_bad or part.problem != ""
    if is_unnamed:
        reply = msgspec.structs.replace(reply, parts=_with_unique_ids(reply.parts, session.last_seq))
    if not is_bad:
        return (reply,)
    bad = [part for part in reply.parts if type(part) is ToolCall and part.problem]
    return (reply, *[ToolEnded(call.id, call.problem, True, f"{call.name}: bad arguments") for call in bad])


def _with_unique_ids(parts: Sequence[object], salt: int) -> tuple[object, ...]:
    """A provider matches results by id, so two calls of one reply must not share one."""
    seen: set[str] = set()
    named: list[object] = []
    for index, part in enumerate(parts):
        if isinstance(part, ToolCall):
            call_id = part.id
            while not call_id or call_id in seen:
                call_id = f"call_{salt}_{index}_{len(call_id)}"
            seen.add(call_id)
            named.append(part if call_id == part.id else msgspec.structs.replace(part, id=call_id))
        else:
            named.append(part)
    return tuple(named)


def _absorb_return(_: Session, event: ToolReturned) -> tuple[Fact, ...]:
    return (ToolEnded(event.call_id, event.content, event.is_error, event.mistake),)


def _absorb_intend(_: Session, event: Intend) -> tuple[Fact, ...]:
    return tuple([ToolIntended(call_id, event.child) for call_id in event.call_ids])


def _absorb_failure(_: Session, event: Failed) -> tuple[Fact, ...]:
    return (AttemptFailed(event.kind, event.message, event.usage, event.cost_nano, event.uncertain_nano),)


def _absorb_restart(session: Session, event: Restart) -> tuple[Fact, ...]:
    unknown = [
        ToolEnded(call.call.id, INTERRUPTED, True)
        for call in (session.turn.calls if session.turn else ())
        if call.result is None and call.intended and not call.child and call.call.id not in event.repeatable
    ]
    return (Restarted(), *unknown)


def _absorb_stop(session: Session, stop: Stop) -> tuple[Fact, ...]:
    turn = session.turn
    open_calls = [
        ToolEnded(call.call.id, CUT_OFF if call.intended else NOT_RUN, True)
        for call in (turn.calls if turn else ())
        if call.result is None
    ]
    last_text = turn.last_text if turn else ""
    return (*open_calls, TurnEnded(stop.status, stop.reason, stop.result, last_text, stop.survivors))


_ABSORB: dict[type, Callable[[Session, Any], tuple[Fact, ...]]] = {
    ModelReplied: _absorb_reply,
    ToolReturned: _absorb_return,
    Submit: lambda _, event: (Submitted(event.result),),
    Stop: _absorb_stop,
    Admitted: lambda _, event: (Reserved(event.amount_nano),),
    Intend: _absorb_intend,
    Failed: _absorb_failure,
    Refuse: lambda _, event: (Unfit(event.text),),
    Restart: _absorb_restart,
}

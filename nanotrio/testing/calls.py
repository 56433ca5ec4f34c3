"""What a store says about tool calls: which were asked for, which were intended, and what each came to."""

from __future__ import annotations

import msgspec

from ..fact_form import decode_facts
from ..messages import ToolCall
from ..records import MailArrived, Replied, Spawned, ToolEnded, ToolIntended, TurnEnded, TurnStarted
from ..stores import Store
from ..turn import CUT_OFF, INTERRUPTED

__all__ = ["CallKey", "Calls", "is_unknown", "read_calls"]

CallKey = tuple[int, str]
"""An agent and the id of one of its calls."""


class Calls(msgspec.Struct):
    """The calls in a store. Counts and lists hold every such fact, so what was written twice shows."""

    asked: dict[CallKey, str] = {}
    """The name of the tool, for each call in a reply of the model."""
    intended: dict[CallKey, int] = {}
    """How often its intent was written."""
    joined: set[CallKey] = set()
    """Of these, calls that wait for a child and have no effect outside."""
    ended: dict[CallKey, list[str]] = {}
    """Its results."""
    failed: set[CallKey] = set()
    """Calls with a result that says it is an error."""
    letters: dict[int, int] = {}
    """How many texts each agent sent to others, by what lies on their chains."""
    in_turn: set[int] = set()
    """Agents with an open turn."""
    agents: dict[int, str] = {}
    """Names, by id."""
    started: bool = False
    """Whether a turn has begun."""

    def open_effects(self) -> set[CallKey]:
        """Calls that were intended and have no result: a crash fell between the two."""
        return set(self.intended) - set(self.ended) - self.joined

    def unknown(self) -> set[CallKey]:
        """Calls whose outcome the model is told is unknown."""
        return {key for key, results in self.ended.items() if any(map(is_unknown, results))}

    def unanswered(self) -> list[str]:
        """Return what is wrong with the results, in sentences: each call has one, unless its turn is still open."""
        found = [f"{key} has {len(results)} results" for key, results in self.ended.items() if len(results) != 1]
        found += [f"{key} has a result and was never asked for" for key in self.ended if key not in self.asked]
        found += [
            f"{name} {key} has no result, and the turn is over"
            for key, name in self.asked.items()
            if key not in self.ended and key[0] not in self.in_turn
        ]
        return found

    def changed_since(self, crash: Calls) -> list[str]:
        """Return which results that were durable at an earlier look are others now, in sentences."""
        return [
            f"{key} had the durable result {results}, and now has {self.ended.get(key)}"
            for key, results in crash.ended.items()
            if self.ended.get(key) != results
        ]

    def problems_after(self, crash: Calls) -> list[str]:
        """Return what is wrong with the store of a finished job, given the look at its crash; in sentences."""
        found = [f"{key} was dispatched {count} times" for key, count in self.intended.items() if count > 1]
        return [*found, *self.unanswered(), *self.changed_since(crash)]


def is_unknown(result: str) -> bool:
    """Whether a result says that nobody knows what happened."""
    return result in (INTERRUPTED, CUT_OFF)


async def read_calls(store: Store) -> Calls:
    """Read every record of a store; it need not be acquired. Checkpoints.

    Raises:
        RecordError: a record cannot be read by this version.
        StoreError: the store cannot be read.
    """
    calls = Calls()
    last = 0
    while records := await store.scan(last):
        for record in records:
            for fact in decode_facts(record.facts):
                _note(calls, record.agent, fact)
        last = records[-1].seq
    return calls


def _note(calls: Calls, agent: int, fact: object) -> None:
    match fact:
        case Spawned(name=name):
            calls.agents[agent] = name
        case MailArrived(kind="text", sender=sender) if sender:
            calls.letters[sender] = calls.letters.get(sender, 0) + 1
        case TurnStarted():
            calls.started = True
            calls.in_turn.add(agent)
        case TurnEnded():
            calls.in_turn.discard(agent)
        case Replied(parts=parts):
            calls.asked.update({(agent, part.id): part.name for part in parts if isinstance(part, ToolCall)})
        case ToolIntended(call_id=call_id, child=child):
            calls.intended[agent, call_id] = calls.intended.get((agent, call_id), 0) + 1
            if child:
                calls.joined.add((agent, call_id))
        case ToolEnded(call_id=call_id, content=content, is_error=is_error):
            calls.ended.setdefault((agent, call_id), []).append(content)
            if is_error:
                calls.failed.add((agent, call_id))
        case _:
            pass

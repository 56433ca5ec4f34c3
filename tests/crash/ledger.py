"""What a store says about effects: which were dispatched, which have a result, and what it was."""

from __future__ import annotations

import msgspec
import trio

from nanotrio.messages import ToolCall
from nanotrio.records import Replied, Spawned, ToolEnded, ToolIntended, TurnStarted, decode_facts
from nanotrio.stores.address import open_store

__all__ = ["CallKey", "Ledger", "is_unknown", "read_ledger"]

CallKey = tuple[int, str]
"""An agent and the id of one of its calls."""


class Ledger(msgspec.Struct):
    """The calls in a store. Lists hold every such fact, so what was written twice shows."""

    asked: dict[CallKey, str] = {}
    """The name of the tool, for each call in a reply of the model."""
    intended: dict[CallKey, int] = {}
    """How often its intent was written."""
    ended: dict[CallKey, list[str]] = {}
    """Its results."""
    agents: dict[int, str] = {}
    """Names, by id."""
    started: bool = False
    """Whether a turn has begun."""

    def open_effects(self) -> set[CallKey]:
        """Calls that were dispatched and have no result."""
        return set(self.intended) - set(self.ended)

    def unknown(self) -> set[CallKey]:
        """Calls whose outcome the model is told is unknown."""
        return {key for key, results in self.ended.items() if any(map(is_unknown, results))}

    def problems_after(self, crash: Ledger) -> list[str]:
        """What is wrong with this ledger, given the one at the crash; in sentences."""
        found = [f"{key} was dispatched {count} times" for key, count in self.intended.items() if count > 1]
        found += [f"{key} has {len(results)} results" for key, results in self.ended.items() if len(results) != 1]
        found += [f"{self.asked[key]} {key} has no result" for key in self.asked if key not in self.ended]
        found += [f"{key} has a result and was never asked for" for key in self.ended if key not in self.asked]
        for key, results in crash.ended.items():
            if self.ended.get(key) != results:
                found.append(f"{key} had the durable result {results}, and now has {self.ended.get(key)}")
        return found


def is_unknown(result: str) -> bool:
    """Whether a result says that nobody knows what happened."""
    return "interrupted" in result.lower() and "unknown" in result.lower()


def read_ledger(url: str) -> Ledger:
    """Read every record of a store, without owning it."""
    return trio.run(_read, url)


async def _read(url: str) -> Ledger:
    ledger = Ledger()
    store = await open_store(url, read_only=True)
    try:
        last = 0
        while records := await store.scan(last):
            for record in records:
                for fact in decode_facts(record.facts):
                    _note(ledger, record.agent, fact)
            last = records[-1].seq
    finally:
        await store.aclose()
    return ledger


def _note(ledger: Ledger, agent: int, fact: object) -> None:
    match fact:
        case Spawned(name=name):
            ledger.agents[agent] = name
        case TurnStarted():
            ledger.started = True
        case Replied(parts=parts):
            ledger.asked.update({(agent, part.id): part.name for part in parts if isinstance(part, ToolCall)})
        case ToolIntended(call_id=call_id):
            ledger.intended[agent, call_id] = ledger.intended.get((agent, call_id), 0) + 1
        case ToolEnded(call_id=call_id, content=content):
            ledger.ended.setdefault((agent, call_id), []).append(content)
        case _:
            pass

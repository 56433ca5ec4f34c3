"""Random lives of one session: inputs as a swarm gives them, in any order that can be, and what was recorded."""

from __future__ import annotations

import random

from nanotrio.fact_form import encode_facts
from nanotrio.limits import Limits
from nanotrio.messages import Part, StopReason, Text, ToolCall, Usage
from nanotrio.records import (
    ChildEnded,
    Closed,
    Fact,
    LimitsSet,
    MailArrived,
    MailReturned,
    MailTaken,
    Record,
    Replied,
    Settled,
    Spawned,
)
from nanotrio.session import Session
from nanotrio.turn import (
    Admitted,
    AskModel,
    EndTurn,
    Failed,
    Input,
    Intend,
    ModelReplied,
    Restart,
    Retry,
    RunTools,
    Stop,
    Submit,
    ToolReturned,
    absorb,
    advance,
)

LIMITS = Limits(max_steps=6, max_attempts=3, max_bad_calls=3, max_turns=40, max_tool_calls=30)
STOPS: tuple[StopReason, ...] = ("end", "tool_use", "max_tokens", "pause", "refusal")


class Life:
    """A session that lives by chance, and the records it made."""

    def __init__(self, seed: int, snapshot_chance: float = 0.0) -> None:
        self.chance = random.Random(seed)
        self.snapshot_chance = snapshot_chance
        self.session = Session(7)
        self.records: list[Record] = []
        self.calls: list[ToolCall] = []
        self.seq = 0
        self.at_us = 1_000_000
        self.record(Spawned(1, 1, 1, "child.7", 3), MailArrived("prompt", 1, "do it"))

    def record(self, *facts: Fact) -> None:
        """Make one record of ``facts``, as the swarm's burst does."""
        self.seq += self.chance.randint(1, 3)
        self.at_us += self.chance.randint(0, 5_000_000)
        prev = self.session.last_seq
        written: list[Fact] = []
        self.session.begin_record(self.seq, self.at_us)
        if prev and self.chance.random() < self.snapshot_chance:
            written.append(self.session.snapshot())
            self.session.apply_facts((written[0],))
        written += facts
        self.session.apply_facts(facts)
        self.records.append(Record(self.seq, prev, 7, self.at_us, encode_facts(written)))

    def take(self, event: Input) -> None:
        """Record what ``event`` makes true."""
        if facts := absorb(self.session, event):
            self.record(*facts)

    def run(self, rounds: int) -> None:
        """Live for so many rounds, then end the open turn."""
        for _ in range(rounds):
            self.disturb()
            decision = advance(self.session, self.session.limits or LIMITS)
            if decision.facts:
                self.record(*decision.facts)
            if decision.effect is not None:
                self.perform(decision.effect)
            elif self.session.status == "settling":
                self.record(Settled())
        if self.session.turn is not None:
            self.take(Stop("cancelled", "enough"))

    def disturb(self) -> None:
        """What may come from outside between any two steps."""
        chance = self.chance
        match chance.randrange(14):
            case 0 | 1 if self.session.status != "closed":
                kind = chance.choice(["prompt", "text", "steer", "warning", "returned"])
                self.record(MailArrived(kind, chance.randrange(3), f"{kind} {self.seq}", "other.2"))
            case 2:
                told = chance.random() < 0.2
                self.record(ChildEnded(9, "kid.9", 1, "failed", "broke", "", "half", Usage(1, 2, 3, 4), 50, 7, 1, told))
            case 3:
                self.take(Restart(frozenset(call.id for call in self.calls[-1:])))
            case 4 if chance.random() < 0.3:
                self.take(Stop(chance.choice(["cancelled", "deadline_exceeded"]), "stopped"))
            case 5 if self.session.unread:
                self.record(MailTaken((chance.choice(self.session.unread).seq,)))
            case 6 if chance.random() < 0.1:
                self.record(MailReturned(self.session.last_seq), Closed("closed"))
            case 9 if self.session.owes_return:
                self.record(MailReturned(self.session.last_seq))
            case 9 if chance.random() < 0.4 and self.session.turn is None and self.session.status != "closed":
                self.record(Closed("closed", owes_return=bool(self.session.unread)))
            case 7 if chance.random() < 0.2:
                self.record(LimitsSet(Limits(max_steps=6, budget_nano=chance.randrange(10**9))))
            case 8:
                self.take(ToolReturned("no such call", "stray"))

    def perform(self, effect: AskModel | RunTools | Retry | EndTurn) -> None:
        """Perform an effect, well or badly."""
        chance = self.chance
        match effect:
            case AskModel() | Retry():
                self.take(Admitted(chance.randrange(10**6)))
                if chance.random() < 0.2:
                    kind = chance.choice(["transient", "rate_limited", "auth", "cancelled"])
                    self.take(Failed(kind, "no", Usage(1), chance.choice([None, 0, 5]), chance.randrange(9)))
                elif chance.random() > 0.05:  # else the process dies while the call is in flight
                    self.take(ModelReplied(self.reply()))
            case RunTools(calls):
                self.answer(calls)
            case EndTurn(status, reason, result):
                self.take(Stop(status, reason, result))

    def reply(self) -> Replied:
        chance = self.chance
        parts: list[Part] = [Text("thinking aloud")] if chance.random() < 0.7 else []
        for number in range(chance.choice([0, 0, 1, 2, 3])):
            problem = "not JSON" if chance.random() < 0.2 else ""
            parts.append(ToolCall(chance.choice(["", "a", f"{self.seq}-{number}"]), "read", "{}", problem))
        stop = "tool_use" if isinstance(parts[-1] if parts else None, ToolCall) else chance.choice(STOPS)
        cost = chance.choice([None, 100])
        return Replied("scripted/test", tuple(parts), stop, Usage(10, 20, 30, 40), cost)

    def answer(self, calls: tuple[ToolCall, ...]) -> None:
        chance = self.chance
        self.calls += calls
        if chance.random() < 0.6:
            self.take(Intend(tuple(call.id for call in calls), chance.choice([0, 0, 9])))
        if chance.random() < 0.1:
            self.take(Submit('"done"'))
        order = list(calls)
        chance.shuffle(order)
        for call in order:
            if chance.random() < 0.85:
                mistake = "read: bad arguments" if chance.random() < 0.3 else ""
                self.take(ToolReturned(call.id, f"result of {call.id}", bool(mistake), mistake))
            if chance.random() < 0.1:
                self.take(ToolReturned(call.id, "a second result"))


def replayed(records: list[Record]) -> Session:
    """Return the session that ``records`` make."""
    session = Session(7)
    for record in records:
        session.apply(record)
    return session

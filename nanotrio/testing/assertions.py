"""What holds of a store after any crash, and again once what was left was resumed. Each raises AssertionError.

All read the store and change nothing; it need not be acquired (``open_store(url, read_only=True)``). All checkpoint.

They hold of a pruned store too, whose dropped records are empty ones. Only what was there before cannot be seen in it:
asked about that, they raise ``UsageError``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from ..errors import UsageError
from ..fact_form import decode_facts, encode_facts
from ..records import ChildEnded, Head, Record, Settled, Spawned, TurnEnded, TurnStarted
from ..stores import Store
from ..swarm.entering import load_sessions, read_profiles
from ..swarm.recovery import tail_heads
from .calls import CallKey, Calls, read_calls
from .effects import EffectsLog, read_effects

__all__ = [
    "assert_each_call_answered",
    "assert_groups_whole",
    "assert_no_effect_twice",
    "assert_prefix",
    "assert_replays",
    "assert_results_kept",
]

_NOTHING = encode_facts(())
_SHOWN = 10
_SLICE = 256


async def assert_prefix(store: Store, acknowledged: int = 0) -> None:
    """The log is a prefix of the one order: numbered without a gap, each record after the one it follows.

    Every record up to ``acknowledged``, the greatest number that was acknowledged as durable, is there; and each lies
    on the chain of its agent, which heads and tail lead to. What the records hold is not looked at.

    Raises:
        UsageError: records up to ``acknowledged`` were pruned, so nobody can tell whether they were there.
    """
    last, problems = 0, []
    newest: dict[int, int] = {}
    while records := await store.scan(last):
        for record in records:
            problems += _misplaced(record, last, newest)
            last = record.seq
            if last <= acknowledged and _is_pruned(record):
                raise _pruned(f"whether record {last} was durable when it was acknowledged")
        if problems:
            break
    if last < acknowledged:
        problems.append(f"record {acknowledged} was acknowledged as durable, and the log ends at {last}")
    heads_seq = (await store.statistics()).heads_seq
    if heads_seq > last:
        problems.append(f"heads are said to be true up to record {heads_seq}, and the log ends at {last}")
    for head in await _all_heads(store):
        if head.last_seq > newest.get(head.agent, 0) or head.last_seq < newest[head.agent] <= heads_seq:
            problems.append(
                f"the head of {head.name} names record {head.last_seq}, its last is {newest.get(head.agent)}"
            )
    _raise("the log is no prefix", problems)


def _misplaced(record: Record, last: int, newest: dict[int, int]) -> list[str]:
    found = []
    if record.seq != last + 1:
        found.append(f"record {record.seq} follows record {last}")
    if record.agent:
        known = newest.get(record.agent)
        if record.prev >= record.seq or (known is not None and record.prev != known):
            found.append(f"record {record.seq} of agent {record.agent} follows {record.prev}, not its last, {known}")
        newest[record.agent] = record.seq
    return found


async def assert_groups_whole(store: Store) -> None:
    """What was recorded together is there together.

    An agent that settled has told its parent; a text and the result of the call that sent it have not parted; every
    parent of an agent is there before it.
    """
    agents: dict[int, tuple[int, str]] = {}
    told: set[tuple[int, int]] = set()
    turns: dict[int, int] = {}
    ended: dict[int, int] = {}
    owed: list[tuple[int, int, int]] = []
    problems = []
    last = 0
    while records := await store.scan(last):
        for record in records:
            for fact in decode_facts(record.facts):
                match fact:
                    case Spawned(parent=parent, name=name):
                        agents[record.agent] = parent, name
                        if parent and parent not in agents:
                            problems.append(f"{name} is there, and its parent {parent} is not")
                    case TurnStarted(turn=turn):
                        turns[record.agent] = turn
                    case TurnEnded() if record.agent in turns:
                        ended[record.agent] = turns[record.agent]
                    case Settled() if record.agent in ended and agents[record.agent][0]:
                        owed.append((record.agent, ended[record.agent], record.seq))
                    case ChildEnded(child=child, turn=turn):  # within the group the parent's record may be the first
                        told.add((child, turn))
                    case _:
                        pass
        last = records[-1].seq
    problems += [
        f"{agents[agent][1]} settled in record {seq}, and its parent was not told"
        for agent, turn, seq in owed
        if (agent, turn) not in told
    ]
    problems += _parted_letters(await read_calls(store))
    _raise("groups were torn", problems)


def _parted_letters(calls: Calls) -> list[str]:
    sent: dict[int, int] = {}
    for key, name in calls.asked.items():
        if name == "send_message" and key in calls.ended and key not in calls.failed:
            sent[key[0]] = sent.get(key[0], 0) + 1
    return [
        f"{calls.agents.get(agent, agent)} has {sent.get(agent, 0)} results of sending, and {letters} texts are there"
        for agent, letters in calls.letters.items()
        if letters != sent.get(agent, 0)
    ]


async def assert_each_call_answered(store: Store) -> None:
    """Every call of a model has exactly one result; in a turn that is still open, at most one."""
    _raise("calls are not answered once each", (await read_calls(store)).unanswered())


async def assert_no_effect_twice(
    store: Store, effects: str | Path | EffectsLog, *, repeatable: Collection[str] = ()
) -> None:
    """No effect was had twice untold; ``effects`` is what ``log_effects`` wrote.

    A call began once at most, and never without its intent in the store. One that began and has a result in the store
    ended, unless the model was told that the outcome is unknown. Tools named in ``repeatable`` may begin again: they
    were declared idempotent.

    Raises:
        UsageError: a call that began is not in the store, from which records were pruned.
    """
    log = effects if isinstance(effects, EffectsLog) else read_effects(effects)
    calls = await read_calls(store)
    problems = []
    unknown = calls.unknown()
    problems += [
        f"{calls.asked.get(key)} {key} has a result in the store, and its run did not end"
        for key in log.begun.keys() & calls.ended.keys()
        if key not in log.ended and key not in unknown and key not in calls.failed
    ]
    for key, times in log.begun.items():
        name = calls.asked.get(key, "an unknown tool")
        if key not in calls.asked and await _has_pruned(store):
            raise _pruned(f"whether call {key} was had twice")
        if times > 1 and name not in repeatable:
            problems.append(f"{name} {key} was run {times} times")
        if key not in calls.intended:
            problems.append(f"{name} {key} was run, and its intent is not in the store")
    problems += [f"{name} was intended {count} times" for name, count in _intended_twice(calls, repeatable)]
    for key in unknown:
        if key not in calls.intended:
            problems.append(f"{calls.asked.get(key)} {key} is told to be unknown, and was never begun")
    _raise("an effect was had twice, or without its intent", problems)


async def _has_pruned(store: Store) -> bool:
    last = 0
    while records := await store.scan(last):
        if any(map(_is_pruned, records)):
            return True
        last = records[-1].seq
    return False


def _is_pruned(record: Record) -> bool:
    return not record.agent and record.facts == _NOTHING


def _pruned(what: str) -> UsageError:
    return UsageError(f"this store was pruned, so it does not say {what}; look at the one it was made from")


def _intended_twice(calls: Calls, repeatable: Collection[str]) -> Iterable[tuple[CallKey, int]]:
    return [
        (key, count) for key, count in calls.intended.items() if count > 1 and calls.asked.get(key) not in repeatable
    ]


async def assert_results_kept(store: Store, crash: Calls) -> None:
    """Every result that was durable at the crash, when ``crash`` was read, is as it was: none became unknown.

    Raises:
        UsageError: a call of then is not in the store, from which records were pruned.
    """
    calls = await read_calls(store)
    if crash.asked.keys() - calls.asked.keys() and await _has_pruned(store):
        raise _pruned("whether every result is as it was")
    _raise("durable results have changed", calls.changed_since(crash))


async def assert_replays(store: Store) -> None:
    """Every head is what the records of its agent make, and every agent has one where heads are said to be true."""
    heads = await _all_heads(store)
    tail, _ = await tail_heads(store, (await store.statistics()).heads_seq)
    problems = []
    for start in range(0, len(heads), _SLICE):
        some = heads[start : start + _SLICE]
        sessions = await load_sessions(store, [head.agent for head in some], [(head.last_seq, 0) for head in some])
        profiles = await read_profiles(store, {session.profile for session in sessions})
        for head, session in zip(some, sessions, strict=True):
            profile = profiles.get(session.profile)
            counts = (head.children, head.descendants, head.counted_agent)
            made = session.head(profile.model if profile else "", *counts)
            if made != head:
                problems.append(f"the head of {head.name} is {head}, and its records make {made}")
    known = {head.agent for head in heads} | set(tail.last_seq)
    last = 0
    while records := await store.scan(last):
        problems += [
            f"agent {record.agent} has no head" for record in records if record.agent and record.agent not in known
        ]
        last = records[-1].seq
    _raise("heads are not what the records make", problems)


async def _all_heads(store: Store) -> list[Head]:
    heads: list[Head] = []
    while page := await store.heads(after=heads[-1].agent if heads else 0):
        heads += page
    return heads


def _raise(what: str, problems: list[str]) -> None:
    if problems:
        more = f" ... and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise AssertionError(f"{what}: {'; '.join(problems[:_SHOWN])}{more}")

"""The demo's accounts: what its store says after the end, held against what was planned and what lies outside.

Everything is read back from the store and the file system; nothing is taken from what the acts reported meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from nanotrio import AgentView, read_store
from nanotrio.agent_name import stem_of
from nanotrio.messages import ToolCall, ToolResult
from nanotrio.session import Session
from nanotrio.stores import open_store
from nanotrio.swarm import load_sessions
from nanotrio.turn import INTERRUPTED

from .demo_job import REGISTER, Plan, job_of, page_file
from .folded_tree import status_of

__all__ = ["Accounts", "Interim", "read_accounts", "read_interim"]

_SLICE = 256


class Interim(msgspec.Struct, frozen=True):
    """What the store held after the kill."""

    ended: dict[int, tuple[int, str, int]]
    """Turn, outcome and cost of those that had ended."""
    at_work: int
    """In the middle of a turn."""
    not_begun: int


class Accounts(msgspec.Struct, frozen=True):
    """What came of it."""

    agents: int
    completed: int
    refused: int
    kept: int
    """Agents that had ended before the kill and did nothing after it."""
    woken: int
    """Agents that had ended before the kill and were woken by mail after it."""
    told: tuple[AgentView, ...]
    """Agents that were told of a command whose outcome nobody knows."""
    capped: AgentView | None
    first_refused: AgentView | None
    """A writer who was refused."""
    refusal: str
    """What that one was told."""
    files: int
    signatures: int
    mails: int
    cost_nano: int
    uncertain_nano: int
    problems: tuple[str, ...]
    """What does not add up, a sentence each; empty when all does."""


async def read_interim(url: str) -> Interim:
    """Read a store whose owner was killed."""
    views = await read_store(url)
    ended = {view.id: _standing(view) for view in views if _has_ended(view)}
    begun = sum(view.turn > 0 for view in views if view.id not in ended)
    return Interim(ended, begun, len(views) - len(ended) - begun)


async def read_accounts(url: str, plan: Plan, agents: int, directory: Path, interim: Interim) -> Accounts:
    """Read a store after the end, and what its agents left outside."""
    views = await read_store(url)
    sessions = await _read_sessions(url, [view.id for view in views])
    root = next((view for view in views if not view.parent), None)
    capped = next((view for view in views if view.name.startswith(f"{plan.capped.name}.")), None)
    after = {view.id: _standing(view) for view in views}
    problems = _count_problems(views, agents, plan)
    problems += _refusal_problems(views, sessions, capped)
    problems += [
        f"agent {agent} had ended as {standing[1]} before the kill and is {after[agent][1]} now"
        for agent, standing in interim.ended.items()
        if after[agent][1] != standing[1]
    ]
    outside, files, signatures = _outside(views, directory)
    kept = sum(after[agent] == standing for agent, standing in interim.ended.items())
    refused = [view for view in views if view.outcome == "budget_exceeded"]
    first_refused = next((view for view in refused if view is not capped), None)
    ended = sessions[first_refused.id].ended if first_refused else None
    return Accounts(
        agents=len(views),
        completed=sum(view.outcome == "completed" for view in views),
        refused=len(refused),
        kept=kept,
        woken=len(interim.ended) - kept,
        told=tuple(view for view in views if _was_told(sessions[view.id])),
        capped=capped,
        first_refused=first_refused,
        refusal=ended.fact.reason if ended else "",
        files=files,
        signatures=signatures,
        mails=sum(_count_calls(session, "send_message") for session in sessions.values()),
        cost_nano=root.spent_nano if root else 0,
        uncertain_nano=root.uncertain_nano if root else 0,
        problems=(*problems, *outside),
    )


def _standing(view: AgentView) -> tuple[int, str, int]:
    return (view.turn, status_of(view), view.spent_nano)


def _has_ended(view: AgentView) -> bool:
    return view.outcome is not None and view.status in ("idle", "closed")


async def _read_sessions(url: str, agents: Sequence[int]) -> dict[int, Session]:
    found: dict[int, Session] = {}
    store = await open_store(url, read_only=True)
    try:
        for start in range(0, len(agents), _SLICE):
            heads = await store.heads(agents=agents[start : start + _SLICE])
            ends = [(head.last_seq, head.snapshot_seq) for head in heads]
            sessions = await load_sessions(store, [head.agent for head in heads], ends)
            found.update({session.agent: session for session in sessions})
    finally:
        await store.aclose()
    return found


def _count_problems(views: Sequence[AgentView], agents: int, plan: Plan) -> list[str]:
    problems = []
    if len(views) != agents:
        problems.append(f"{agents:,} agents were asked for and {len(views):,} are in the store")
    open_ = [view.name for view in views if not _has_ended(view)]
    if open_:
        problems.append(f"{len(open_):,} agents have not ended, {open_[0]} among them")
    least = agents - plan.capped.pages - 1
    completed = sum(view.outcome == "completed" for view in views)
    if completed < least:
        problems.append(f"{completed:,} agents completed, and all but those below {plan.capped.name} should: {least:,}")
    return problems


def _refusal_problems(views: Sequence[AgentView], sessions: dict[int, Session], capped: AgentView | None) -> list[str]:
    if capped is None:
        return ["the month with the budget was never begun"]
    problems = []
    refused = [view for view in views if view.outcome == "budget_exceeded"]
    for view in refused:
        ended = sessions[view.id].ended
        if capped.id not in (view.id, view.parent):
            problems.append(f"{view.name} was refused, and is not below {capped.name}")
        elif ended is None or capped.name not in ended.fact.reason:
            problems.append(f"{view.name} was refused without being told that the budget of {capped.name} held")
    if capped.outcome != "budget_exceeded" or len(refused) < 2:
        problems.append(f"the budget of {capped.name} refused nothing")
    problems += [
        f"{view.name} ended as {view.outcome}"
        for view in views
        if view.outcome not in ("completed", "budget_exceeded", None)
    ]
    return problems


def _outside(views: Sequence[AgentView], directory: Path) -> tuple[list[str], int, int]:
    """Hold files and signatures against those who should have left them; return problems and both counts."""
    jobs = {stem_of(view.name): job_of(view.task) for view in views if view.outcome == "completed"}
    register = directory / REGISTER
    signatures = Counter(register.read_text().split()) if register.exists() else Counter[str]()
    files = {name for name, job in jobs.items() if job == "file"}
    problems = [f"the page {name} was never written" for name in files if not (directory / page_file(name)).exists()]
    for name, job in jobs.items():
        if job == "signature" and signatures[name] != 1:
            problems.append(f"{name} stands {signatures[name]} times in the register instead of once")
    return problems, len(files), signatures.total()


def _was_told(session: Session) -> bool:
    return any(
        isinstance(part, ToolResult) and part.content == INTERRUPTED
        for message in session.messages
        for part in message.parts
    )


def _count_calls(session: Session, name: str) -> int:
    return sum(
        isinstance(part, ToolCall) and part.name == name for message in session.messages for part in message.parts
    )

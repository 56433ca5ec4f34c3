"""Agents as values: of a node in memory, or of a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from ..messages import Usage
from ..records import Head, Profile
from .node import Node
from .outcome import AgentView

__all__ = ["view_of", "view_of_head", "with_descendants"]


def view_of(node: Node) -> AgentView:
    """Return a node as a value."""
    session = node.session
    status: str = session.status
    _, spent, uncertain, _ = session.report()
    if node.sealed == "interrupted" and session.is_unfinished:
        status = "interrupted"
    return AgentView(
        id=node.id,
        name=node.name,
        parent=session.parent,
        root=session.root,
        depth=session.depth,
        status=status,
        model=node.profile.model,
        turn=session.turns,
        outcome=session.ended.fact.status if session.ended else None,
        usage=session.usage,
        spent_nano=session.spent_nano,
        uncertain_nano=session.uncertain_nano,
        unpriced=session.unpriced,
        waiting_for=node.waiting_for or ("a slot" if node.is_queued else ""),
        task=session.task,
        uuid=session.uuid,
        created_us=session.created_us,
        updated_us=session.updated_us,
        directory=node.profile.directory,
        permission_mode=node.profile.permission_mode,
        tools=node.profile.tools,
        unreported_nano=spent + uncertain,
    )


def view_of_head(head: Head, *, owned: bool, depth: int = 0, profile: Profile | None = None) -> AgentView:
    """Return a head as a value; an unfinished agent of a store that nobody owns is ``interrupted``."""
    return AgentView(
        id=head.agent,
        name=head.name,
        parent=head.parent,
        root=head.root,
        depth=depth,
        status=head.status if owned or not head.unfinished else "interrupted",
        model=head.model,
        turn=head.turn,
        outcome=head.outcome,
        usage=head.usage,
        spent_nano=head.spent_nano,
        uncertain_nano=head.uncertain_nano,
        unpriced=head.unpriced,
        waiting_for="",
        task=head.task,
        uuid=head.uuid,
        created_us=head.created_us,
        updated_us=head.updated_us,
        directory=profile.directory if profile else "",
        permission_mode=profile.permission_mode if profile else "",
        tools=profile.tools if profile else (),
        unreported_nano=head.unreported_nano,
    )


def with_descendants(views: Sequence[AgentView]) -> list[AgentView]:
    """Return ``views`` with what descendants among them used and their parents were not told of yet.

    Parents are told once all of a turn is over, so this is what agents at work have used. Of one that has told of
    former turns the money alone is known. Between an agent and its root others may be missing from ``views``.
    """
    found = {view.id: view for view in views}
    more: dict[int, _Used] = {}
    for view in views:
        used = _unreported(view)
        above = view
        while used is not None and above.parent:
            higher = found.get(above.parent) or found.get(above.root)
            if higher is None or higher is above:
                break
            above = higher
            more[above.id] = _sum(more.get(above.id, _NOTHING), used)
    return [_grown(view, more[view.id]) if view.id in more else view for view in views]


_Used: TypeAlias = tuple[Usage, int, int, int]
"""Tokens, spent, uncertain, unpriced."""
_NOTHING: _Used = (Usage(), 0, 0, 0)


def _unreported(view: AgentView) -> _Used | None:
    if view.outcome is None or (view.unreported_nano and view.unreported_nano == view.spent_nano + view.uncertain_nano):
        used = (view.usage, view.spent_nano, view.uncertain_nano, view.unpriced)  # it never told anything
        return None if used == _NOTHING else used
    return (Usage(), view.unreported_nano, 0, 0) if view.unreported_nano else None


def _sum(one: _Used, two: _Used) -> _Used:
    return one[0] + two[0], one[1] + two[1], one[2] + two[2], one[3] + two[3]


def _grown(view: AgentView, used: _Used) -> AgentView:
    usage, spent, uncertain, unpriced = _sum((view.usage, view.spent_nano, view.uncertain_nano, view.unpriced), used)
    return msgspec.structs.replace(view, usage=usage, spent_nano=spent, uncertain_nano=uncertain, unpriced=unpriced)

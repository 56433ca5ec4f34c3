"""Agents as values: of a node in memory, or of a head."""

from __future__ import annotations

from ..records import Head, Profile
from .node import Node
from .outcome import AgentView

__all__ = ["view_of", "view_of_head"]


def view_of(node: Node) -> AgentView:
    """Return a node as a value."""
    session = node.session
    status: str = session.status
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
    )

"""Mail that waits in a session, and what the model reads of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import msgspec

__all__ = ["NO_MAIL", "Mail", "count_letters", "render_mails", "task_of"]

_MAX_NOTICE_CHARACTERS = 4_000
_MAX_TASK_CHARACTERS = 80


class Mail(msgspec.Struct, frozen=True, gc=False):
    """A mail that waits; ``seq`` is its id. ``kind`` is a ``MailKind``, or ``"child"`` for a child's end."""

    seq: int
    kind: str
    sender: int
    sender_name: str
    text: str

    @property
    def is_told_between_steps(self) -> bool:
        """Whether a running turn reads it before its next model call."""
        return self.kind not in ("prompt", "text")

    @property
    def begins_turn(self) -> bool:
        """Whether an agent without a turn begins one for it; a warning waits, or it would spend what it warns about."""
        return self.kind != "warning"

    @property
    def goes_back(self) -> bool:
        """Whether an agent wrote it, which is told where nobody reads it."""
        return self.sender != 0 and self.kind not in ("child", "returned")


NO_MAIL = cast("list[Mail]", ())
"""An empty box, the same for all: most sessions have one for most of their life. Never appended to."""


def count_letters(mails: Iterable[Mail]) -> int:
    """Count what others wrote; the ends of children are no letters, and their number is bounded by other means."""
    return sum([mail.kind != "child" for mail in mails])


def render_mails(mails: Iterable[Mail], max_lines: int = 50) -> str:
    """Return what the model reads of ``mails``: a prompt as it is, all else with a word on where it comes from.

    Texts are whole, since nothing else shows them. Ends of children are cut, and no more than ``max_lines`` are told.
    """
    lines: list[str] = []
    told = left = 0
    for mail in mails:
        text = mail.text
        if mail.kind == "prompt":
            lines.append(text)
            continue
        if mail.kind == "child":
            if told >= max_lines:
                left += 1
                continue
            told += 1
            if len(text) > _MAX_NOTICE_CHARACTERS:
                text = f"{text[:_MAX_NOTICE_CHARACTERS]} [cut; {len(text)} characters in all: wait_agents]"
        match mail.kind:
            case "steer" if not mail.sender:
                lines.append(text)
            case "child":
                lines.append(f"[{mail.sender_name} {text}]")
            case "text" | "steer":
                lines.append(f"[message from {mail.sender_name or 'outside'}] {text}")
            case _:
                lines.append(f"[{mail.kind}] {text}")
    if left:
        lines.append(f"and {left} more: list_agents")
    return "\n".join(lines)


def task_of(prompt: str) -> str:
    """Return the beginning of a prompt on one line, as it is shown for the agent's task."""
    start = prompt[:_MAX_TASK_CHARACTERS]
    if not start.isprintable() or "  " in start or start.startswith(" "):  # other blanks than single spaces
        start = " ".join(prompt.lstrip()[: _MAX_TASK_CHARACTERS * 2].split())[:_MAX_TASK_CHARACTERS]
    return start.rstrip()

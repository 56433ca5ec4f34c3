"""Whether a call may run: pure rules over modes and names.

Each agent of a lineage has a mode and names; a call is judged by each, and the strictest verdict holds
(``strictest``), so that no child may do what an ancestor may not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal, TypeAlias, get_args

import msgspec

from ..errors import UsageError
from ..given import a_text, each_of
from .aliases import tool_name

__all__ = [
    "AGENT_TOOLS",
    "Allow",
    "Ask",
    "Deny",
    "PermissionMode",
    "Verdict",
    "judge",
    "permission_mode",
    "rule_names",
    "strictest",
    "tighter",
    "without_person",
]

PermissionMode: TypeAlias = Literal["plan", "manual", "acceptEdits", "bypassPermissions"]
"""From the tightest to the loosest."""

AGENT_TOOLS = frozenset(
    {
        "spawn_agent",
        "spawn_agents",
        "send_message",
        "wait_agents",
        "list_agents",
        "cancel_agent",
        "submit_result",
    }
)
"""Tools of the tree itself: what their agents do is judged where they do it, so these run in every mode."""

_EDITS = frozenset({"write", "edit"})
_ORDER: tuple[PermissionMode, ...] = get_args(PermissionMode)


class Allow(msgspec.Struct, frozen=True, gc=False):
    """It may run."""


class Ask(msgspec.Struct, frozen=True, gc=False):
    """A person decides; ``text`` says why they are asked."""

    text: str


class Deny(msgspec.Struct, frozen=True, gc=False):
    """It may not run; ``text`` is for the model."""

    text: str


Verdict: TypeAlias = Allow | Ask | Deny
_ALLOW = Allow()


def permission_mode(text: str) -> PermissionMode:
    """Return ``text`` as a mode.

    Raises:
        UsageError: there is no such mode.
    """
    for mode in _ORDER:
        if mode == text:
            return mode
    raise UsageError(f"unknown permission mode {text!r}; there are {', '.join(_ORDER)}")


def rule_names(texts: Iterable[str], what: str) -> tuple[str, ...]:
    """Return the tool names in ``texts``, which somebody gave as ``what``, each as it is called here.

    A text may hold several names, parted by commas or spaces.

    Raises:
        UsageError: it is no list of texts; or a rule has a pattern (``Bash(git:*)``), which would be taken for more or
            less than it says.
    """
    names: dict[str, None] = {}
    for text in each_of(texts, what):
        if "(" in a_text(text, f"a name in {what}"):
            raise UsageError(f"the rule {text!r} has a pattern; only whole tools can be allowed or denied, by name")
        for name in text.replace(",", " ").split():
            names[tool_name(name)] = None
    return tuple(names)


def tighter(first: PermissionMode, second: PermissionMode) -> PermissionMode:
    """Return the mode that permits less."""
    return min(first, second, key=_ORDER.index)


def judge(
    mode: PermissionMode,
    name: str,
    *,
    effect: bool,
    allowed: Collection[str] = (),
    denied: Collection[str] = (),
) -> Verdict:
    """Judge a call of the tool ``name`` by one agent's rules.

    ``denied`` holds in every mode. ``allowed`` is what need not be asked for; it does not open ``plan``.
    """
    if name in denied:
        return Deny(f"{name} is denied to this agent by its rules; do without it, or say what you need it for")
    if name in AGENT_TOOLS or not effect or mode == "bypassPermissions":
        return _ALLOW
    if mode == "plan":
        return Deny(f"{name} may change something, and in plan mode nothing is changed; describe the change instead")
    if name in allowed or (mode == "acceptEdits" and name in _EDITS):
        return _ALLOW
    return Ask(f"{name} may change something; mode {mode} asks before it runs")


def strictest(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the first verdict of the strictest kind; none at all is ``Allow``."""
    strict: Verdict = _ALLOW
    for verdict in verdicts:
        if isinstance(verdict, Deny):
            return verdict
        if isinstance(verdict, Ask) and isinstance(strict, Allow):
            strict = verdict
    return strict


def without_person(verdict: Verdict) -> Allow | Deny:
    """Return what a verdict comes to where nobody can be asked."""
    if isinstance(verdict, Ask):
        return Deny(
            f"{verdict.text}, and nobody is there to ask, so it is denied; do without it, or end and say that a "
            "person has to allow it"
        )
    return verdict

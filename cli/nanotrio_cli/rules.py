"""What tools may do in this run: the session's own rules, and those of the command line over them.

A session keeps the rules it began with; they stand in its profile and bind its children. A later run may loosen them
for itself, by answering for the person who would be asked. It cannot tighten them.
"""

from __future__ import annotations

import msgspec

from nanotrio import Approval
from nanotrio.tools import TREE_TOOLS, Allow, judge, permission_mode, rule_names, standard_tools, tighter, tool_name

from .arguments import RunOptions
from .exits import CommandError, CommandLineError
from .map_arguments import MapRunOptions
from .opening import Place

__all__ = ["Rules", "rules_of"]


class Rules(msgspec.Struct, frozen=True):
    """Mode and names of one run."""

    mode: str
    allowed: tuple[str, ...]
    denied: tuple[str, ...]

    def allow(self, approval: Approval) -> bool:
        """Whether the command line has answered already; only calls with an effect are asked about."""
        verdict = judge(
            permission_mode(self.mode), approval.call.name, effect=True, allowed=self.allowed, denied=self.denied
        )
        return isinstance(verdict, Allow)


def rules_of(options: RunOptions | MapRunOptions, place: Place) -> Rules:
    """Return the run's rules.

    Raises:
        CommandError: a name is no tool.
        CommandLineError: a session that goes on would be tightened.
    """
    known = {each.spec.name for each in (*standard_tools(), *TREE_TOOLS)}
    for name in (*options.allowed_tools, *options.denied_tools):
        if tool_name(name) not in known:
            raise CommandError(f"there is no tool {name!r}; there are {', '.join(sorted(known))}")
    stored = place.found.view.permission_mode if place.found is not None else ""
    mode = options.permission_mode or stored or "manual"
    if stored and options.denied_tools:
        raise CommandLineError("--disallowedTools goes with a new session: one that goes on keeps its rules")
    if (
        stored
        and mode != stored
        and (stored == "plan" or tighter(permission_mode(mode), permission_mode(stored)) == mode)
    ):
        raise CommandLineError(
            f"this session began in permission mode {stored}, which {mode} cannot change; begin a new one for it"
        )
    return Rules(
        mode, rule_names(options.allowed_tools, "--allowedTools"), rule_names(options.denied_tools, "--disallowedTools")
    )

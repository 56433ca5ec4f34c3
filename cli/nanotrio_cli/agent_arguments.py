"""The flags of every command that runs agents: their system prompt, what they may do, and the store's owner."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from .exits import CommandLineError

__all__ = ["add_agent_flags", "agent_values", "argument_text", "refuse_two_modes"]

_MODES = {
    "manual": "manual",
    "default": "manual",
    "acceptEdits": "acceptEdits",
    "plan": "plan",
    "bypassPermissions": "bypassPermissions",
}


def add_agent_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add = parser.add_argument
    add("--system-prompt", metavar="TEXT", help="instead of the built-in one")
    add("--append-system-prompt", metavar="TEXT", help="added to the system prompt")
    add("--permission-mode", type=_mode, metavar="MODE", help="manual, acceptEdits, plan or bypassPermissions")
    add("--dangerously-skip-permissions", action="store_true", help="--permission-mode bypassPermissions")
    add("--allowedTools", "--allowed-tools", action="append", default=[], metavar="NAMES", help="allowed unasked")
    add("--disallowedTools", "--disallowed-tools", action="append", default=[], metavar="NAMES", help="never allowed")
    add("--takeover", action="store_true", help="take the store from the process that owns it")


def agent_values(found: argparse.Namespace) -> dict[str, Any]:
    """Return what the flags said, by the names that options have.

    Raises:
        CommandLineError: a value that cannot be used.
    """
    return {
        "system_prompt": found.system_prompt and argument_text(found.system_prompt),
        "append_system_prompt": found.append_system_prompt and argument_text(found.append_system_prompt),
        "permission_mode": "bypassPermissions" if found.dangerously_skip_permissions else found.permission_mode,
        "allowed_tools": _names(found.allowedTools, "--allowedTools"),
        "denied_tools": _names(found.disallowedTools, "--disallowedTools"),
        "takeover": found.takeover,
    }


def refuse_two_modes(found: argparse.Namespace) -> None:
    """Refuse two flags that say different things of one.

    Raises:
        CommandLineError: they do.
    """
    if found.dangerously_skip_permissions and found.permission_mode not in (None, "bypassPermissions"):
        raise CommandLineError("--dangerously-skip-permissions and --permission-mode contradict each other")


def argument_text(argument: str) -> str:
    """Turn an argument into text that every store and wire takes: bytes that are not UTF-8 become U+FFFD."""
    return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _mode(text: str) -> str:
    if text not in _MODES:
        raise argparse.ArgumentTypeError(f"{text!r} is none of manual, acceptEdits, plan, bypassPermissions")
    return _MODES[text]


def _names(values: Sequence[str], flag: str) -> tuple[str, ...]:
    """Split ``"bash, read Edit"`` as Claude Code does; rules in parentheses come later."""
    names: list[str] = []
    for value in values:
        names.extend(name for name in re.split(r"[,\s]+(?![^(]*\))", value.strip()) if name)
    for name in names:
        if "(" in name:
            raise CommandLineError(f"{flag}: rules such as {name!r} are not in this version; give the tool's name")
    if values and not names:
        raise CommandLineError(f"{flag}: the value is empty; give names of tools, separated by commas")
    return tuple(names)

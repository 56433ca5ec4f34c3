"""Names that models, rules and agent files written for other agents use, and what they are called here.

The one table of them. Tool names are Claude Code's; argument names are those that models fall back on because they
saw them in training.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["ARGUMENTS", "TOOLS", "argument_name", "tool_name"]

TOOLS = {
    "Bash": "bash",
    "Read": "read",
    "Write": "write",
    "Edit": "edit",
    "Grep": "grep",
    "Glob": "glob",
    "LS": "ls",
    "Task": "spawn_agent",
    "Agent": "spawn_agent",
    "SendMessage": "send_message",
}

ARGUMENTS = {
    "file_path": "path",
    "filePath": "path",
    "filepath": "path",
    "filename": "path",
    "file": "path",
    "cmd": "command",
    "script": "command",
    "timeout_ms": "timeout",
    "runInBackground": "run_in_background",
    "background": "run_in_background",
    "old_str": "old_string",
    "oldString": "old_string",
    "new_str": "new_string",
    "newString": "new_string",
    "replaceAll": "replace_all",
    "contents": "content",
    "file_text": "content",
    "text": "content",
}


def tool_name(name: str) -> str:
    """Return what the tool is called here; a name that is no alias is returned as it is."""
    return TOOLS.get(name, name)


def argument_name(name: str, parameters: Collection[str]) -> str:
    """Return the parameter that ``name`` means, or ``name`` itself where it means none of them."""
    if name in parameters:
        return name
    alias = ARGUMENTS.get(name, name)
    return alias if alias in parameters else name

"""Tools: what a model may call, and what they stand on."""

from __future__ import annotations

from .agents import SPAWNING, TREE_TOOLS, AgentAnswer, ChildSpec, EndTree, Tree, WaitFor, check_seconds
from .aliases import argument_name, tool_name
from .edit import edit
from .files import read, write
from .function import tool
from .output import fit_output
from .permissions import (
    AGENT_TOOLS,
    Allow,
    Ask,
    Deny,
    PermissionMode,
    Verdict,
    judge,
    permission_mode,
    rule_names,
    strictest,
    tighter,
    without_person,
)
from .processes import AgentProcesses, Leftover, end_leftovers, find_leftovers, reap_all
from .shell import bash
from .standard import standard_tools
from .tool import Processes, Tool, ToolContext, ToolOutput

__all__ = [
    "AGENT_TOOLS",
    "SPAWNING",
    "TREE_TOOLS",
    "AgentAnswer",
    "AgentProcesses",
    "Allow",
    "Ask",
    "ChildSpec",
    "Deny",
    "EndTree",
    "Leftover",
    "PermissionMode",
    "Processes",
    "Tool",
    "ToolContext",
    "ToolOutput",
    "Tree",
    "Verdict",
    "WaitFor",
    "argument_name",
    "bash",
    "check_seconds",
    "edit",
    "end_leftovers",
    "find_leftovers",
    "fit_output",
    "judge",
    "permission_mode",
    "read",
    "reap_all",
    "rule_names",
    "standard_tools",
    "strictest",
    "tighter",
    "tool",
    "tool_name",
    "without_person",
    "write",
]

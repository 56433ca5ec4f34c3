"""The tools every agent has unless it is given others."""

from __future__ import annotations

from .edit import edit
from .files import read, write
from .shell import bash
from .tool import Tool

__all__ = ["standard_tools"]


def standard_tools() -> tuple[Tool, ...]:
    """Return ``bash``, ``read``, ``write`` and ``edit``, always in this order."""
    return (bash, read, write, edit)

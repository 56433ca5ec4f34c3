"""The system prompt of agents that the command starts; it holds nothing that changes from one request to the next."""

from __future__ import annotations

from pathlib import Path

from .arguments import RunOptions
from .map_arguments import MapRunOptions

__all__ = ["system_prompt"]

_BUILT_IN = """\
You are an agent of nanotrio, working from a terminal in the directory {directory} for the person who started you.

Do what is asked with your tools; look before you change anything, and change only what the task needs. Use paths
relative to the directory. Check your work by running what can be run, and say plainly what you could not check.

Where a task falls into parts that do not depend on each other, spawn agents for them. Each begins knowing only the
prompt you give it, works beside you, and reports to you when it ends. Wait for those whose results you need.

End with a short answer that says what you found or did. A person reads it on a terminal, so write plain text.
"""


def system_prompt(options: RunOptions | MapRunOptions, directory: Path) -> str:
    """Return the prompt that the flags ask for."""
    text = options.system_prompt if options.system_prompt is not None else _BUILT_IN.format(directory=directory)
    if options.append_system_prompt:
        text = f"{text.rstrip()}\n\n{options.append_system_prompt}" if text else options.append_system_prompt
    return text

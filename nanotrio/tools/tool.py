"""What a tool is: a name, a schema, a function, and what the swarm must know before it may run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ..limits import Limits
from ..messages import ToolSpec
from ..redactor import Redactor

__all__ = ["Processes", "Tool", "ToolContext", "ToolOutput"]


class ToolOutput(msgspec.Struct, frozen=True, gc=False):
    """What a tool hands back for the model to read."""

    content: str
    is_error: bool = False


class Processes(Protocol):
    """The processes and threads that belong to one agent, so that its end can end them all, or name what remains."""

    def note(self, pid: int) -> None:
        """A process group or session led by ``pid`` was started for the agent."""
        ...

    def forget(self, pid: int) -> None:
        """The group led by ``pid`` has no member left, so its number may come to mean somebody else."""
        ...

    def marks(self) -> Mapping[str, str]:
        """Environment variables to start every process with; descendants are known by them."""
        ...

    def thread_began(self, tool: str) -> object:
        """A thread runs ``tool`` for the agent; said in that thread, and returns what ``thread_ended`` takes."""
        ...

    def thread_ended(self, thread: object) -> None:
        """That thread is done; said in it."""
        ...


class ToolContext(msgspec.Struct, frozen=True):
    """What a call may know of its surroundings. Tools take these as values, never from ``os.environ``."""

    agent: int
    call_id: str
    directory: Path
    """The agent's working directory; relative paths are below it."""
    environment: Mapping[str, str]
    """What processes inherit; provider keys are already left out."""
    limits: Limits
    output_directory: Path
    """Where the full text of a long output goes; made on first use."""
    processes: Processes
    idempotency_key: str
    """The same for a repeated run of the same call."""
    tree: Any = None
    """The ``Tree`` of ``tools.agents``; used by the agents' own tools alone."""
    state: dict[str, Any] = {}  # replaced by the agent's own at every call
    """The agent's own small memory between calls (``bash`` keeps its directory here); not durable."""
    redactor: Redactor = Redactor({})
    """Puts ``[NAME]`` in place of each key that nanotrio was given; without one it keeps all."""


class Tool(msgspec.Struct, frozen=True):
    """A tool the swarm can run.

    ``run`` gets the context and the validated arguments by name. It returns text for the model, or raises
    ``ToolError`` with a sentence for the model; anything else it raises is reported to the model as a failure of the
    tool, with the exception's type and text.
    """

    spec: ToolSpec
    run: Callable[[ToolContext, dict[str, Any]], Any]
    """Awaitable, giving a ``ToolOutput``; of an ``inline`` tool plain, giving an ``agents.AgentAnswer``."""
    parse: Callable[[str], dict[str, Any]]
    """Turn the JSON text of an object into validated arguments; raises ``ToolError`` saying what is wrong."""
    effect: bool = True
    """It may change something outside the tree: its intent is durable first, and it is never silently run again."""
    idempotent: bool = False
    """It may be run again after a crash; it is handed the same ``idempotency_key``."""
    inline: bool = False
    """``run`` is a plain function of the tree, called between two awaits, so its records share the call's group."""
    function: Callable[..., Any] | None = None
    """What ``@tool`` was put on; calling the tool calls it, so a decorated function can still be used and tested."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the plain function, without checking arguments or shaping the result."""
        if self.function is None:
            raise TypeError(f"the tool {self.spec.name!r} was not made from a function and cannot be called")
        return self.function(*arguments, **named)

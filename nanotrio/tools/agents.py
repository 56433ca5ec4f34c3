"""The agents' own tools: spawn, send, wait, list, cancel, submit.

They run between two awaits of the caller, so the records they make (a child's first, a mail on a sibling's chain) lie
in one group with the call's result. What has to be waited for is handed back as a value, ``WaitFor`` or ``EndTree``,
and performed by the swarm. They reach the tree through the ``Tree`` protocol alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from ..errors import ToolError
from ..messages import ToolSpec
from .schema import signature_of
from .tool import Tool, ToolContext, ToolOutput

__all__ = ["SPAWNING", "TREE_TOOLS", "AgentAnswer", "ChildSpec", "EndTree", "Tree", "WaitFor", "check_seconds"]

SPAWNING = frozenset(("spawn_agent", "spawn_agents"))
"""Tools that are hidden from agents at the last level."""


class ChildSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A child to be spawned."""

    prompt: str
    name: str = "agent"
    model: str | None = None
    tools: list[str] | None = None
    budget_usd: float | None = None
    timeout_seconds: float | None = None
    result_schema: dict[str, Any] | None = None


class WaitFor(msgspec.Struct, frozen=True):
    """The call's result is what these agents come to; ``child`` says that the wait survives a crash by its intent."""

    agents: tuple[int, ...]
    mode: Literal["any", "all"]
    timeout_seconds: float | None = None
    child: int = 0


class EndTree(msgspec.Struct, frozen=True):
    """The call's result is the end of this agent and everything below it."""

    agent: int


_to_json = json.JSONEncoder(ensure_ascii=False).encode

AgentAnswer: TypeAlias = ToolOutput | WaitFor | EndTree


class Tree(Protocol):
    """The tree, as an agent's tools may use it. No method checkpoints; refusals are ``ToolError`` or ``LimitError``."""

    def spawn(self, parent: int, specs: Sequence[ChildSpec]) -> list[tuple[int, str]]:
        """Make children; all of them or none. Return their ids and names in order."""
        ...

    def send(self, sender: int, to: str, text: str) -> str:
        """Deliver a text to an agent of the same root; return the recipient's name."""
        ...

    def resolve(self, agent: int, address: str) -> int:
        """Return the id that ``address`` (``NAME.N``, an id, or a bare name among live siblings) stands for."""
        ...

    def descendants(self, agent: int) -> list[tuple[str, str, str]]:
        """Return name, status and task of the agents below ``agent``."""
        ...

    def children(self, agent: int) -> list[int]:
        """Return the ids of the agent's own children that have not been closed."""
        ...

    def submit(self, agent: int, result: str) -> None:
        """Take the agent's result, a JSON text; its turn ends once its calls are answered."""
        ...


def check_seconds(timeout_seconds: float | None) -> None:
    """Refuse a time that has passed before it began.

    Raises:
        ToolError: it is below 0.
    """
    if timeout_seconds is not None and not timeout_seconds >= 0:
        raise ToolError(f"timeout_seconds is {timeout_seconds:g}; give a positive number")


def _tree(context: ToolContext) -> Tree:
    tree: Tree = context.tree
    return tree


def spawn_agent(
    context: ToolContext,
    prompt: str,
    name: str = "agent",
    model: str | None = None,
    tools: list[str] | None = None,
    budget_usd: float | None = None,
    timeout_seconds: float | None = None,
    result_schema: dict[str, Any] | None = None,
    background: bool = True,
) -> AgentAnswer:
    """Start a child agent on a task of its own and return its name (NAME.N). You are told when it ends.

    prompt: the whole task; the child sees nothing else of this conversation.
    name: a short word for people; a number is added.
    model: full name of another model; yours by default.
    tools: names of tools it may use, of those you have; all of yours by default.
    budget_usd: the most that it and its own children may spend.
    timeout_seconds: the longest its turn may take.
    result_schema: a JSON schema that its result must fit.
    background: false waits for the child and returns what it came to.
    """
    spec = ChildSpec(
        prompt=prompt,
        name=name,
        model=model,
        tools=tools,
        budget_usd=budget_usd,
        timeout_seconds=timeout_seconds,
        result_schema=result_schema,
    )
    (child, child_name), *_ = _tree(context).spawn(context.agent, [spec])
    return ToolOutput(child_name) if background else WaitFor((child,), "all", None, child)


def spawn_agents(context: ToolContext, agents: list[ChildSpec]) -> AgentAnswer:
    """Start many child agents at once, all of them or none, and return their names, one a line.

    agents: the children; each takes what spawn_agent takes, and all run in the background.
    """
    if not agents:
        raise ToolError("agents is empty; name at least one")
    return ToolOutput("\n".join([name for _, name in _tree(context).spawn(context.agent, agents)]))


def send_message(context: ToolContext, to: str, text: str) -> AgentAnswer:
    """Send a text to another agent of this tree, which reads it when its next turn begins.

    to: NAME.N, or a bare name that only one sibling has, or "parent".
    """
    return ToolOutput(f"sent to {_tree(context).send(context.agent, to, text)}")


def wait_agents(
    context: ToolContext,
    ids: list[str] | None = None,
    mode: Literal["any", "all"] = "all",
    timeout_seconds: float | None = None,
) -> AgentAnswer:
    """Wait until agents have ended and return what each came to; those that have not are named.

    ids: NAME.N of each; all your children by default.
    mode: "all" waits for every one, "any" for the next that ends.
    timeout_seconds: return what there is after this long.
    """
    check_seconds(timeout_seconds)
    tree = _tree(context)
    agents = tuple([tree.resolve(context.agent, each) for each in ids] if ids else tree.children(context.agent))
    if not agents:
        raise ToolError("there is nobody to wait for: you have no children; spawn_agent starts one")
    return WaitFor(agents, mode, timeout_seconds)


def list_agents(context: ToolContext) -> AgentAnswer:
    """List the agents below you: name, status and task of each."""
    rows = _tree(context).descendants(context.agent)
    return ToolOutput("\n".join(["\t".join(row) for row in rows]) or "no agents below you")


def cancel_agent(context: ToolContext, id: str) -> AgentAnswer:
    """End an agent below you, and everything below it, and return when it is gone.

    id: NAME.N of the agent.
    """
    return EndTree(_tree(context).resolve(context.agent, id))


def submit_result(context: ToolContext, result: Any) -> AgentAnswer:
    """Hand in your result and end your turn; agents below you that still run are ended.

    result: any JSON value; plain text is fine unless a schema was asked for.
    """
    _tree(context).submit(context.agent, _to_json(result))
    return ToolOutput("submitted")


def _inline(function: Callable[..., AgentAnswer]) -> Tool:
    signature = signature_of(function, function.__name__)

    def run(context: ToolContext, arguments: dict[str, Any]) -> AgentAnswer:
        return function(context, **arguments)

    spec = ToolSpec(function.__name__, signature.description, signature.parameters)
    return Tool(spec, run, signature.parse, effect=False, inline=True, function=function)


TREE_TOOLS: tuple[Tool, ...] = tuple(
    [
        _inline(function)
        for function in (
            spawn_agent,
            spawn_agents,
            send_message,
            wait_agents,
            list_agents,
            cancel_agent,
            submit_result,
        )
    ]
)
"""The tools of the tree itself, given to every agent unless its tools are named."""

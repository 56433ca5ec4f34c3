"""What a program may say of an agent it spawns, and how that becomes a profile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import msgspec

from ..errors import UsageError
from ..given import a_text, real
from ..limits import Limits, check_limits, nano_usd
from ..messages import clean_text
from ..records import Profile
from ..tools import TREE_TOOLS, Tool, permission_mode, tighter, tool, tool_name
from .node import Node
from .result import schema_of
from .runtime import Runtime

__all__ = ["SpawnOptions", "check_tools", "directory_of", "profile_of", "register_tool"]

_T = TypeVar("_T")


class SpawnOptions(TypedDict, total=False):
    """Keyword arguments of ``spawn``; what is not given is the parent's, or the swarm's for a root."""

    name: str
    """A short word for people; a number is added."""
    model: str
    """Full name of a model."""
    system: str
    """The system prompt."""
    tools: Sequence[Tool | Callable[..., Any] | str]
    """Tools, plain functions, or names of registered ones. The tree's own tools come with them, unless some of these
    are named: then exactly the named ones are given."""
    budget_usd: float
    """Caps the agent and all its descendants over its whole life."""
    timeout_seconds: float
    """Bounds each turn, in time that the process runs."""
    limits: Limits
    directory: Path | str
    """Where the agent works."""
    permission_mode: str
    """Never looser than the parent's."""
    result_type: Any
    """A type msgspec knows, or a JSON schema as a dict: what ``submit_result`` is held to."""
    uuid: str
    """Names the session of a root, in place of a new one: a word without ``/``, white space or control characters."""


_TEXTS = ("name", "model", "system", "permission_mode", "uuid")


def profile_of(runtime: Runtime, parent: Node | None, options: SpawnOptions) -> Profile:
    """Return what ``options`` come to below ``parent``.

    Raises:
        UsageError: a value that cannot be used.
    """
    if unknown := options.keys() - SpawnOptions.__annotations__.keys():  # a cap with a slip in its name holds nothing
        raise UsageError(
            f"spawn takes no {', '.join(sorted(unknown))}; it takes {', '.join(SpawnOptions.__annotations__)}"
        )
    for name in _TEXTS:
        a_text(options.get(name) or "", name)
    if parent is not None and options.get("uuid"):
        raise UsageError("uuid names the session of a root, and this is a child; leave it out")
    settings = runtime.settings
    above = parent.profile if parent else None
    return Profile(
        model=_model_name(runtime, options.get("model"), above),
        system=_system(runtime, options.get("system"), above),
        tools=_tool_names(runtime, options.get("tools"), above),
        limits=_limits(options, parent.limits if parent else settings.limits, is_child=parent is not None),
        directory=directory_of(options.get("directory")) or (above.directory if above else str(settings.directory)),
        permission_mode=_mode(options.get("permission_mode"), above, settings.permissions.mode),
        result_schema=schema_of(options.get("result_type")),
        denied_tools=above.denied_tools if above else settings.permissions.denied_tools,
        allowed_tools=above.allowed_tools if above else settings.permissions.allowed_tools,
    )


def _limits(options: SpawnOptions, default: Limits, *, is_child: bool) -> Limits:
    given = options.get("limits")
    limits = default if given is None else check_limits(given)
    if (seconds := options.get("timeout_seconds")) is not None:
        limits = msgspec.structs.replace(limits, turn_seconds=real(seconds, "timeout_seconds"))
    budget = options.get("budget_usd")
    if budget is not None:
        return msgspec.structs.replace(limits, budget_nano=nano_usd(budget))
    if is_child and options.get("limits") is None:  # the parent's cap holds for it without being its own
        return msgspec.structs.replace(limits, budget_nano=None)
    return limits


def _system(runtime: Runtime, system: str | None, above: Profile | None) -> int:
    if system is None and above is not None:
        return above.system
    system = runtime.redactor.text(clean_text(runtime.settings.system if system is None else system))
    if not system:
        return 0
    seq = runtime.burst.content(system.encode())
    runtime.systems[seq] = system
    return seq


def _model_name(runtime: Runtime, model: str | None, above: Profile | None) -> str:
    if model or above:
        return model or (above.model if above else "")
    if runtime.settings.model is None:
        raise UsageError("no model was named; pass model= to open_swarm or spawn, as in 'anthropic/claude-sonnet-4-5'")
    return runtime.settings.model.name


def _mode(mode: str | None, above: Profile | None, default: str) -> str:
    wanted = permission_mode(mode or default)
    return wanted if above is None else tighter(wanted, permission_mode(above.permission_mode))


def directory_of(directory: Path | str | None) -> str:
    """Return an agent's directory as an absolute path; nothing where none is given.

    Raises:
        UsageError: it is none, or no record can hold its name.
    """
    if directory is None:
        return ""
    try:
        path = Path(directory).absolute()
    except TypeError:
        raise UsageError(f"directory is of the type {type(directory).__name__}; give a path") from None
    try:
        is_directory = path.is_dir()
    except OSError as error:
        raise UsageError(f"the directory cannot be looked at: {error.strerror}; give another") from error
    if not is_directory:
        raise UsageError(f"the directory {path} does not exist; an agent needs one to work in")
    if clean_text(str(path)) != str(path):
        raise UsageError(f"the name of the directory {str(path)!r} is not UTF-8, so no record can hold it; rename it")
    return str(path)


def _tool_names(
    runtime: Runtime, tools: Sequence[Tool | Callable[..., Any] | str] | None, above: Profile | None
) -> tuple[str, ...]:
    if tools is None:
        return above.tools if above else runtime.settings.tools
    names = dict.fromkeys([register_tool(runtime, each) for each in check_tools(tools)])
    own = [each.spec.name for each in TREE_TOOLS]
    if names.keys().isdisjoint(own):
        names.update(dict.fromkeys(own))
    for name in names:
        if above is not None and name not in above.tools and name in runtime.settings.tools:
            raise UsageError(f"a child cannot have the tool {name!r}, which its parent does not have")
    return tuple(names)


def check_tools(tools: Sequence[_T]) -> Sequence[_T]:
    """Return ``tools`` if they are several.

    Raises:
        UsageError: one tool, one name, or a function that makes them stands in their place.
    """
    if isinstance(tools, str | Tool) or callable(tools) or not isinstance(tools, Iterable):
        raise UsageError("tools are a list, as in tools=[word_count] or tools=standard_tools(); give one")
    return tools


def register_tool(runtime: Runtime, each: Tool | Callable[..., Any] | str) -> str:
    """Enter a tool into the swarm's registry; return its name.

    Raises:
        UsageError: another tool of that name is registered, or none of that name is.
    """
    if isinstance(each, str):
        name = tool_name(each)
        if name not in runtime.tools:
            raise UsageError(f"no tool is called {each!r}; there are {', '.join(runtime.tools)}")
        return name
    if each is None:  # for which ``tool`` makes a decorator
        raise UsageError("one of the tools is None; give tools, functions, or names of registered ones")
    made = each if isinstance(each, Tool) else tool(each)
    name = made.spec.name
    known = runtime.tools.setdefault(name, made)
    if known is not made and (known.function is None or known.function is not made.function):
        raise UsageError(f"two tools are called {name!r}; give one of them another name with @tool(name=...)")
    return name

"""Functions as tools: the ``@tool`` decorator."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable
from typing import Any, overload

import msgspec
import trio

from ..errors import ToolError, UsageError
from ..messages import ToolSpec
from .output import fit_output
from .schema import signature_of
from .threads import thread_limiter
from .tool import Tool, ToolContext, ToolOutput

__all__ = ["tool"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What both wire formats take as the name of a tool."""


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *, effect: bool = True, idempotent: bool = False, name: str = "", description: str = ""
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    effect: bool = True,
    idempotent: bool = False,
    name: str = "",
    description: str = "",
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function, by its type hints and its docstring.

    The docstring's first paragraph is what the model is told; ``name: text`` at the beginning of a line or a sentence
    describes a parameter, as does an ``Args:`` section. Arguments are checked against the type hints before the
    function is called. What it returns becomes the model's text: a ``str`` as it is, ``None`` as nothing, a
    ``ToolOutput`` as it is, all else as JSON; what is longer than ``max_result_bytes`` is cut, with the rest in a file.

    A parameter annotated ``ToolContext`` is not told to the model and gets the call's context. A program has one
    current directory and many agents, so take the agent's from there: ``context.directory / path``. A bare relative
    path is resolved against the process's directory, which is the agent's only in the plain command.

    An ``async`` function runs in the call's own task and is cancelled as any Trio code is. A plain function runs in a
    thread of a pool that nothing else uses; cancelling the call returns at once and leaves the thread to end by
    itself, its result dropped, and the end of its agent names it if it has not. So let what blocks for long be
    ``async``.

    Args:
        function: an async or plain function with type hints, where the decorator is used bare.
        effect: it may change something outside the tree, so its intent is made durable before it runs.
        idempotent: it may be run again after a crash; ``context.idempotency_key`` is then the same.
        name: what the model calls it; the function's own name by default.
        description: what the model is told, in place of the docstring's first paragraph.

    The result is a ``Tool`` that can still be called as the plain function.

    Raises:
        UsageError: the signature or the name cannot be told to a model.
    """
    if function is None:
        return lambda function: _make(function, name, description, effect=effect, idempotent=idempotent)
    return _make(function, name, description, effect=effect, idempotent=idempotent)


def _make(function: Callable[..., Any], name: str, description: str, *, effect: bool, idempotent: bool) -> Tool:
    name = name or getattr(function, "__name__", "")
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be the name of a tool: 1 to 64 letters, digits, '_' or '-'; give name=")
    signature = signature_of(function, name)
    spec = ToolSpec(name, description or signature.description, signature.parameters)
    is_async = inspect.iscoroutinefunction(inspect.unwrap(function))
    if is_async:
        run = functools.partial(_run_async, function, signature.context_name)
    else:
        run = functools.partial(_run_in_thread, function, name, signature.context_name)
    return Tool(spec, run, signature.parse, effect=effect, idempotent=idempotent, function=function)


async def _run_async(
    function: Callable[..., Any], context_name: str, context: ToolContext, arguments: dict[str, Any]
) -> ToolOutput:
    if context_name:
        arguments = {**arguments, context_name: context}
    return await _shape(context, await function(**arguments))


async def _run_in_thread(
    function: Callable[..., Any], name: str, context_name: str, context: ToolContext, arguments: dict[str, Any]
) -> ToolOutput:
    if context_name:
        arguments = {**arguments, context_name: context}

    def call() -> Any:
        thread = context.processes.thread_began(name)
        try:
            return function(**arguments)
        finally:
            context.processes.thread_ended(thread)

    limiter = thread_limiter("function")
    return await _shape(context, await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=limiter))


async def _shape(context: ToolContext, value: Any) -> ToolOutput:
    if isinstance(value, ToolOutput):
        return await fit_output(context, value)
    if isinstance(value, str):
        return await fit_output(context, ToolOutput(value))
    return await fit_output(context, ToolOutput("" if value is None else _to_json(value)))


def _to_json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # a lone surrogate, which escapes can carry
        return json.dumps(msgspec.to_builtins(value))
    except TypeError as error:
        raise ToolError(
            f"the tool ran, and returned a {type(value).__name__} that cannot be told as JSON ({error}); its author "
            "should return text, numbers, lists, dicts, Structs or dataclasses"
        ) from error

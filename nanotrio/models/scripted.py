"""Models without a server: a script decides what they say. For tests, demos and benchmarks.

A script is a function from a ``Conversation`` to a ``Reply``, or a list of replies, one for each step of a
conversation. The body of a request is lines of JSON (the head, then a line a message), so that a script which looks
at the last message decodes nothing else.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import msgspec
import outcome
import trio

from ..errors import ModelError
from ..messages import Message, Part, StopReason, Text, Thinking, ToolCall, ToolResult, ToolSpec, Usage, text_of
from .arguments import make_call
from .model import Codec, Decoder, Delta, Price, Reply

__all__ = [
    "FREE",
    "Conversation",
    "Late",
    "Script",
    "ScriptedCodec",
    "ScriptedModel",
    "find_script",
    "register_script",
    "registered_scripts",
    "reply_calls",
    "reply_text",
]

FREE = Price(0, 0, 0, 0)
"""The price of what costs nothing, which is not the same as an unknown price."""

_DERIVED = Usage()
"""Stands in a reply whose usage is to be derived; known by identity."""

_TICK_SECONDS = 0.001
_MOST_AT_ONCE = 128
"""Who is let go in one pass of the loop: many more would only queue again, for the swarm has a quota of turns."""

_ASSISTANT_LINE = b'\n["assistant"'
_WORDS = re.compile(r"\s*\S+\s*|\s+")


class _Head(msgspec.Struct, array_like=True, gc=False):
    model: str
    max_tokens: int
    system: str
    tools: tuple[ToolSpec, ...]


_encode = msgspec.json.Encoder().encode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_message = msgspec.json.Decoder(Message).decode


class Conversation:
    """What a script is shown: the request, decoded as far as it is asked for."""

    # Plain slots: functools.cached_property takes a lock at each first use.
    __slots__ = ("_body", "_head", "_head_end", "_last", "_steps")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._head_end = body.find(b"\n")
        self._head: _Head | None = None
        self._last: Message | None = None
        self._steps = -1

    @property
    def last(self) -> Message:
        """The last message."""
        if self._last is None:
            self._last = _decode_message(self._body[self._body.rindex(b"\n") + 1 :])
        return self._last

    @property
    def first(self) -> Message:
        """The first message; decoded at each use."""
        start = self._head_end + 1
        end = self._body.find(b"\n", start)
        return _decode_message(self._body[start : end if end >= 0 else None])

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages; decoded at each use."""
        return tuple(_decode_message(line) for line in self._body.split(b"\n")[1:])

    @property
    def steps(self) -> int:
        """The number of the assistant's messages so far, so 0 for the first request."""
        if self._steps < 0:
            # The head is passed over first: looking for one byte is far quicker than for thirteen.
            self._steps = self._body.count(_ASSISTANT_LINE, max(0, self._head_end))
        return self._steps

    @property
    def task(self) -> str:
        """The text of the first message: what the agent was first asked."""
        return text_of(self.first)

    @property
    def last_text(self) -> str:
        """The text of the last message."""
        return text_of(self.last)

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The results of tools in the last message."""
        return tuple(part for part in self.last.parts if isinstance(part, ToolResult))

    @property
    def model(self) -> str:
        """The full name of the model."""
        return self._decoded_head().model

    @property
    def max_tokens(self) -> int:
        """The bound on the reply's tokens."""
        return self._decoded_head().max_tokens

    @property
    def system(self) -> str:
        """The system prompt."""
        return self._decoded_head().system

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools the model may call."""
        return self._decoded_head().tools

    def _decoded_head(self) -> _Head:
        if self._head is None:
            self._head = _decode_head(self._body[: self._head_end if self._head_end >= 0 else None])
        return self._head


class Late(msgspec.Struct, frozen=True, gc=False):
    """An answer that takes ``seconds`` more than the model's own latency."""

    answer: Reply | ModelError
    seconds: float


Script: TypeAlias = Callable[[Conversation], Reply | ModelError | Late] | Sequence[Reply | ModelError]
"""A function, which may also raise its ``ModelError``; or replies by step. An error in a list stands before the reply
that follows it: it is raised once, then the next attempt goes on."""


def reply_text(text: str, *, usage: Usage | None = None, stop: StopReason = "end") -> Reply:
    """Return a reply of one text; its usage is derived from its size unless given."""
    return Reply((Text(text),) if text else (), stop, _DERIVED if usage is None else usage)


def reply_calls(
    *calls: tuple[str, Mapping[str, Any] | str], text: str = "", thinking: str = "", usage: Usage | None = None
) -> Reply:
    """Return a reply that calls tools: pairs of name and arguments.

    Arguments given as text are taken as a model's raw text, so broken JSON may be tried. Ids are given to the calls
    when the reply is used: ``call_STEP_INDEX``.
    """
    parts: list[Part] = []
    if thinking:
        parts.append(Thinking(thinking))
    if text:
        parts.append(Text(text))
    for name, arguments in calls:
        raw = arguments if isinstance(arguments, str) else _encode(arguments).decode()
        parts.append(make_call("", name, raw, cut=False))
    return Reply(tuple(parts), "tool_use", _DERIVED if usage is None else usage)


class ScriptedCodec:
    """The line-oriented form that scripted models read."""

    __slots__ = ()

    def encode_head(self, model: str, system: str, tools: Sequence[ToolSpec], max_tokens: int) -> bytes:
        """Return the first line, without its end."""
        return _encode(_Head(model, max_tokens, system, tuple(tools)))

    def encode_message(self, message: Message, model: str) -> bytes:
        """Return one line, without its end; thinking is kept only where ``message.model`` is ``model``."""
        if message.role == "assistant" and message.model != model:
            for part in message.parts:
                if isinstance(part, Thinking):
                    kept = tuple(part for part in message.parts if not isinstance(part, Thinking))
                    return _encode(Message(message.role, kept, message.model))
        return _encode(message)

    def join(self, head: bytes, messages: Sequence[bytes]) -> bytes:
        """Return the body of a request."""
        return b"\n".join((head, *messages))

    def decoder(self) -> Decoder:
        """Scripted models have no wire to decode."""
        _no_wire()


def _no_wire() -> NoReturn:
    raise NotImplementedError("a scripted model replies without a wire, so there is nothing to decode")


class _Waiting:
    """A task in a queue of the latency; ``task`` is None once it was let go or cancelled."""

    __slots__ = ("due", "task")

    def __init__(self, due: float) -> None:
        self.due = due
        self.task: trio.lowlevel.Task | None = trio.lowlevel.current_task()

    def abort(self, _: object) -> trio.lowlevel.Abort:
        """Leave the queue."""
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


class _Latency:
    """A delay that is the same for all who pass: they leave in the order they came, so one timer serves them all.

    The first in the queue watches the clock. When its time comes it lets go whoever is due within a millisecond or
    so, some at a time, and makes the next one watch. A timer for each would cost more than the rest of a scripted
    attempt.
    """

    __slots__ = ("_is_watched", "_queue", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._queue: deque[_Waiting] = deque()
        self._is_watched = False

    def wait(self) -> Awaitable[float]:
        """Return what lets the delay pass: 0, or until when to ``watch`` the clock then."""
        due = trio.current_time() + self.seconds
        if not self._is_watched:
            self._is_watched = True
            return self.watch(due)
        waiting = _Waiting(due)
        self._queue.append(waiting)
        # Not a coroutine of ours: thousands of agents wait here.
        return trio.lowlevel.wait_task_rescheduled(waiting.abort)  # noqa: ASYNC105

    async def watch(self, due: float) -> float:
        """Watch the clock until ``due``, for all in the queue; return 0."""
        try:
            await trio.sleep_until(due)
        finally:
            self._hand_on()
        return 0.0

    def _hand_on(self) -> None:
        due = trio.current_time() + min(_TICK_SECONDS, self.seconds / 10)
        left = _MOST_AT_ONCE
        while self._queue:
            waiting = self._queue.popleft()
            task, waiting.task = waiting.task, None
            if task is not None:
                watches = waiting.due > due or not left
                left -= 1
                trio.lowlevel.reschedule(task, outcome.Value(waiting.due if watches else 0.0))
                if watches:
                    return
        self._is_watched = False


class ScriptedModel:
    """A ``Model`` whose replies a script decides.

    ``latency_seconds`` passes before each reply; at zero the attempt still lets other tasks run. Usage is derived
    from the sizes of request and reply, four bytes a token, unless a reply brings its own.
    """

    __slots__ = ("_latency", "_script", "codec", "name", "price")

    def __init__(
        self,
        script: Script,
        *,
        name: str = "scripted/test",
        latency_seconds: float = 0.0,
        price: Price | None = FREE,
    ) -> None:
        self.name = name
        self.price = price
        self.codec: Codec = ScriptedCodec()
        self._latency = _Latency(latency_seconds)
        self._script = script if callable(script) else _listed(script, name)

    def __repr__(self) -> str:
        return f"<ScriptedModel {self.name}>"

    async def attempt(self, body: bytes, emit: Callable[[Delta], None] | None, *, idle_seconds: float) -> Reply:  # noqa: ARG002 - the protocol's
        """Ask the script; see ``model.Model``. Checkpoints before it does; a silence is never too long here."""
        latency = self._latency
        if latency.seconds <= 0:
            await trio.lowlevel.checkpoint()
        elif due := await latency.wait():
            await latency.watch(due)
        conversation = Conversation(body)
        reply = self._script(conversation)
        if isinstance(reply, Late):
            await trio.sleep(reply.seconds)
            reply = reply.answer
        if isinstance(reply, ModelError):
            raise reply
        reply = _completed(reply, conversation, body)
        if emit is not None:
            for delta in _deltas(reply):
                emit(delta)
        return reply


def _completed(reply: Reply, conversation: Conversation, body: bytes) -> Reply:
    """``reply`` with an id for each call and its usage, where the script left these open."""
    parts: list[Part] = []
    said = 0
    for part in reply.parts:
        if type(part) is ToolCall:
            said += len(part.name) + len(part.arguments)
            if not part.id:
                call_id = f"call_{conversation.steps}_{len(parts)}"
                part = ToolCall(call_id, part.name, part.arguments, part.problem)  # noqa: PLW2901 - now with its id
        elif type(part) is Text or type(part) is Thinking:
            said += len(part.text)
        parts.append(part)
    derived = Usage(len(body) // 4 + 1, said // 4 + 1) if reply.usage is _DERIVED else reply.usage
    return Reply(tuple(parts), reply.stop, derived)


def _deltas(reply: Reply) -> list[Delta]:
    out: list[Delta] = []
    for part in reply.parts:
        if isinstance(part, Text):
            out += [Delta("text", word) for word in _WORDS.findall(part.text)]
        elif isinstance(part, Thinking):
            out += [Delta("thinking", word) for word in _WORDS.findall(part.text)]
        elif isinstance(part, ToolCall):
            out.append(Delta("call", part.name))
    return out


def _listed(items: Sequence[Reply | ModelError], name: str) -> Callable[[Conversation], Reply | ModelError | Late]:
    """The script of a list of replies."""
    replies: list[Reply] = []
    errors: dict[int, list[ModelError]] = {}
    for item in items:
        if isinstance(item, ModelError):
            errors.setdefault(len(replies), []).append(item)
        else:
            replies.append(item)

    def script(conversation: Conversation) -> Reply | ModelError:
        step = conversation.steps
        if errors.get(step):
            return errors[step].pop(0)
        if step < len(replies):
            return replies[step]
        return ModelError(
            f"the script of {name} has {len(replies)} replies and was asked for one more; add a reply to it",
            kind="rejected",
        )

    return script


_registered: dict[str, tuple[Script, float, Price | None]] = {}


def register_script(name: str, script: Script, *, latency_seconds: float = 0.0, price: Price | None = FREE) -> None:
    """Make ``script`` answer as ``scripted/NAME`` in this process; an earlier one of that name is replaced."""
    _registered[name.removeprefix("scripted/")] = (script, latency_seconds, price)


def find_script(name: str) -> ScriptedModel | None:
    """Return a new model for a registered name, without ``scripted/``; None where there is none."""
    found = _registered.get(name)
    if found is None:
        return None
    script, latency_seconds, price = found
    return ScriptedModel(script, name=f"scripted/{name}", latency_seconds=latency_seconds, price=price)


def registered_scripts() -> list[str]:
    """Return the names that ``find_script`` knows, sorted."""
    return sorted(_registered)


def _echo(conversation: Conversation) -> Reply:
    """Say what was said."""
    last = conversation.last
    said = text_of(last) or "\n".join(result.content for result in conversation.results)
    return reply_text(said)


register_script("echo", _echo)

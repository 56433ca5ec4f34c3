"""Models without a server: a script decides what they say. For tests, demos and benchmarks.

A script is a function from a ``Conversation`` to a ``Reply``, or a list of replies, one for each step of a
conversation. The body of a request is lines of JSON (the head, then a line a message), so that a script which looks
at the last message decodes nothing else.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias, final

import msgspec
import outcome
import trio

from ..counted import counted
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
    "split_request",
]

FREE = Price(0, 0, 0, 0)
"""The price of what costs nothing, which is not the same as an unknown price."""

_DERIVED = Usage()
"""Stands in a reply whose usage is to be derived; known by identity."""

_TICK_SECONDS = 0.001
_MOST_AT_ONCE = 80
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
    __slots__ = ("_head", "_head_line", "_last", "_lines", "_steps")

    def __init__(self, head: bytes, lines: bytes) -> None:
        """Of a request's first line, and of the lines of its messages; ``split_request`` takes it apart."""
        self._head_line = head
        self._lines = lines
        self._head: _Head | None = None
        self._last: Message | None = None
        self._steps = -1

    @property
    def size_bytes(self) -> int:
        """The size of the request."""
        return len(self._head_line) + len(self._lines)

    @property
    def last(self) -> Message:
        """The last message."""
        if self._last is None:
            self._last = _decode_message(self._lines[self._lines.rfind(b"\n") + 1 :])
        return self._last

    @property
    def first(self) -> Message:
        """The first message; decoded at each use."""
        return self._first()

    def _first(self) -> Message:
        end = self._lines.find(b"\n")
        return _decode_message(self._lines[: end if end >= 0 else None])

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages; decoded at each use."""
        return tuple(_decode_message(line) for line in self._lines.split(b"\n"))

    @property
    def steps(self) -> int:
        """The number of the assistant's messages so far, so 0 for the first request."""
        if self._steps < 0:
            self._steps = self._lines.count(_ASSISTANT_LINE)  # the first message is the user's
        return self._steps

    @property
    def task(self) -> str:
        """The text of the first message: what the agent was first asked."""
        return text_of(self._first())

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
            self._head = _decode_head(self._head_line)
        return self._head


def split_request(body: bytes, head: bytes = b"\n") -> tuple[bytes, bytes]:
    """Return the first line of a request, with its end, and the rest; ``head`` itself where it begins so."""
    if not body.startswith(head):
        head = body[: body.find(b"\n") + 1]
    return head, body[len(head) :]


@final
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
    """A task in a queue of the latency; ``task`` is None once it was let go or cancelled.

    It is what Trio calls to abort the wait: a bound method would be one thing more that each waiting agent holds.
    """

    __slots__ = ("due", "task")

    def __init__(self, due: float) -> None:
        self.due = due
        self.task: trio.lowlevel.Task | None = trio.lowlevel.current_task()

    def __call__(self, _: object) -> trio.lowlevel.Abort:
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
        return trio.lowlevel.wait_task_rescheduled(waiting)  # noqa: ASYNC105

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

    The script is asked as the request comes in, and its reply is there ``latency_seconds`` later; at zero the attempt
    still lets other tasks run. So thousands that wait hold a reply each, and no request. Usage is derived from the
    sizes of request and reply, four bytes a token, unless a reply brings its own.

    ``waiting`` is the number of attempts that have begun and have no reply yet.
    """

    __slots__ = ("_head", "_latency", "_script", "codec", "name", "price", "waiting")

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
        self.waiting = 0
        self._head = b"\n"
        self._latency = _Latency(latency_seconds)
        self._script = script if callable(script) else _listed(script, name)

    def __repr__(self) -> str:
        return f"<ScriptedModel {self.name}>"

    def attempt(
        self,
        body: bytes,
        emit: Callable[[Delta], None] | None,
        *,
        idle_seconds: float,  # noqa: ARG002 - the protocol's; a silence is never too long here
    ) -> Coroutine[Any, Any, Reply]:
        """Ask the script; see ``model.Model``. What comes of it checkpoints before it replies."""
        # Most requests begin alike: that part is held once.
        self._head, lines = split_request(body, self._head)
        conversation = Conversation(self._head, lines)
        try:
            answer = self._script(conversation)
        except ModelError as error:
            answer = error.with_traceback(None)
        late_seconds = 0.0
        if type(answer) is Late:
            late_seconds, answer = answer.seconds, answer.answer
        if not isinstance(answer, ModelError):
            answer = _completed(answer, conversation)
        return self._reply(answer, late_seconds, emit)

    async def _reply(
        self, answer: Reply | ModelError, late_seconds: float, emit: Callable[[Delta], None] | None
    ) -> Reply:
        self.waiting += 1
        try:
            if self._latency.seconds <= 0:
                await trio.lowlevel.checkpoint()
            elif due := await self._latency.wait():
                await self._latency.watch(due)
            if late_seconds:
                await trio.sleep(late_seconds)
        finally:
            self.waiting -= 1
        if isinstance(answer, ModelError):
            raise answer.with_traceback(None)  # one error may be the answer to many: it would grow by each
        if emit is not None:
            for delta in _deltas(answer):
                emit(delta)
        return answer


def _completed(reply: Reply, conversation: Conversation) -> Reply:
    """``reply`` with an id for each call and its usage, where the script left these open; else itself."""
    parts = reply.parts
    said = 0
    for index, part in enumerate(parts):
        if type(part) is ToolCall:
            said += len(part.name) + len(part.arguments)
            if not part.id:
                named = ToolCall(f"call_{conversation.steps}_{index}", part.name, part.arguments, part.problem)
                parts = (*parts[:index], named, *parts[index + 1 :])
        elif type(part) is Text or type(part) is Thinking:
            said += len(part.text)
    if reply.usage is _DERIVED:
        return Reply(parts, reply.stop, Usage(conversation.size_bytes // 4 + 1, said // 4 + 1))
    return reply if parts is reply.parts else Reply(parts, reply.stop, reply.usage)


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
            f"the script of {name} has {counted(len(replies), 'reply', 'replies')} and was asked for one more; "
            "add a reply to it",
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

"""A conversation as a model server understands it, the same for every wire format, and what a brain may answer.

A *brain* is a pure function of the conversation: equal conversations get equal answers, whatever process asks and
however often it was killed before. The one thing it may use beyond the text is ``attempt``, how often this very request
was seen before, so that a fault can strike once and let the retry through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

__all__ = [
    "Ask",
    "Brain",
    "Call",
    "Conversation",
    "Fault",
    "Reply",
    "Result",
    "Said",
    "Thought",
    "Tokens",
    "WireRefusal",
]


class WireRefusal(Exception):  # noqa: N818 - a refusal is an answer of the server, not a fault in it
    """The request breaks a rule of its wire format; the text is the provider's sentence about it."""

    def __init__(self, message: str, *, status: int = 400, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class Call(msgspec.Struct, frozen=True):
    """A tool call as the client sent it back."""

    id: str
    name: str
    arguments: dict[str, Any]


class Result(msgspec.Struct, frozen=True):
    """A tool result as the client sent it; ``is_error`` is always False on a wire that cannot say it."""

    call_id: str
    text: str
    is_error: bool = False


class Thought(msgspec.Struct, frozen=True):
    """A block of signed reasoning that came back."""

    text: str
    signature: str


class Said(msgspec.Struct, frozen=True):
    """What one side said between two turns of the other: neighbouring messages of a role are joined."""

    role: Literal["user", "assistant"]
    texts: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()
    thoughts: tuple[Thought, ...] = ()

    @property
    def text(self) -> str:
        """All its texts, one a line."""
        return "\n".join(self.texts)


class Conversation(msgspec.Struct, frozen=True):
    """A whole valid request."""

    wire: Literal["anthropic", "openai-chat"]
    model: str
    system: str
    tools: tuple[str, ...]
    said: tuple[Said, ...]
    max_tokens: int | None
    attempt: int = 0
    """How often this very body was seen before."""

    @property
    def prompt(self) -> str:
        """The first user text."""
        return self.said[0].text if self.said else ""

    def results(self) -> dict[str, Result]:
        """Every result so far, by call id."""
        return {result.call_id: result for said in self.said for result in said.results}

    def calls(self) -> list[tuple[Call, Result]]:
        """Every call so far with its result, in order; a valid request has one for each."""
        results = self.results()
        return [(call, results[call.id]) for said in self.said for call in said.calls]


class Ask(msgspec.Struct, frozen=True):
    """A tool call that the brain wants; ``arguments`` as text goes out unchecked, so it may be malformed."""

    name: str
    arguments: dict[str, Any] | str


class Tokens(msgspec.Struct, frozen=True):
    """Usage in the four classes that have prices; the classes do not overlap."""

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: thinking first, then text, then calls."""

    text: str = ""
    calls: tuple[Ask, ...] = ()
    thinking: str = ""
    usage: Tokens | None = None
    """Computed from the sizes where None."""
    stop: str = ""
    """The wire's own stop reason, where the usual one is not wanted (``max_tokens``, ``length``, ``refusal``)."""
    delay_seconds: float = 0.0
    """Before the first byte, on top of the server's latency."""
    pause_seconds: float = 0.0
    """Between two events of a stream."""
    piece_characters: int = 16
    """Characters of text in one event of a stream."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that goes wrong.

    ``status``: an HTTP error with ``headers``. ``cut``: the stream of ``reply`` ends cleanly after ``after_bytes``.
    ``reset``: the same with a TCP reset. ``stall``: the same with silence for ``seconds``, then the rest follows.
    ``error``: after ``after_bytes`` the stream carries an error event and ends.
    """

    kind: Literal["status", "cut", "reset", "stall", "error"]
    status: int = 500
    message: str = "the server has a bad day"
    headers: tuple[tuple[str, str], ...] = ()
    reply: Reply = Reply(text="This answer is never seen whole, however long one waits for it.")
    after_bytes: int = 200
    seconds: float = 3600.0


Brain: TypeAlias = Callable[[Conversation], Reply | Fault]

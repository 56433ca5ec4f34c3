"""What the swarm asks of a model: pure codecs on one side, one attempt of a call on the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from ..messages import Message, Part, StopReason, ToolSpec, Usage

__all__ = ["Codec", "Decoder", "Delta", "Model", "Price", "Reply"]


class Delta(msgspec.Struct, frozen=True, gc=False):
    """A piece of a reply as it streams; an event, never a fact. A retry starts over with ``kind`` ``restart``."""

    kind: Literal["text", "thinking", "call", "restart"]
    text: str
    """The new piece; for ``call`` the name of the tool whose call begins."""


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A whole reply: the stream's terminal event was seen."""

    parts: tuple[Part, ...]
    stop: StopReason
    usage: Usage


class Price(msgspec.Struct, frozen=True, gc=False):
    """List price in nano-USD per token, one for each class of usage."""

    input: int
    output: int
    cache_read: int
    cache_write: int

    def cost_nano(self, usage: Usage) -> int:
        """Return what ``usage`` costs."""
        return (
            usage.input * self.input
            + usage.output * self.output
            + usage.cache_read * self.cache_read
            + usage.cache_write * self.cache_write
        )


class Decoder(Protocol):
    """A push machine for one response body; no I/O, no clock."""

    def receive_data(self, chunk: bytes) -> list[Delta | Reply]:
        """Take any cut of the body; return what it completed. A ``Reply`` comes last and once.

        Raises:
            ModelError: the server reported an error in the stream, or broke the format.
        """
        ...

    def receive_eof(self) -> None:
        """The body ended.

        Raises:
            ModelError: (transient, with the usage seen so far) the reply is not whole.
        """
        ...


class Codec(Protocol):
    """One wire format. Every method is pure, and equal arguments give equal bytes.

    A request is ``join(head, messages)``: head and messages are encoded once and kept by the caller, so that each
    request begins with the bytes of the one before.
    """

    def encode_head(self, model: str, system: str, tools: Sequence[ToolSpec], max_tokens: int) -> bytes:
        """Return the request up to and including the opening of its messages."""
        ...

    def encode_message(self, message: Message, model: str) -> bytes:
        """Return one message. Thinking parts are kept only where ``message.model`` is ``model``."""
        ...

    def join(self, head: bytes, messages: Sequence[bytes]) -> bytes:
        """Return the body of a request."""
        ...

    def decoder(self) -> Decoder:
        """Return a fresh decoder for one response."""
        ...


class Model(Protocol):
    """A model that can be called: its name, its price, its codec and one attempt of a call."""

    name: str
    """Full name, ``anthropic/claude-sonnet-4-5``."""
    price: Price | None
    """None where it is unknown; never taken for free."""
    codec: Codec

    async def attempt(self, body: bytes, emit: Callable[[Delta], None] | None, *, idle_seconds: float) -> Reply:
        """Send ``body`` once and return the whole reply; no retries here.

        ``emit``, where given, is called with each delta as it comes; it must not block. Checkpoints. After a cancel the
        connection is closed and its slot is free.

        Raises:
            ModelError: the attempt failed; its kind says whether another may succeed.
        """
        ...

"""The values of a conversation: what the model reads and what it says.

A conversation is a sequence of ``Message`` values, each a tuple of parts in order. Results of tools are parts of a
user message, as the model reads them. Nothing here knows a provider: codecs in ``models`` turn these into bytes.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, cast

import msgspec

__all__ = [
    "NO_MESSAGES",
    "Message",
    "Part",
    "StopReason",
    "Text",
    "Thinking",
    "ToolCall",
    "ToolResult",
    "ToolSpec",
    "Usage",
    "clean_parts",
    "clean_text",
    "text_of",
]


class Text(msgspec.Struct, frozen=True, gc=False, tag="text", array_like=True):
    """Plain text."""

    text: str


class Thinking(msgspec.Struct, frozen=True, gc=False, tag="thinking", array_like=True):
    """Reasoning the model showed.

    ``signature`` is the provider's proof of it, to be sent back byte for byte to the same model and dropped whole
    for another. ``data`` holds reasoning that the provider encrypted; then ``text`` is empty.
    """

    text: str
    signature: str = ""
    data: str = ""


class ToolCall(msgspec.Struct, frozen=True, gc=False, tag="call", array_like=True):
    """A call the model asked for.

    ``arguments`` is always the text of a JSON object, so that stored history stays valid. Where the model sent
    something else, it is ``{}`` and ``problem`` says what was wrong; such a call never runs.
    """

    id: str
    name: str
    arguments: str
    problem: str = ""


class ToolResult(msgspec.Struct, frozen=True, gc=False, tag="result", array_like=True):
    """The one result of a call."""

    call_id: str
    content: str
    is_error: bool = False


Part: TypeAlias = Text | Thinking | ToolCall | ToolResult
StopReason: TypeAlias = Literal["end", "tool_use", "max_tokens", "pause", "refusal"]


class Message(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One message; ``model`` is the full name of the model that wrote an assistant's."""

    role: Literal["user", "assistant"]
    parts: tuple[Part, ...]
    model: str = ""


NO_MESSAGES = cast("list[Message]", ())
"""No conversation, the same for all who wait without theirs. Never appended to."""


class Usage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Tokens billed, in the four classes that have prices; the classes do not overlap."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            self.input - other.input,
            self.output - other.output,
            self.cache_read - other.cache_read,
            self.cache_write - other.cache_write,
        )


class ToolSpec(msgspec.Struct, frozen=True, gc=False):
    """A tool as the model sees it; ``parameters`` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]


_encode = msgspec.msgpack.Encoder().encode
"""Refuses lone surrogates in all parts at once, quicker than each text would be encoded."""


def clean_text(text: str) -> str:
    """Return ``text`` with surrogate pairs joined and each lone surrogate replaced by U+FFFD.

    Text is cleaned once, where it enters (a paste, a tool's output, a server's reply), so that every store and every
    wire takes it. NUL and all other characters stay.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean_parts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return ``parts`` with every text in them cleaned, as ``clean_text`` does."""
    try:
        _encode(parts)
    except UnicodeEncodeError:
        return tuple([_clean_part(part) for part in parts])
    return parts


def _clean_part(part: Part) -> Part:
    fields = msgspec.structs.asdict(part).items()
    return msgspec.structs.replace(part, **{name: clean_text(each) for name, each in fields if isinstance(each, str)})


def text_of(message: Message) -> str:
    """The message's text parts, joined."""
    parts = message.parts
    if len(parts) == 1 and type(parts[0]) is Text:
        return parts[0].text
    return "".join([part.text for part in parts if isinstance(part, Text)])

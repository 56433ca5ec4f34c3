"""The Messages API of Anthropic, and of every server that speaks it.

Theory of operation
-------------------
Encoding. A request is a head (everything up to the opening bracket of ``messages``), the messages, each encoded once,
and closing bytes. Two cache markers stand in the head, on the last tool and on the system prompt, so that siblings
share both; a third is put on the last block of the last message when the request is joined, by appending to bytes that
are otherwise those of the earlier requests. Blocks that may not carry a marker (thinking) end their message in another
shape, so ``join`` knows them by their last bytes.

Decoding. ``message_start`` brings the usage of the input; then each block has a start, deltas and a stop, by index;
``message_delta`` brings the stop reason and usage so far, in total; ``message_stop`` is the terminal event, and only
it makes a ``Reply``. ``ping`` and events and blocks of unknown types mean nothing. An ``error`` event ends it all.

Sources: https://docs.anthropic.com/en/api/messages, https://docs.anthropic.com/en/docs/build-with-claude/streaming
and https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, assert_never

import msgspec

from ..errors import ModelError
from ..messages import Message, Part, StopReason, Text, Thinking, ToolCall, ToolResult, ToolSpec, Usage, clean_text
from .arguments import make_call, unique_ids
from .model import Delta, Reply
from .payload import decode_payload, error_of, excerpt
from .retry import classify
from .sse import EventParser

__all__ = ["ANTHROPIC_VERSION", "AnthropicCodec", "AnthropicDecoder"]

ANTHROPIC_VERSION = "2023-06-01"
"""The value of the header ``anthropic-version``."""

_PREFIX = "anthropic/"
_MARKER: dict[str, str] = {"type": "ephemeral"}
_MARKABLE_END = b"}]}"
_MARKED_END = b',"cache_control":{"type":"ephemeral"}}]}'
_encode = msgspec.json.Encoder().encode


class AnthropicCodec:
    """Encodes requests and makes decoders; holds no state."""

    __slots__ = ()

    def encode_head(self, model: str, system: str, tools: Sequence[ToolSpec], max_tokens: int) -> bytes:
        """Return the request up to and including ``"messages":[``; ``model`` is the full name or the provider's.

        Tools are sorted by name, so that the same tools in another order give the same bytes.
        """
        head: dict[str, Any] = {"model": model.removeprefix(_PREFIX), "max_tokens": max_tokens, "stream": True}
        if tools:
            described = [_tool(tool) for tool in sorted(tools, key=_name_of)]
            described[-1]["cache_control"] = _MARKER
            head["tools"] = described
        if system.strip():
            head["system"] = [{"type": "text", "text": system, "cache_control": _MARKER}]
        return _encode(head)[:-1] + b',"messages":['

    def encode_message(self, message: Message, model: str) -> bytes:
        """Return one message, or nothing where all its parts are left out.

        Empty text is never sent, unsigned thinking and another model's thinking neither. Results come before text.
        """
        keep_thinking = message.model == model
        results: list[Any] = []
        others: list[Any] = []
        for part in message.parts:
            block = _block(part, keep_thinking=keep_thinking)
            if block is not None:
                (results if isinstance(part, ToolResult) else others).append(block)
        blocks = results + others
        if not blocks:
            return b""
        content = _encode(blocks)
        if blocks[-1]["type"] in ("thinking", "redacted_thinking"):
            return b'{"content":' + content + b',"role":"' + message.role.encode() + b'"}'
        return b'{"role":"' + message.role.encode() + b'","content":' + content + b"}"

    def join(self, head: bytes, messages: Sequence[bytes]) -> bytes:
        """Return the body of a request, with a cache marker on its last block."""
        sent = [message for message in messages if message]
        if sent and sent[-1].endswith(_MARKABLE_END):
            sent[-1] = sent[-1][: -len(_MARKABLE_END)] + _MARKED_END
        return head + b",".join(sent) + b"]}"

    def decoder(self) -> AnthropicDecoder:
        """Return a fresh decoder for one response."""
        return AnthropicDecoder()


_name_of = attrgetter("name")


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def _block(part: Part, *, keep_thinking: bool) -> dict[str, Any] | None:
    match part:
        case Text():
            return {"type": "text", "text": part.text} if part.text.strip() else None
        case Thinking():
            if not keep_thinking:
                return None
            if part.data:
                return {"type": "redacted_thinking", "data": part.data}
            if not part.signature:
                return None
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
        case ToolCall():
            return {
                "type": "tool_use",
                "id": _token(part.id),
                "name": _token(part.name),
                "input": msgspec.Raw(part.arguments.encode()),
            }
        case ToolResult():
            result: dict[str, Any] = {"type": "tool_result", "tool_use_id": _token(part.call_id)}
            if part.content.strip():
                result["content"] = part.content
            elif part.is_error:
                result["content"] = "(an error without a text)"  # an empty one is refused
            if part.is_error:
                result["is_error"] = True
            return result
        case _:
            assert_never(part)


_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")


def _token(text: str) -> str:
    """Return an id or name as the API takes it: other servers and confused models write freer ones."""
    return _REFUSED.sub("_", text)[:128] or "_"


class _UsageFields(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Start(msgspec.Struct):
    id: str | None = None
    usage: _UsageFields | None = None


class _BlockStart(msgspec.Struct):
    type: str = ""
    id: str | None = None
    name: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    input: Any = None


class _Change(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Start | None = None
    content_block: _BlockStart | None = None
    delta: _Change | None = None
    usage: _UsageFields | None = None
    error: Any = None


_events = msgspec.json.Decoder(_Event)

_STOPS: dict[str, StopReason] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "pause_turn": "pause",
    "refusal": "refusal",
}


class _OpenBlock(msgspec.Struct, gc=False):
    """A block as it grows: its first event, and the pieces that followed."""

    start: _BlockStart
    pieces: list[str]
    signature: str = ""


class AnthropicDecoder:
    """The push machine for one response; see the head of this file."""

    __slots__ = ("_blocks", "_finished", "_parser", "_reply_id", "_stop", "_usage")

    def __init__(self) -> None:
        self._parser = EventParser()
        self._blocks: dict[int, _OpenBlock] = {}
        self._usage: Usage | None = None
        self._stop = ""
        self._reply_id = ""
        self._finished = False

    def receive_data(self, chunk: bytes) -> list[Delta | Reply]:
        """Take any cut of the body; return what it completed. What follows the terminal event is passed over.

        Raises:
            ModelError: an error event, or bytes that break the format.
        """
        out: list[Delta | Reply] = []
        for _, data in self._parser.receive_data(chunk):
            if self._finished:
                break
            if data.strip():
                self._take(decode_payload(_events, data, self._usage), data, out)
        return out

    def receive_eof(self) -> None:
        """The body ended.

        Raises:
            ModelError: (transient, with the usage seen so far) ``message_stop`` did not come.
        """
        if not self._finished:
            raise ModelError(
                "the server's answer stopped before its end (no message_stop); the part that came is dropped",
                kind="transient",
                usage=self._usage,
            )

    def _take(self, event: _Event, data: bytes, out: list[Delta | Reply]) -> None:
        match event.type:
            case "content_block_delta" if event.delta is not None:
                self._grow(event.index, event.delta, out)
            case "content_block_start" if event.content_block is not None:
                self._open(event.index, event.content_block, out)
            case "message_start" if event.message is not None:
                self._reply_id = event.message.id or ""
                self._count(event.message.usage)
            case "message_delta":
                if event.delta is not None and event.delta.stop_reason:
                    self._stop = event.delta.stop_reason
                self._count(event.usage)
            case "message_stop":
                self._finished = True
                out.append(self._reply())
            case "error":
                raise self._error(event.error, data)
            case _ if event.error is not None:
                raise self._error(event.error, data)
            case _:
                pass  # ping, content_block_stop, and what later versions of the API may add

    def _open(self, index: int, start: _BlockStart, out: list[Delta | Reply]) -> None:
        self._blocks[index] = _OpenBlock(start, [], start.signature or "")
        if start.type == "tool_use":
            out.append(Delta("call", clean_text(start.name or "")))
        elif start.type == "text" and start.text:
            self._blocks[index].pieces.append(start.text)
            out.append(Delta("text", clean_text(start.text)))
        elif start.type == "thinking" and start.thinking:
            self._blocks[index].pieces.append(start.thinking)
            out.append(Delta("thinking", clean_text(start.thinking)))

    def _grow(self, index: int, change: _Change, out: list[Delta | Reply]) -> None:
        block = self._blocks.get(index)
        if block is None:
            raise ModelError(
                f"the server broke the format of its stream: a piece of block {index}, which never began",
                kind="transient",
                usage=self._usage,
            )
        if change.text is not None:
            block.pieces.append(change.text)
            out.append(Delta("text", clean_text(change.text)))
        elif change.partial_json is not None:
            block.pieces.append(change.partial_json)
        elif change.thinking is not None:
            block.pieces.append(change.thinking)
            out.append(Delta("thinking", clean_text(change.thinking)))
        elif change.signature is not None:
            block.signature += change.signature

    def _count(self, fields: _UsageFields | None) -> None:
        if fields is None:
            return
        # Every figure is a total so far; proxies send zeros where they have nothing new to say.
        seen = self._usage or Usage()
        self._usage = Usage(
            max(seen.input, fields.input_tokens or 0),
            max(seen.output, fields.output_tokens or 0),
            max(seen.cache_read, fields.cache_read_input_tokens or 0),
            max(seen.cache_write, fields.cache_creation_input_tokens or 0),
        )

    def _reply(self) -> Reply:
        cut = self._stop in ("max_tokens", "model_context_window_exceeded")
        last = max(self._blocks, default=-1)
        parts = [_part(self._blocks[index], cut=cut and index == last) for index in sorted(self._blocks)]
        calls = iter(unique_ids([part for part in parts if isinstance(part, ToolCall)], self._reply_id))
        whole = tuple(next(calls) if isinstance(part, ToolCall) else part for part in parts if part is not None)
        called = any(isinstance(part, ToolCall) for part in whole)
        stop = _STOPS.get(self._stop, "end")
        if called and stop == "end":
            stop = "tool_use"
        elif stop == "tool_use" and not called:
            stop = "end"
        return Reply(whole, stop, self._usage or Usage())

    def _error(self, error: Any, data: bytes) -> ModelError:
        name, message = error_of({"error": error})
        return ModelError(
            f"the server reported an error in the middle of its answer: {excerpt(message or name or data)}",
            kind=classify(0, name, message),
            usage=self._usage,
        )


def _part(block: _OpenBlock, *, cut: bool) -> Part | None:
    start = block.start
    text = "".join(block.pieces)
    match start.type:
        case "text":
            return Text(clean_text(text)) if text else None
        case "thinking":
            return Thinking(clean_text(text), block.signature) if text or block.signature else None
        case "redacted_thinking":
            return Thinking("", "", start.data) if start.data else None
        case "tool_use":
            if not text and start.input:  # some servers send the whole input with the start
                text = msgspec.json.encode(start.input).decode()
            return make_call(start.id or "", start.name or "", text, cut=cut)
        case _:
            return None

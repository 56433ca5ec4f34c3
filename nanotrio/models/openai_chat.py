"""The Chat Completions API of OpenAI, and of the many servers that are compatible with it.

Theory of operation
-------------------
Encoding. The system prompt is the first message, so it is part of the head. A user message that holds results of
tools becomes one ``tool`` message a result, then its text. The provider caches prefixes by itself, so there are no
markers: a request is the bytes of the one before, and more.

Decoding. Every event is a chunk with the same shape: a piece of text, of reasoning, of calls (by index), a finish
reason, usage; and compatible servers differ in which of these they leave out, so each is read on its own. The reply is
whole when ``[DONE]`` comes, or when both a finish reason and the usage after it have been seen: usage may share the
last content chunk or follow in a chunk without choices. A finish reason alone is not the end, since the bill is not in.

Sources: https://platform.openai.com/docs/api-reference/chat, and for reasoning in compatible servers
https://api-docs.deepseek.com/guides/reasoning_model (``reasoning_content``) and
https://openrouter.ai/docs/use-cases/reasoning-tokens (``reasoning``).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec

from ..errors import ModelError
from ..messages import Message, Part, StopReason, Text, Thinking, ToolCall, ToolResult, ToolSpec, Usage, clean_text
from .arguments import make_call, unique_ids
from .model import Delta, Reply
from .payload import decode_payload, error_of, excerpt
from .retry import classify
from .sse import EventParser

__all__ = ["OpenAIChatCodec", "OpenAIChatDecoder"]

_PREFIX = "openai-chat/"
_encode = msgspec.json.Encoder().encode


class OpenAIChatCodec:
    """Encodes requests and makes decoders.

    ``limit_field`` is the name of the bound on output: OpenAI's newer models take only ``max_completion_tokens``,
    most compatible servers know only ``max_tokens``.
    """

    __slots__ = ("_limit_field",)

    def __init__(self, *, limit_field: str = "max_completion_tokens") -> None:
        self._limit_field = limit_field

    def encode_head(self, model: str, system: str, tools: Sequence[ToolSpec], max_tokens: int) -> bytes:
        """Return the request up to the end of the system message; ``model`` is the full name or the provider's.

        Tools are sorted by name, so that the same tools in another order give the same bytes.
        """
        head: dict[str, Any] = {
            "model": model.removeprefix(_PREFIX),
            self._limit_field: max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if tools:
            head["tools"] = [_tool(tool) for tool in sorted(tools, key=_name_of)]
        opening = b',"messages":['
        if system:
            opening += _encode({"role": "system", "content": system})
        return _encode(head)[:-1] + opening

    def encode_message(self, message: Message, model: str) -> bytes:
        """Return one message, several joined by commas, or nothing where all its parts are left out."""
        if message.role == "assistant":
            return _assistant(message, keep_thinking=message.model == model)
        sent = [_result(part) for part in message.parts if isinstance(part, ToolResult)]
        text = "\n\n".join(part.text for part in message.parts if isinstance(part, Text) and part.text)
        if text:
            sent.append(_encode({"role": "user", "content": text}))
        return b",".join(sent)

    def join(self, head: bytes, messages: Sequence[bytes]) -> bytes:
        """Return the body of a request."""
        sent = b",".join([message for message in messages if message])
        comma = b"," if sent and not head.endswith(b"[") else b""
        return head + comma + sent + b"]}"

    def decoder(self) -> OpenAIChatDecoder:
        """Return a fresh decoder for one response."""
        return OpenAIChatDecoder()


_name_of = attrgetter("name")


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


_MAX_ID = 40
_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")


def _call_id(call_id: str) -> str:
    """Return an id as the API takes it, alike for a call and its result: other servers write longer ones."""
    if len(call_id) <= _MAX_ID:
        return call_id
    return "call_" + hashlib.blake2b(call_id.encode(), digest_size=16).hexdigest()


def _result(result: ToolResult) -> bytes:
    # There is no mark for an error, and some servers refuse empty content.
    content = result.content or "(no output)"
    if result.is_error and content[:5].lower() != "error":
        content = f"Error: {content}"
    return _encode({"role": "tool", "tool_call_id": _call_id(result.call_id), "content": content})


def _assistant(message: Message, *, keep_thinking: bool) -> bytes:
    text = "".join(part.text for part in message.parts if isinstance(part, Text))
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    sent: dict[str, Any] = {"role": "assistant"}
    if text:
        sent["content"] = text
    if calls:
        if not text:
            sent["content"] = None
        # Models that reason between calls want their reasoning back in the loop, and refuse or ignore it elsewhere.
        thinking = "".join(part.text for part in message.parts if isinstance(part, Thinking)) if keep_thinking else ""
        if thinking:
            sent["reasoning_content"] = thinking
        sent["tool_calls"] = [
            {
                "id": _call_id(call.id),
                "type": "function",
                "function": {"name": _REFUSED.sub("_", call.name)[:64] or "_", "arguments": call.arguments},
            }
            for call in calls
        ]
    return _encode(sent) if text or calls else b""


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _UsageFields(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    prompt_cache_hit_tokens: int | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class _CallPiece(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Change(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_CallPiece] | None = None


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Change | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    id: str | None = None
    choices: list[_Choice] | None = None
    usage: _UsageFields | None = None
    error: Any = None


_chunks = msgspec.json.Decoder(_Chunk)

_STOPS: dict[str, StopReason] = {
    "stop": "end",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}


class _OpenCall(msgspec.Struct, gc=False):
    """A call as it grows."""

    index: int | None
    id: str
    name: str
    pieces: list[str]


class OpenAIChatDecoder:
    """The push machine for one response; see the head of this file."""

    __slots__ = (
        "_calls",
        "_finish",
        "_finished",
        "_parser",
        "_refused",
        "_reply_id",
        "_text",
        "_thinking",
        "_usage",
    )

    def __init__(self) -> None:
        self._parser = EventParser()
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[_OpenCall] = []
        self._usage: Usage | None = None
        self._finish = ""
        self._refused = False
        self._reply_id = ""
        self._finished = False

    def receive_data(self, chunk: bytes) -> list[Delta | Reply]:
        """Take any cut of the body; return what it completed. What follows the whole reply is passed over.

        Raises:
            ModelError: an error in the stream, or bytes that break the format.
        """
        out: list[Delta | Reply] = []
        for _, data in self._parser.receive_data(chunk):
            data = data.strip()  # noqa: PLW2901 - the same data without the blanks around it
            if self._finished:
                break
            if data == b"[DONE]":
                self._take_done(out)
            elif data:
                self._take(decode_payload(_chunks, data, self._usage), data, out)
        return out

    def receive_eof(self) -> None:
        """The body ended.

        Raises:
            ModelError: (transient, with the usage seen so far) neither ``[DONE]`` nor the usage of a finished answer
                came.
        """
        if not self._finished:
            raise ModelError(
                "the server's answer stopped before its end (no [DONE]); the part that came is dropped",
                kind="transient",
                usage=self._usage,
            )

    def _take_done(self, out: list[Delta | Reply]) -> None:
        if not self._finish:
            raise ModelError(
                "the server ended its answer without a finish reason; the part that came is dropped",
                kind="transient",
                usage=self._usage,
            )
        self._finished = True
        out.append(self._reply())

    def _take(self, chunk: _Chunk, data: bytes, out: list[Delta | Reply]) -> None:
        if chunk.error is not None:
            name, message = error_of({"error": chunk.error})
            raise ModelError(
                f"the server reported an error in the middle of its answer: {excerpt(message or name or data)}",
                kind=classify(0, name, message),
                usage=self._usage,
            )
        if chunk.id and not self._reply_id:
            self._reply_id = chunk.id
        for choice in chunk.choices or ():
            if choice.index:
                continue  # one answer was asked for
            if choice.delta is not None:
                self._grow(choice.delta, out)
            if choice.finish_reason:
                self._finish = choice.finish_reason
        if chunk.usage is not None:
            self._usage = _usage(chunk.usage)
            if self._finish:
                self._finished = True
                out.append(self._reply())

    def _grow(self, change: _Change, out: list[Delta | Reply]) -> None:
        thinking = change.reasoning_content or change.reasoning
        if thinking:
            self._thinking.append(thinking)
            out.append(Delta("thinking", clean_text(thinking)))
        if change.content:
            self._text.append(change.content)
            out.append(Delta("text", clean_text(change.content)))
        if change.refusal:
            self._refused = True
            self._text.append(change.refusal)
            out.append(Delta("text", clean_text(change.refusal)))
        for piece in change.tool_calls or ():
            self._grow_call(piece, out)

    def _grow_call(self, piece: _CallPiece, out: list[Delta | Reply]) -> None:
        function = piece.function or _Function()
        call = self._find_call(piece, named=bool(function.name))
        if call is None:
            call = _OpenCall(piece.index, piece.id or "", "", [])
            self._calls.append(call)
        if not call.id and piece.id:
            call.id = piece.id
        if function.name and not call.name:
            call.name = function.name
            out.append(Delta("call", clean_text(function.name)))
        if isinstance(function.arguments, str):
            call.pieces.append(function.arguments)
        elif function.arguments is not None:  # some servers send the object itself
            call.pieces.append(msgspec.json.encode(function.arguments).decode())

    def _find_call(self, piece: _CallPiece, *, named: bool) -> _OpenCall | None:
        """The call that ``piece`` continues. Some servers leave out the index, or give each call the same."""
        for call in reversed(self._calls):
            if piece.index is None or call.index == piece.index:
                begins_another = named and bool(piece.id) and bool(call.id) and piece.id != call.id
                if begins_another or (piece.index is None and named and bool(call.name) and not piece.id):
                    return None
                return call
        return None

    def _reply(self) -> Reply:
        cut = self._finish == "length"
        parts: list[Part] = []
        if self._thinking:
            parts.append(Thinking(clean_text("".join(self._thinking))))
        if self._text:
            parts.append(Text(clean_text("".join(self._text))))
        last = self._calls[-1] if self._calls else None
        calls = [make_call(call.id, call.name, "".join(call.pieces), cut=cut and call is last) for call in self._calls]
        parts += unique_ids(calls, self._reply_id)
        stop = _STOPS.get(self._finish, "end")
        if self._refused:
            stop = "refusal"
        elif calls and stop == "end":
            stop = "tool_use"
        elif stop == "tool_use" and not calls:
            stop = "end"
        return Reply(tuple(parts), stop, self._usage or Usage())


def _usage(fields: _UsageFields) -> Usage:
    """The four classes from totals: the prompt counts cached tokens in, the completion counts reasoning in."""
    details = fields.prompt_tokens_details or _PromptDetails()
    prompt = fields.prompt_tokens or 0
    read = min(prompt, details.cached_tokens or fields.prompt_cache_hit_tokens or 0)
    written = min(prompt - read, details.cache_write_tokens or 0)
    return Usage(prompt - read - written, fields.completion_tokens or 0, read, written)

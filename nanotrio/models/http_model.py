"""A model behind HTTP: a codec, an address and headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from ..errors import ModelError
from ..messages import Part, Text, Thinking, ToolCall, Usage
from .model import Codec, Decoder, Delta, Price, Reply
from .payload import error_of, excerpt
from .retry import classify, retry_after_seconds
from .transport import Answer, Client, now_unix, post

__all__ = ["MAX_RESPONSE_BYTES", "HttpModel"]

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Bytes of one response; a server that sends more is cut off."""

_MAX_ERROR_BYTES = 65_536
_ERROR_SECONDS = 10.0
_DRAIN_SECONDS = 0.05
_OK = 200


class HttpModel:
    """A ``Model`` whose attempts are streamed POST requests.

    ``headers`` are sent as they are. ``secrets`` are values, each with the name that stands for it, that never
    appear in an error, even where the server repeats them. ``advice`` is what a person may do about a kind of error.
    """

    __slots__ = ("_advice", "_client", "_headers", "_secrets", "_url", "codec", "name", "price")

    def __init__(
        self,
        name: str,
        *,
        codec: Codec,
        client: Client,
        url: str,
        headers: Mapping[str, str],
        price: Price | None,
        secrets: Mapping[str, str] | None = None,
        advice: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.codec: Codec = codec
        self.price = price
        self._client = client
        self._url = url
        self._headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "accept-encoding": "identity",
            "user-agent": "nanotrio",
            **headers,
        }
        self._secrets = dict(secrets or {})
        self._advice = dict(advice or {})

    def __repr__(self) -> str:
        return f"<HttpModel {self.name}>"

    async def attempt(self, body: bytes, emit: Callable[[Delta], None] | None, *, idle_seconds: float) -> Reply:
        """Send ``body`` once and return the whole reply; see ``model.Model``.

        ``idle_seconds`` bounds each silence of the server; comments in the stream end a silence. Where the server
        tells no usage at all, it is estimated from the sizes of request and reply, three bytes a token.
        """
        decoder = self.codec.decoder()
        try:
            async with post(self._client, self._url, self._headers, body, idle_seconds=idle_seconds) as answer:
                if answer.status != _OK or "json" in answer.headers.get("content-type", ""):
                    raise await self._refusal(answer)
                reply = await self._read(answer, decoder, emit)
        except ModelError as error:
            raise self._told(error, _usage_seen(decoder)) from error.__cause__
        if reply.usage == Usage():
            return Reply(reply.parts, reply.stop, _estimate(body, reply))
        return reply

    async def _read(self, answer: Answer, decoder: Decoder, emit: Callable[[Delta], None] | None) -> Reply:
        size = 0
        async for chunk in answer.chunks:
            size += len(chunk)
            if size > MAX_RESPONSE_BYTES:
                raise ModelError(
                    f"the server sent more than {MAX_RESPONSE_BYTES} bytes; it was cut off", kind="rejected"
                )
            for event in decoder.receive_data(chunk):
                if isinstance(event, Reply):
                    await answer.drain(_DRAIN_SECONDS)
                    return event
                if emit is not None:
                    emit(event)
        decoder.receive_eof()
        raise ModelError("the server's answer ended without a reply", kind="transient")

    async def _refusal(self, answer: Answer) -> ModelError:
        """The error that a response without a stream stands for."""
        data = self._redacted((await answer.read(_MAX_ERROR_BYTES, _ERROR_SECONDS)).decode(errors="replace"))
        try:
            name, message = error_of(msgspec.json.decode(data))
        except (msgspec.DecodeError, RecursionError):
            name, message = "", ""
        if answer.status == _OK and not (name or message):
            return ModelError(
                f"the server answered with one JSON document where a stream was asked for: {excerpt(data)}",
                kind="rejected",
                status=_OK,
            )
        status = 0 if answer.status == _OK else answer.status
        words = excerpt(message or data) or name or "without a reason"
        return ModelError(
            f"the server answered {answer.status}: {words}",
            kind=classify(status, name, message),
            status=answer.status,
            retry_after_seconds=retry_after_seconds(answer.headers, now_unix()),
        )

    def _redacted(self, text: str) -> str:
        for secret, label in self._secrets.items():
            text = text.replace(secret, f"[{label}]")
        return text

    def _told(self, error: ModelError, usage: object) -> ModelError:
        """``error`` as a person is to read it: the model named, secrets out, advice added."""
        text = self._redacted(str(error))
        advice = self._advice.get(error.kind)
        return ModelError(
            f"{self.name}: {text}" + (f"; {advice}" if advice else ""),
            kind=error.kind,
            status=error.status,
            retry_after_seconds=error.retry_after_seconds,
            usage=usage if error.usage is None else error.usage,
        )


def _usage_seen(decoder: Decoder) -> object:
    """What the part of a reply that came has cost: a decoder tells it when it is cut off."""
    try:
        decoder.receive_eof()
    except ModelError as error:
        return error.usage
    return None


def _estimate(body: bytes, reply: Reply) -> Usage:
    return Usage(len(body) // 3 + 1, sum(_size(part) for part in reply.parts) // 3 + 1)


def _size(part: Part) -> int:
    match part:
        case Text() | Thinking():
            return len(part.text.encode())
        case ToolCall():
            return len(part.name.encode()) + len(part.arguments.encode())
        case _:
            return 0

"""Streams in the providers' documented forms, and ways of cutting them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import h11
import pytest
import trio

from nanotrio.errors import ModelError
from nanotrio.models import Decoder, Delta, Reply


def _events(*documents: dict[str, Any], named: bool) -> bytes:
    lines = []
    for document in documents:
        if named:
            lines.append(f"event: {document['type']}\n")
        lines.append(f"data: {json.dumps(document, ensure_ascii=False)}\n\n")
    return "".join(lines).encode()


@pytest.fixture(scope="session")
def anthropic_stream() -> Callable[..., bytes]:
    """Builds the bytes of a Messages stream from its events."""
    return lambda *documents: _events(*documents, named=True)


@pytest.fixture(scope="session")
def openai_stream() -> Callable[..., bytes]:
    """Builds the bytes of a Chat Completions stream from its chunks, ``[DONE]`` left out."""
    return lambda *documents: _events(*documents, named=False)


def _decode(decoder: Decoder, chunks: Iterable[bytes]) -> tuple[list[Delta], Reply]:
    deltas: list[Delta] = []
    replies: list[Reply] = []
    for chunk in chunks:
        for item in decoder.receive_data(chunk):
            if isinstance(item, Reply):
                replies.append(item)
            else:
                assert not replies, "a delta came after the reply"
                deltas.append(item)
    decoder.receive_eof()
    (reply,) = replies
    return deltas, reply


@pytest.fixture(scope="session")
def decode() -> Callable[[Decoder, Iterable[bytes]], tuple[list[Delta], Reply]]:
    """Feeds chunks and the end to a decoder; returns its deltas and its one reply."""
    return _decode


@pytest.fixture(scope="session")
def decode_every_way() -> Callable[[Callable[[], Decoder], bytes], tuple[list[Delta], Reply]]:
    """Decodes a body whole, byte by byte and cut in two at every offset, and checks that all agree."""

    def run(make: Callable[[], Decoder], body: bytes) -> tuple[list[Delta], Reply]:
        whole = _decode(make(), [body])
        assert _decode(make(), [body[i : i + 1] for i in range(len(body))]) == whole
        for cut in range(len(body) + 1):
            assert _decode(make(), [body[:cut], body[cut:]]) == whole
        return whole

    return run


@pytest.fixture(scope="session")
def truncate_every_way() -> Callable[[Callable[[], Decoder], bytes], list[ModelError | None]]:
    """Ends a body at every offset; returns the error of each, None where the reply was whole already."""

    def run(make: Callable[[], Decoder], body: bytes) -> list[ModelError | None]:
        outcomes: list[ModelError | None] = []
        for end in range(len(body) + 1):
            try:
                _decode(make(), [body[:end]])
            except ModelError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    return run


class Served:
    """A request that arrived, and the stream to answer it on with raw bytes."""

    def __init__(self, stream: trio.abc.Stream, request: h11.Request, body: bytes) -> None:
        self.stream = stream
        self.target = bytes(request.target).decode()
        self.headers = {bytes(name).decode(): bytes(value).decode() for name, value in request.headers}
        self.body = body

    async def send(self, data: bytes) -> None:
        """Send raw bytes."""
        await self.stream.send_all(data)

    async def answer(self, body: bytes, *, status: int = 200, kind: str = "text/event-stream", more: str = "") -> None:
        """Send a whole response, its body in one chunk."""
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n{more}\r\n"
        chunk = f"{len(body):x}\r\n".encode() + body + b"\r\n" if body else b""
        await self.send(head.encode() + chunk + b"0\r\n\r\n")


Handler = Callable[[Served], Awaitable[None]]


class Server:
    """A loopback server; counts the connections that came."""

    def __init__(self, handler: Handler) -> None:
        self.connections = 0
        self.requests: list[Served] = []
        self.port = 0
        self._handler = handler

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def serve_connection(self, stream: trio.abc.Stream) -> None:
        """Answer requests on one connection until either side ends it."""
        self.connections += 1
        await trio.lowlevel.checkpoint()
        try:
            while True:
                machine = h11.Connection(h11.SERVER)
                request: h11.Request | None = None
                body = b""
                while True:
                    event = machine.next_event()
                    if event is h11.NEED_DATA:
                        data = await stream.receive_some(65536)
                        if not data:
                            return
                        machine.receive_data(bytes(data))
                    elif isinstance(event, h11.Request):
                        request = event
                    elif isinstance(event, h11.Data):
                        body += bytes(event.data)
                    else:
                        break
                assert request is not None
                served = Served(stream, request, body)
                self.requests.append(served)
                await self._handler(served)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


@asynccontextmanager
async def _serve(handler: Handler, ssl_context: Any = None) -> AsyncIterator[Server]:
    server = Server(handler)
    async with trio.open_nursery() as nursery:
        if ssl_context is None:
            listeners = await nursery.start(trio.serve_tcp, server.serve_connection, 0)
        else:
            serve = trio.serve_ssl_over_tcp
            listeners = await nursery.start(lambda **k: serve(server.serve_connection, 0, ssl_context, **k))
        server.port = (listeners[0].transport_listener if ssl_context else listeners[0]).socket.getsockname()[1]
        yield server
        nursery.cancel_scope.cancel()


@pytest.fixture(scope="session")
def serve() -> Callable[..., Any]:
    """An async context manager: a loopback server whose handler answers each request with raw bytes."""
    return _serve

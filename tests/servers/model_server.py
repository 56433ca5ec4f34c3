"""A strict model server on loopback: Anthropic Messages and OpenAI Chat Completions, with a brain of the test's choice.

In a test's own Trio program::

    async with open_model_server(brain) as server:
        ...  # server.environment() for the command, server.requests and server.refusals afterwards

As a process of its own, that outlives a killed client::

    python -m tests.servers.model_server --brain job --log requests.jsonl

It prints one JSON object with its address, and serves until it is terminated.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import h11
import trio

from . import anthropic, openai_chat
from .conversation import Brain, Conversation, Fault, Reply, Tokens, WireRefusal
from .memory import Issued, Memory
from .request_log import RequestLog, Seen

__all__ = ["BRAINS", "KEY", "ModelServer", "environment_for", "load_brain", "open_model_server"]

KEY = "test-key-0123456789"
"""The key that every server accepts unless told otherwise; long enough to be replaced where it must not show."""

BRAINS = {
    "job": "tests.job.brain:think",
    "echo": "tests.servers.brains:echo",
    "sleepers": "tests.servers.brains:sleepers",
    "terminal": "tests.servers.brains:terminal",
}
"""Short names of brains, for the command line."""

_MAX_BODY_BYTES = 32 * 1024 * 1024
_READ_BYTES = 65_536
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


class ModelServer:
    """A running server. Made by ``open_model_server``."""

    def __init__(self, brain: Brain, *, key: str, latency_seconds: float, log: RequestLog, port: int = 0) -> None:
        self.brain = brain
        self.key = key
        self.latency_seconds = latency_seconds
        self.port = port
        self.connections = 0
        """Connections accepted so far."""
        self._log = log
        self._memory = Memory()
        self._stamp = os.urandom(4).hex()

    @property
    def url(self) -> str:
        """The address without a path, as ``ANTHROPIC_BASE_URL`` has it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[Seen]:
        """Every request so far, in the order they came in whole."""
        return self._log.requests

    @property
    def refusals(self) -> list[Seen]:
        """The requests that were answered by 4xx because they broke a rule, and those on which the brain failed."""
        return [seen for seen in self._log.requests if seen.problem]

    def environment(self) -> dict[str, str]:
        """Variables that point a client at this server."""
        return environment_for(self.url, self.key)

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection until either side is done with it."""
        self.connections += 1
        connection = _Connection(stream)
        try:
            async with stream:
                while (request := await connection.next_request()) is not None:
                    await self._respond(connection, *request)
                    if not connection.start_next():
                        return
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            return  # the client went away, which clients may do at any time

    async def _respond(self, connection: _Connection, request: h11.Request, body: bytes) -> None:
        path = request.target.decode("ascii", "replace").partition("?")[0]
        seen = self._log.see(path, body)
        wire = openai_chat if path == "/v1/chat/completions" else anthropic
        try:
            conversation, decoded = self._read(request, path, body)
        except WireRefusal as refusal:
            self._log.decide(seen, refusal.status, str(refusal))
            await connection.send_body(refusal.status, wire.error_body(refusal.kind, str(refusal)))
            self._log.answer(seen)
            return
        try:
            answer = self.brain(conversation)
        except Exception:  # noqa: BLE001 - the test reads it from the log; the client sees an ordinary 500
            self._log.decide(seen, 500, traceback.format_exc())
            await connection.send_body(500, wire.error_body("api_error", "the brain failed"))
            return
        stream = bool(decoded.get("stream", False))
        usage_wanted = bool((decoded.get("stream_options") or {}).get("include_usage", False))
        if isinstance(answer, Fault) and answer.kind == "status":
            self._log.decide(seen, answer.status)
            kind = _KINDS.get(answer.status, "api_error")
            await trio.sleep(self.latency_seconds)
            await connection.send_body(answer.status, wire.error_body(kind, answer.message), answer.headers)
        else:
            self._log.decide(seen, 200)
            reply = answer.reply if isinstance(answer, Fault) else answer
            pieces = self._pieces(reply, conversation, seen, stream=stream, usage_wanted=usage_wanted)
            await trio.sleep(self.latency_seconds + reply.delay_seconds)
            await self._send(connection, answer, pieces, conversation.wire, stream=stream)
        self._log.answer(seen)

    async def _send(
        self, connection: _Connection, answer: Reply | Fault, pieces: Iterator[bytes], wire: str, *, stream: bool
    ) -> None:
        if isinstance(answer, Fault):
            error = (openai_chat if wire == "openai-chat" else anthropic).error_event(
                "overloaded_error", answer.message
            )
            await connection.send_faulty(answer, b"".join(pieces), error, stream=stream)
        elif stream:
            await connection.send_stream(pieces, answer.pause_seconds)
        else:
            await connection.send_body(200, b"".join(pieces))

    def _read(self, request: h11.Request, path: str, body: bytes) -> tuple[Conversation, dict[str, object]]:
        headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
        if path not in ("/v1/messages", "/v1/chat/completions"):
            raise WireRefusal(f"no such path: {path}", status=404, kind="not_found_error")
        if request.method != b"POST":
            raise WireRefusal(f"Method Not Allowed: {request.method!r}", status=405)
        is_openai = path == "/v1/chat/completions"
        given = headers.get("authorization", "") if is_openai else headers.get("x-api-key", "")
        if given != (f"Bearer {self.key}" if is_openai else self.key):
            message = (
                "Incorrect API key provided."
                if is_openai
                else ("invalid x-api-key" if given else "x-api-key header is required")
            )
            raise WireRefusal(message, status=401, kind="authentication_error")
        if not is_openai and "anthropic-version" not in headers:
            raise WireRefusal("anthropic-version: header is required")
        if "json" not in headers.get("content-type", ""):
            raise WireRefusal("content-type: must be application/json")
        if len(body) > _MAX_BODY_BYTES:
            raise WireRefusal("Request exceeds the maximum size", status=413, kind="request_too_large")
        try:
            decoded = json.loads(body)
        except ValueError as error:
            raise WireRefusal(f"the body is not JSON: {error}") from None
        conversation = (openai_chat if is_openai else anthropic).read(decoded, self._memory)
        if conversation.model.startswith("unknown"):
            raise WireRefusal(f"model: {conversation.model}", status=404, kind="not_found_error")
        attempt = self._log.attempt(body)
        return (conversation if not attempt else _again(conversation, attempt)), decoded

    def _pieces(
        self, reply: Reply, conversation: Conversation, seen: Seen, *, stream: bool, usage_wanted: bool
    ) -> Iterator[bytes]:
        tokens = reply.usage or Tokens(
            input=max(1, len(seen.body) // 4), output=max(1, len(repr(reply.calls) + reply.text) // 4)
        )
        prefix = "call" if conversation.wire == "openai-chat" else "toolu"
        ids = tuple(f"{prefix}_{self._stamp}{seen.number:06x}{index:02x}" for index in range(len(reply.calls)))
        for call_id, ask in zip(ids, reply.calls, strict=True):
            arguments = ask.arguments if isinstance(ask.arguments, dict) else None
            has_thinking = bool(reply.thinking) and conversation.wire == "anthropic"
            self._memory.issue(call_id, Issued(ask.name, arguments, conversation.model, has_thinking))
        common = (reply, ids, conversation.model, tokens, self._memory)
        if conversation.wire == "anthropic":
            name = f"msg_{self._stamp}{seen.number:06x}"
            return anthropic.reply_events(*common, name) if stream else iter((anthropic.reply_body(*common, name),))
        name = f"chatcmpl-{self._stamp}{seen.number:06x}"
        if stream:
            return openai_chat.reply_events(*common, name, with_usage=usage_wanted)
        return iter((openai_chat.reply_body(*common, name),))


def _again(conversation: Conversation, attempt: int) -> Conversation:
    fields = {name: getattr(conversation, name) for name in conversation.__struct_fields__}
    return Conversation(**{**fields, "attempt": attempt})


def environment_for(url: str, key: str = KEY) -> dict[str, str]:
    """Variables that point a client at the server at ``url``."""
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": key,
    }


class _Connection:
    """One HTTP/1.1 connection as a server sees it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER)

    async def next_request(self) -> tuple[h11.Request, bytes] | None:
        """Return the next request with its body, None when the client is done."""
        request: h11.Request | None = None
        body: list[bytes] = []
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    await self._send(h11.InformationalResponse(status_code=100, headers=[]))
                self._http.receive_data(await self._stream.receive_some(_READ_BYTES))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                return request, b"".join(body)
            else:
                return None

    def start_next(self) -> bool:
        """Make ready for another request; False when this connection carries no more."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    async def send_body(self, status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> None:
        """Answer with a whole JSON body."""
        fixed = [("content-type", "application/json"), ("content-length", str(len(body))), *headers]
        await self._send(h11.Response(status_code=status, headers=fixed))
        await self._send(h11.Data(data=body))
        await self._send(h11.EndOfMessage())

    async def send_stream(self, pieces: Iterator[bytes], pause_seconds: float) -> None:
        """Answer with server-sent events, each in a write of its own where a pause is asked for."""
        await self._begin(stream=True)
        if not pause_seconds:
            await self._send(h11.Data(data=b"".join(pieces)))
        else:
            for piece in pieces:
                await self._send(h11.Data(data=piece))
                await trio.sleep(pause_seconds)
        await self._send(h11.EndOfMessage())

    async def send_faulty(self, fault: Fault, whole: bytes, error: bytes, *, stream: bool) -> None:
        """Answer with a part of ``whole``, and then with what the fault says."""
        await self._begin(stream=stream)
        await self._send(h11.Data(data=whole[: fault.after_bytes]))
        match fault.kind:
            case "reset":
                # Linger on with zero seconds: close() sends RST, and the client loses what it has not read yet.
                self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raise trio.BrokenResourceError
            case "stall":
                await trio.sleep(fault.seconds)
                await self._send(h11.Data(data=whole[fault.after_bytes :]))
            case "error":
                await self._send(h11.Data(data=error))
            case _:
                pass
        await self._send(h11.EndOfMessage())

    async def _begin(self, *, stream: bool) -> None:
        kind = "text/event-stream; charset=utf-8" if stream else "application/json"
        headers = [("content-type", kind), ("cache-control", "no-cache"), ("transfer-encoding", "chunked")]
        await self._send(h11.Response(status_code=200, headers=headers))

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            await self._stream.send_all(data)


@asynccontextmanager
async def open_model_server(
    brain: Brain, *, key: str = KEY, port: int = 0, latency_seconds: float = 0.0, log: Path | None = None
) -> AsyncIterator[ModelServer]:
    """Serve ``brain`` on loopback while the block runs."""
    listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
    request_log = RequestLog(log)
    server = ModelServer(
        brain,
        key=key,
        latency_seconds=latency_seconds,
        log=request_log,
        port=listeners[0].socket.getsockname()[1],
    )
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, server.serve, listeners)
            try:
                yield server
            finally:
                nursery.cancel_scope.cancel()
    finally:
        request_log.close()


def load_brain(name: str) -> Brain:
    """Return the brain of a short name, or of ``module:attribute``."""
    module, _, attribute = BRAINS.get(name, name).partition(":")
    brain: Brain = getattr(importlib.import_module(module), attribute)
    return brain


async def _serve_until_terminated(arguments: argparse.Namespace) -> None:
    log = None if arguments.log is None else Path(arguments.log)
    brain = load_brain(arguments.brain)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with open_model_server(
            brain, key=arguments.key, port=arguments.port, latency_seconds=arguments.latency, log=log
        ) as server:
            sys.stdout.write(json.dumps({"url": server.url, "pid": os.getpid()}) + "\n")
            sys.stdout.flush()
            async for _ in signals:
                return


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="A strict model server for tests.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--brain", default="echo", help=f"one of {', '.join(BRAINS)}, or MODULE:ATTRIBUTE")
    parser.add_argument("--log", default=None, help="a file that gets three JSON lines for each request")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--key", default=KEY)
    trio.run(_serve_until_terminated, parser.parse_args())


if __name__ == "__main__":
    main()

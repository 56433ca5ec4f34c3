"""The command on byte streams in the providers' documented forms, sent one byte at a time and held back half way.

Sources: https://docs.anthropic.com/en/docs/build-with-claude/streaming and
https://platform.openai.com/docs/api-reference/chat-streaming. That each decoder reads them the same however they are
cut stands in ``tests/models``; here the whole command does.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.invocation import COMMAND, environment_in, run_command

COMMAND_LINE = "echo ran >> proof.txt; cat proof.txt"
SAID = "Hello \N{GRINNING FACE}, caf\N{LATIN SMALL LETTER E WITH ACUTE}!"
MODELS = ("anthropic/claude-sonnet-4-5", "openai-chat/gpt-4o")


def anthropic(*blocks: str, stop: str) -> bytes:
    """Return the events of a message with these blocks."""
    start = (
        '{"type": "message_start", "message": {"id": "msg_1nZdL29xx5MUA1yADyHTEsnR8uuvGzszyY", "type": "message", '
        '"role": "assistant", "content": [], "model": "claude-sonnet-4-5", "stop_reason": null, '
        '"stop_sequence": null, "usage": {"input_tokens": 25, "output_tokens": 1}}}'
    )
    end = (
        f'{{"type": "message_delta", "delta": {{"stop_reason": "{stop}", "stop_sequence": null}}, '
        '"usage": {"output_tokens": 15}}'
    )
    events = [start, '{"type": "ping"}', *blocks, end, '{"type": "message_stop"}']
    return "".join(f"event: {json.loads(event)['type']}\ndata: {event}\n\n" for event in events).encode()


def anthropic_block(index: int, opened: str, *deltas: str) -> list[str]:
    """Return the events of one block."""
    return [
        f'{{"type": "content_block_start", "index": {index}, "content_block": {opened}}}',
        *(f'{{"type": "content_block_delta", "index": {index}, "delta": {delta}}}' for delta in deltas),
        f'{{"type": "content_block_stop", "index": {index}}}',
    ]


def openai(*deltas: str, finish: str) -> bytes:
    """Return the chunks of a completion with these deltas."""
    head = (
        '{"id":"chatcmpl-123","object":"chat.completion.chunk","created":1694268190,"model":"gpt-4o",'
        '"system_fingerprint":"fp_44709d6fcb",'
    )
    usage = '"usage":{"prompt_tokens":25,"completion_tokens":15,"total_tokens":40}}'
    chunks = [f'"choices":[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":null}}]}}' for delta in deltas]
    chunks.append(f'"choices":[{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"{finish}"}}]}}')
    chunks.append(f'"choices":[],{usage}')
    return "".join(f"data: {head}{chunk}\n\n" for chunk in chunks).encode() + b"data: [DONE]\n\n"


def replies(model: str) -> tuple[bytes, bytes]:
    """Return the stream that calls bash and the one that says a text."""
    arguments = json.dumps({"command": COMMAND_LINE})
    first, rest = json.dumps(arguments[:7]), json.dumps(arguments[7:])
    pieces = [json.dumps(piece, ensure_ascii=False) for piece in (SAID[:7], SAID[7:])]
    if model.startswith("anthropic"):
        call = anthropic_block(
            0,
            '{"type": "tool_use", "id": "toolu_01T1x1fJ34qAmk2tNTrN7Up6", "name": "bash", "input": {}}',
            *(f'{{"type": "input_json_delta", "partial_json": {part}}}' for part in ('""', first, rest)),
        )
        text = anthropic_block(
            0, '{"type": "text", "text": ""}', *(f'{{"type": "text_delta", "text": {piece}}}' for piece in pieces)
        )
        return anthropic(*call, stop="tool_use"), anthropic(*text, stop="end_turn")
    opened = '{"index":0,"id":"call_DdmO9pD3xa9XTPNJ32zg2hcA","type":"function","function":{"name":"bash","arguments":'
    call = [
        f'{{"role":"assistant","content":null,"tool_calls":[{opened}""}}}}],"refusal":null}}',
        *(f'{{"tool_calls":[{{"index":0,"function":{{"arguments":{part}}}}}]}}' for part in (first, rest)),
    ]
    text = ['{"role":"assistant","content":"","refusal":null}', *(f'{{"content":{piece}}}' for piece in pieces)]
    return openai(*call, finish="tool_calls"), openai(*text, finish="stop")


class Server:
    """Answers each request with the next stream: ``hold`` bytes of it, then one byte a chunk once it is let go."""

    def __init__(self, streams: list[bytes], hold: int | None) -> None:
        self.let_go = threading.Event()
        self.was_let_go = False
        self._streams = streams
        self._hold = hold
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while self._streams:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as request:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while self._streams and _read_request(request):
                    self._answer(connection, self._streams.pop(0))

    def _answer(self, connection: socket.socket, stream: bytes) -> None:
        connection.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        hold = self._hold or 0
        if hold:
            connection.sendall(b"%x\r\n%b\r\n" % (hold, stream[:hold]))
            self.was_let_go = self.let_go.wait(20)
        for offset in range(hold, len(stream)):
            connection.sendall(b"1\r\n%b\r\n" % stream[offset : offset + 1])
        connection.sendall(b"0\r\n\r\n")


def _read_request(request: socket.SocketIO) -> bool:
    """Read one request to its end; False where the client has gone."""
    length = 0
    while (line := request.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    request.read(length)
    return line == b"\r\n"


@contextmanager
def _served(streams: list[bytes], hold: int | None = None) -> Iterator[Server]:
    server = Server(streams, hold)
    try:
        yield server
    finally:
        server.let_go.set()
        server.close()


def _environment(home: Path, server: Server) -> dict[str, str]:
    keys = {"ANTHROPIC_API_KEY": "test-key-0123456789", "OPENAI_API_KEY": "test-key-0123456789"}
    return environment_in(home, {**keys, "ANTHROPIC_BASE_URL": server.url, "OPENAI_BASE_URL": f"{server.url}/v1"})


@pytest.mark.parametrize("model", MODELS)
def test_a_tool_loop_that_comes_byte_by_byte(tmp_path: Path, model: str) -> None:
    with _served(list(replies(model))) as server:
        done = run_command(
            ["-p", "Run it.", "--model", model, "--dangerously-skip-permissions", "--output-format", "json"],
            cwd=tmp_path,
            environment=_environment(tmp_path / "home", server),
        )

    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["result"], record["num_turns"]) == (SAID, 2)
    assert (record["usage"]["input_tokens"], record["usage"]["output_tokens"]) == (50, 30)
    assert (tmp_path / "proof.txt").read_text() == "ran\n"


@pytest.mark.parametrize("model", MODELS)
def test_a_text_is_shown_while_its_end_is_still_to_come(tmp_path: Path, model: str) -> None:
    _, text = replies(model)
    hold = text.index("Hello \N{GRINNING FACE}".encode())
    hold = text.index(b"\n\n", hold) + 2
    flags = ["--model", model, "--output-format", "stream-json", "--include-partial-messages"]
    with (
        _served([text], hold) as server,
        subprocess.Popen(
            [*COMMAND, "-p", "Greet me.", *flags],
            cwd=tmp_path,
            env=_environment(tmp_path / "home", server),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        ) as process,
    ):
        assert process.stdout is not None
        shown = next((line for line in process.stdout if "Hello" in line), "")
        server.let_go.set()
        rest = process.stdout.read()

    assert server.was_let_go, "the first half showed before the second was sent"
    assert json.loads(shown)["type"] != "result"
    assert json.loads(rest.splitlines()[-1])["result"] == SAID

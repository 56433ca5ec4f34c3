"""What a watched model call says as it streams: text and shown reasoning, without keys."""

from __future__ import annotations

from collections.abc import Awaitable

from ..models import Delta, Reply
from ..redactor import RedactedStream
from .events import TextDelta, ThinkingDelta
from .node import Node
from .runtime import Runtime

__all__ = ["watched_attempt"]


def watched_attempt(runtime: Runtime, node: Node, body: bytes) -> Awaitable[Reply]:
    """Begin one attempt of a model call and tell the watchers of ``node`` what comes.

    The pieces that are told, joined, are the text of the reply as it is recorded.
    """
    live = _LiveText(runtime, node)
    attempt = node.model.attempt(body, live.emit, idle_seconds=node.limits.idle_seconds)
    return live.ended_by(attempt) if live.streams else attempt


class _LiveText:
    """The deltas of one attempt; where there are keys, each kind is a stream in which they are replaced."""

    def __init__(self, runtime: Runtime, node: Node) -> None:
        self.streams: dict[str, RedactedStream] = {}
        self._runtime = runtime
        self._node = node
        self._begin()

    def _begin(self) -> None:
        for kind in ("text", "thinking"):
            if (stream := self._runtime.redactor.stream()) is not None:
                self.streams[kind] = stream

    def emit(self, delta: Delta) -> None:
        if delta.kind == "restart":
            self._begin()
            return
        if delta.kind != "thinking" and (thought := self.streams.get("thinking")) is not None:
            self._tell("thinking", thought.end())  # a thought is over, and is told before what comes after it
        if delta.kind != "call":
            stream = self.streams.get(delta.kind)
            self._tell(delta.kind, delta.text if stream is None else stream.feed(delta.text))

    async def ended_by(self, attempt: Awaitable[Reply]) -> Reply:
        """Await the attempt, then tell what was held back; of one that failed that is dropped."""
        reply = await attempt
        for kind, stream in self.streams.items():
            self._tell(kind, stream.end())
        return reply

    def _tell(self, kind: str, text: str) -> None:
        if text:
            made = TextDelta if kind == "text" else ThinkingDelta
            self._runtime.emit(self._node, made(self._node.id, self._node.name, text))

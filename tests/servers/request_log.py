"""What a model server has seen, in memory and in a file of JSON lines that another process can watch."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

__all__ = ["RequestLog", "Seen", "changed_results", "prefix_breaks", "read_log"]


class Seen(msgspec.Struct):
    """One request and what became of it."""

    number: int
    path: str
    body: bytes
    status: int = 0
    """0 while the answer is not decided."""
    problem: str = ""
    """Why it was refused, or how the brain failed."""
    whole: bool = False
    """Whether the answer was written to its end."""

    def decoded(self) -> dict[str, Any]:
        """The body as an object."""
        return dict(json.loads(self.body))


class RequestLog:
    """Keeps every request; writes three lines for each to a file where one is given: seen, decided, answered."""

    def __init__(self, path: Path | None = None) -> None:
        self.requests: list[Seen] = []
        self._file: IO[str] | None = None if path is None else path.open("a", encoding="utf-8")
        self._bodies: dict[bytes, int] = {}

    def see(self, path: str, body: bytes) -> Seen:
        """Note a request that has come in whole."""
        seen = Seen(number=len(self.requests) + 1, path=path, body=body)
        self.requests.append(seen)
        self._write(seen, "seen", path=path, body=body.decode("utf-8", "surrogateescape"))
        return seen

    def attempt(self, body: bytes) -> int:
        """Return how often this very body was asked about before."""
        before = self._bodies.get(body, 0)
        self._bodies[body] = before + 1
        return before

    def decide(self, seen: Seen, status: int, problem: str = "") -> None:
        """Note the answer's status before its first byte goes out."""
        seen.status, seen.problem = status, problem
        self._write(seen, "decided", status=status, problem=problem)

    def answer(self, seen: Seen) -> None:
        """Note that the answer went out whole."""
        seen.whole = True
        self._write(seen, "answered")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _write(self, seen: Seen, what: str, **more: object) -> None:
        if self._file is not None:
            line = {"what": what, "number": seen.number, "at": time.time(), **more}
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


def read_log(path: Path) -> list[Seen]:
    """Return the requests in a log file, also of several servers one after another; a torn last line is passed over."""
    seen: list[Seen] = []
    current: dict[int, Seen] = {}
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        entry = json.loads(line)
        match entry["what"]:
            case "seen":
                body = entry["body"].encode("utf-8", "surrogateescape")
                current[entry["number"]] = Seen(number=entry["number"], path=entry["path"], body=body)
                seen.append(current[entry["number"]])
            case "decided":
                one = current[entry["number"]]
                one.status, one.problem = entry["status"], entry["problem"]
            case _:
                current[entry["number"]].whole = True
    return seen


_MARKER = re.compile(rb',\s*"cache_control":\s*\{[^{}]*\}')


def _prefix(body: bytes) -> bytes:
    return _MARKER.sub(b"", body).rstrip(b"]} \n")


def prefix_breaks(requests: Iterable[Seen]) -> list[int]:
    """Return the numbers of requests that do not begin with the bytes of an earlier one of their conversation.

    Cache markers and the closing brackets are set aside. A request with a single message begins a conversation. Only
    the first 200 bytes are needed to tell models apart, so conversations may interleave.
    """
    breaks: list[int] = []
    earlier: list[bytes] = []
    for seen in requests:
        prefix = _prefix(seen.body)
        if _opens(seen.decoded()) or any(prefix.startswith(one) for one in reversed(earlier)):
            earlier.append(prefix)
        else:
            breaks.append(seen.number)
    return breaks


def _opens(body: dict[str, Any]) -> bool:
    return not any(message.get("role") == "assistant" for message in body.get("messages", ()))


def changed_results(requests: Iterable[Seen]) -> dict[str, set[str]]:
    """Return the calls whose result was told differently in different requests, with all that was told."""
    told: dict[str, set[str]] = {}
    for seen in requests:
        for call_id, content in _results(seen.decoded()):
            told.setdefault(call_id, set()).add(content)
    return {call_id: contents for call_id, contents in told.items() if len(contents) > 1}


def _results(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for message in body.get("messages", ()):
        if message.get("role") == "tool":
            yield message["tool_call_id"], json.dumps(message["content"])
        elif isinstance(message.get("content"), list):
            for block in message["content"]:
                if block.get("type") == "tool_result":
                    yield block["tool_use_id"], json.dumps([block.get("content"), block.get("is_error", False)])

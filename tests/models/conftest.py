"""Streams in the providers' documented forms, and ways of cutting them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from nanotrio.errors import ModelError
from nanotrio.models import Decoder, Delta, Reply

Cuts = Iterator[list[bytes]]


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

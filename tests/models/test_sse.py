from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanotrio.errors import ModelError
from nanotrio.models import EventParser
from nanotrio.models.sse import MAX_EVENT_BYTES


def parse(*chunks: bytes) -> list[tuple[bytes, bytes]]:
    parser = EventParser()
    return [event for chunk in chunks for event in parser.receive_data(chunk)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: x\n\n", [(b"", b"x")]),
        (b"data: x\r\n\r\n", [(b"", b"x")]),
        (b"data: x\r\r", [(b"", b"x")]),
        (b"data:x\n\n", [(b"", b"x")]),
        (b"data:  x\n\n", [(b"", b" x")]),
        (b"data: a\ndata: b\n\n", [(b"", b"a\nb")]),
        (b"event: e\ndata: x\n\ndata: y\n\n", [(b"e", b"x"), (b"", b"y")]),
        (b": ping\n\n: ping\ndata: x\n\n", [(b"", b"x")]),
        (b"\xef\xbb\xbfdata: x\n\n", [(b"", b"x")]),
        (b"\xef\xbb\xbf\ndata: x\n\n", [(b"", b"x")]),
        (b"event: alone\n\ndata: x\n\n", [(b"", b"x")]),
        (b"data: [DONE]\n\n", [(b"", b"[DONE]")]),
        (b"id: 1\nretry: 10\nnonsense\ndata: x\n\n", [(b"", b"x")]),
        (b"data\n\n", [(b"", b"")]),
        (b'data: {"a":"b:c"}\n\n', [(b"", b'{"a":"b:c"}')]),
        (b"data: unfinished\n", []),
        (b"data: z\xc3\xa9\x0b\x85\xe2\x80\xa8\n\n", [(b"", b"z\xc3\xa9\x0b\x85\xe2\x80\xa8")]),
        (b"", []),
    ],
)
def test_a_stream_is_read_the_same_however_it_is_cut(stream: bytes, events: list[tuple[bytes, bytes]]) -> None:
    assert parse(stream) == events
    assert parse(*(stream[i : i + 1] for i in range(len(stream)))) == events
    for cut in range(len(stream) + 1):
        assert parse(stream[:cut], b"", stream[cut:]) == events


LINES = st.lists(
    st.sampled_from([b"data: x", b"data:y", b"data: z\xc3\xa9", b": c", b"event: e", b"", b"", b"id: 3", b"data"])
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@given(st.data())
def test_cuts_and_line_ends_change_nothing(data: st.DataObject) -> None:
    lines = data.draw(LINES)
    plain = b"".join(line + b"\n" for line in lines)
    end = data.draw(ENDS)
    stream = b"".join(line + end for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert parse(*chunks) == parse(plain)


def test_an_endless_line_is_given_up() -> None:
    parser = EventParser()
    chunk = b"x" * (1 << 20)
    with pytest.raises(ModelError, match="more than"):
        for _ in range(2 * MAX_EVENT_BYTES // len(chunk) + 2):
            parser.receive_data(chunk)


def test_a_large_event_in_small_pieces_costs_linear_time() -> None:
    stream = b"data: " + b"x" * 500_000 + b"\n\n"
    assert parse(*(stream[i : i + 7] for i in range(0, len(stream), 7))) == [(b"", b"x" * 500_000)]

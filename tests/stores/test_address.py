"""Addresses of stores."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from nanotrio.errors import UsageError
from nanotrio.stores.address import open_store, parse_url
from nanotrio.stores.owner import this_process


def test_a_path_is_made_absolute() -> None:
    assert parse_url("sqlite:swarm.db").path == Path.cwd() / "swarm.db"
    assert parse_url("sqlite:/var/lib/a b?c.db").path == Path("/var/lib/a b?c.db")
    assert parse_url("sqlite:~/x.db").path == Path.home() / "x.db"
    assert parse_url(parse_url("sqlite:x").url) == parse_url("sqlite:x")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("swarm.db", "did you mean sqlite:swarm.db"),
        ("/tmp/swarm.db", "did you mean sqlite:/tmp/swarm.db"),
        ("./a:b.db", "did you mean sqlite:./a:b.db"),
        ("", "has no kind"),
        ("sqlite:", "names no file"),
        ("sqlite:/", "names no file"),
        ("sqlite::memory:", "would not survive"),
        ("sqlite:///tmp/x.db", "as in sqlite:/tmp/x.db"),
        ("sqlite://me:s3cret@host/db?swarm=x", "as in sqlite:/...@host/db"),
        ("sqlite:a\0b", "names no file"),
        ("mysql://host/x", "there are sqlite:PATH, jsonl:PATH and postgres://"),
        ("postgres+rows://host/db", "names its swarm at the end"),
        ("postgrex://me:s3cret@host/db?swarm=x", "no kind of store is called 'postgrex'"),
        ("jsonl:", "write jsonl:PATH"),
        ("sqlite+rows:", "write sqlite+rows:PATH"),
    ],
)
def test_an_address_that_cannot_be_used_says_what_to_write(url: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(url)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["sqlite", "sqlite+rows", "jsonl"])
def test_an_address_opens_a_store(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        store = await open_store(f"{kind}:{tmp_path}/swarm.db")
        assert (await store.acquire(this_process())).last_seq == 0
        assert (await store.statistics()).url == f"{kind}:{tmp_path}/swarm.db"
        await store.aclose()

    trio.run(main)

"""Addresses of stores: ``SCHEME:PLACE``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..errors import UsageError
from .jsonl import JsonlStore
from .sqlite import SqliteStore
from .store import Store

__all__ = ["Address", "open_store", "parse_url"]

_FILES = ("sqlite", "sqlite+rows", "jsonl")
_LATER = ("postgres", "postgresql", "postgres+rows", "postgresql+rows")


class Address(msgspec.Struct, frozen=True):
    """Where a store lives."""

    scheme: str
    path: Path
    """Absolute."""

    @property
    def url(self) -> str:
        """The address as text that ``parse_url`` takes."""
        return f"{self.scheme}:{self.path}"


def parse_url(url: str) -> Address:
    """Take an address apart; ``~`` at its start is the user's home, a relative path is below the working directory.

    Raises:
        UsageError: it names no kind of store that this version knows.
    """
    scheme, colon, rest = url.partition(":")
    if scheme in _LATER and colon:
        raise UsageError(f"{scheme}: stores are not in this version of nanotrio; use sqlite:PATH")
    if scheme not in _FILES or not colon:
        if colon and "/" not in scheme and "." not in scheme:
            raise UsageError(f"no kind of store is called {scheme!r} (in {url!r}); use sqlite:PATH")
        raise UsageError(f"a store is named by its kind and place, and {url!r} has no kind; did you mean sqlite:{url}?")
    if not rest or "\0" in rest:
        raise UsageError(f"{url!r} names no file; write {scheme}:PATH, as in {scheme}:swarm.db")
    if rest.startswith(":"):
        raise UsageError(
            f"{url!r}: a store in memory would not survive its process; name a file, as in sqlite:swarm.db"
        )
    if rest.startswith("//"):
        # As in other tools' URLs: sqlite:///relative and sqlite:////absolute differ there, so say which is meant.
        raise UsageError(
            f"{url!r}: write {scheme}:PATH without slashes before the path, as in {scheme}:/{rest.lstrip('/')}"
        )
    try:
        path = Path(rest).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{url!r}: {error}") from error
    return Address(scheme, path.absolute())


async def open_store(url: str, *, read_only: bool = False, fsync: bool = False) -> Store:
    """Open the store at ``url``; nothing is written before it is acquired. Checkpoints.

    With ``read_only`` it can be looked into while another process owns it. With ``fsync`` a commit survives a loss of
    power too.

    Raises:
        UsageError: the address itself is wrong.
        StoreError: what is there cannot be used; see its kinds.
    """
    address = parse_url(url)
    if address.scheme == "jsonl":
        return await JsonlStore.open(address.path, read_only=read_only, fsync=fsync)
    rows = address.scheme == "sqlite+rows"
    return await SqliteStore.open(address.path, read_only=read_only, fsync=fsync, rows=rows)

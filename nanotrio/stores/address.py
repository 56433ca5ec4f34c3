"""Addresses of stores: ``sqlite:PATH``, ``jsonl:PATH``, ``postgres://...?swarm=NAME``; ``+rows`` adds tables."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import msgspec

from ..errors import UsageError
from .postgres_address import PostgresAddress, parse_postgres_url
from .sqlite import SqliteStore
from .store import Store

__all__ = ["Address", "open_store", "parse_url"]

_FILES = ("sqlite", "sqlite+rows", "jsonl")
_SERVERS = ("postgres", "postgresql", "postgres+rows", "postgresql+rows")
_KINDS = (
    "sqlite:PATH, jsonl:PATH and postgres://HOST/DATABASE?swarm=NAME, and sqlite+rows and postgres+rows of the same"
)


class Address(msgspec.Struct, frozen=True):
    """Where a store lives."""

    scheme: str
    path: Path
    """Absolute. For a store on a server, a name in the user's data folder that stands for it and holds nothing."""
    server: PostgresAddress | None = None
    """For a store on a server."""

    @property
    def url(self) -> str:
        """The address as text that ``parse_url`` takes, without a password."""
        return self.server.url if self.server else f"{self.scheme}:{self.path}"

    @property
    def token_text(self) -> str:
        """What tells this store from every other, on whatever machine it is opened."""
        return self.server.without_rows if self.server else str(self.path)

    @property
    def output_directory(self) -> Path:
        """Where tools put output that is too long for a session."""
        return self.path.with_name(f"{self.path.name}.output")


def parse_url(url: str) -> Address:
    """Take an address apart; ``~`` at its start is the user's home, a relative path is below the working directory.

    Raises:
        UsageError: it names no kind of store that this version knows. No password is ever in its text.
    """
    scheme, colon, rest = url.partition(":")
    if scheme in _SERVERS and colon:
        import platformdirs

        server = parse_postgres_url(url)
        name = blake2b(server.without_rows.encode(), digest_size=8).hexdigest()
        folder = Path(platformdirs.user_data_dir("nanotrio", appauthor=False))
        scheme = "postgres+rows" if server.rows else "postgres"
        return Address(scheme, folder.absolute() / "postgres" / name, server)
    if "@" in rest and "//" in rest:
        # It may hold a password, and is shown below.
        url = f"{scheme}://...@{rest.rpartition('@')[2]}"
    if scheme not in _FILES or not colon:
        if colon and "/" not in scheme and "." not in scheme:
            raise UsageError(f"no kind of store is called {scheme!r} (in {url!r}); there are {_KINDS}")
        raise UsageError(f"a store is named by its kind and place, and {url!r} has no kind; did you mean sqlite:{url}?")
    if not rest or "\0" in rest:
        raise UsageError(f"{url!r} names no file; write {scheme}:PATH, as in {scheme}:swarm.db")
    if rest.startswith(":"):
        raise UsageError(
            f"{url!r}: a store in memory would not survive its process; name a file, as in sqlite:swarm.db"
        )
    if rest.startswith("//"):
        # As in other tools' URLs: sqlite:///relative and sqlite:////absolute differ there, so say which is meant.
        place = url.partition(":")[2].lstrip("/")
        raise UsageError(f"{url!r}: write {scheme}:PATH without slashes before the path, as in {scheme}:/{place}")
    try:
        path = Path(rest).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{url!r}: {error}") from error
    if not path.name:
        raise UsageError(f"{url!r} names no file; write {scheme}:PATH, as in {scheme}:swarm.db")
    return Address(scheme, path.absolute())


async def open_store(url: str, *, read_only: bool = False, fsync: bool = False) -> Store:
    """Open the store at ``url``; nothing is written before it is acquired. Checkpoints.

    With ``read_only`` it can be looked into while another process owns it. With ``fsync`` a commit survives a loss of
    power too; in Postgres the server's own ``synchronous_commit`` decides that.

    Raises:
        UsageError: the address itself is wrong.
        StoreError: what is there cannot be used; see its kinds.
    """
    address = parse_url(url)
    if address.server is not None:
        # Imported late: psycopg costs a tenth of a second, and most people never use it.
        from .postgres import PostgresStore

        return await PostgresStore.open(address.server, read_only=read_only)
    if address.scheme == "jsonl":
        from .jsonl import JsonlStore  # late too, as it is much code

        return await JsonlStore.open(address.path, read_only=read_only, fsync=fsync)
    rows = address.scheme == "sqlite+rows"
    return await SqliteStore.open(address.path, read_only=read_only, fsync=fsync, rows=rows)

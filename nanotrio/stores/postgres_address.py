"""Addresses of stores in Postgres: ``postgres://USER:PASSWORD@HOST:PORT/DATABASE?swarm=NAME``; ``postgres+rows`` too.

All that libpq takes may stand there, in its own form (https://www.postgresql.org/docs/current/libpq-connect.html,
"Connection URIs"): several hosts, a Unix socket as ``?host=/folder``, ``sslmode`` and the rest. ``swarm`` is ours and
is taken out. What libpq says of an address that it cannot read may quote a password, so it is never shown.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec

from ..errors import UsageError

__all__ = ["PostgresAddress", "parse_postgres_url"]

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,49}")
_DEFAULTS: Final = {
    # A server that vanished without a word is found out in half a minute, not in two hours.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "nanotrio",
    "client_encoding": "UTF8",
}


class PostgresAddress(msgspec.Struct, frozen=True):
    """Which swarm, in which database of which server."""

    swarm: str
    parameters: dict[str, str]
    """libpq's, the password among them."""
    url: str
    """Without the password, for people."""
    rows: bool = False
    """Plain tables are written beside the log."""

    def __repr__(self) -> str:
        return f"PostgresAddress({self.url!r})"

    @property
    def without_rows(self) -> str:
        """``url`` without the wish for tables: what tells this store from another."""
        return self.url.replace("postgres+rows:", "postgres:", 1)

    @property
    def database(self) -> str:
        """The database's name as far as the address tells it."""
        return self.parameters.get("dbname") or self.parameters.get("user") or "the default one"


def parse_postgres_url(url: str) -> PostgresAddress:
    """Take an address apart.

    Raises:
        UsageError: it cannot be read, or names no swarm; the text never holds a password.
    """
    # Imported late: psycopg costs a tenth of a second, and most people never use it.
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        parts = urlsplit(url)
        rows = parts.scheme.endswith("+rows")
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise _unreadable() from None
    names = [value for name, value in pairs if name == "swarm"]
    if not names:
        raise UsageError(
            "an address of a store in Postgres names its swarm at the end, "
            "as in postgres://USER@HOST/DATABASE?swarm=NAME"
        )
    if len(names) > 1 or not _NAME.fullmatch(names[0]):
        raise UsageError(
            f"{names[-1]!r} cannot name a swarm in Postgres: use up to 50 letters, digits, '-', '_' and '.'"
        )
    # A password with a raw @ or / in it, parts of which would be taken for a host, port or database, and shown.
    if parts.netloc.count("@") > 1 or "@" in parts.path or not url.startswith(f"{parts.scheme}://"):
        raise _unreadable()
    rest = urlencode([(name, value) for name, value in pairs if name != "swarm"])
    try:
        given = conninfo_to_dict(f"postgresql://{parts.netloc}{parts.path}" + (f"?{rest}" if rest else ""))
    except (psycopg.Error, ValueError):
        raise _unreadable() from None
    if not all(number.isdecimal() for number in str(given.get("port", "0")).split(",")):
        raise _unreadable()
    parameters = _DEFAULTS | {name: str(value) for name, value in given.items()}
    return PostgresAddress(names[0], parameters, _redacted(names[0], parameters, rows=rows), rows)


def _unreadable() -> UsageError:
    return UsageError(
        "the address of the store in Postgres cannot be read; write postgres://USER:PASSWORD@HOST:PORT/DATABASE?"
        "swarm=NAME, with @ : / ? # and % in a user or password written as %40 %3A %2F %3F %23 %25"
    )


def _redacted(swarm: str, parameters: dict[str, str], *, rows: bool) -> str:
    user, port = parameters.get("user", ""), parameters.get("port", "")
    host = parameters.get("host") or parameters.get("hostaddr", "")
    query = {"swarm": swarm}
    if not host or "/" in host:
        place = ""
        query = {name: value for name, value in (("host", host), ("port", port), ("user", user)) if value} | query
    else:
        hosts = [f"[{name}]" if ":" in name else name for name in host.split(",")]
        ports = port.split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        place = ",".join(f"{name}:{number}".rstrip(":") for name, number in zip(hosts, ports, strict=False))
        place = f"{quote(user, safe='')}@{place}" if user else place
    scheme = "postgres+rows" if rows else "postgres"
    return f"{scheme}://{place}/{quote(parameters.get('dbname', ''), safe='')}?{urlencode(query, safe='/')}"

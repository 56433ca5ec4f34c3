"""The SQLite file that holds a store: its schema, how it is recognised, made and opened, and what its errors mean.

The header of a SQLite file has two numbers for its user (https://sqlite.org/fileformat2.html, offsets 60 and 68): the
application id says whose file it is, the user version which form it has. Both are read, through SQLite's own file
layer, before the file is opened as a database, so nothing is ever written beside or into a file that is not ours.
That layer matters: closing a descriptor of our own would drop the locks of every connection this process has to it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import apsw

from ..errors import NewerStoreError, NotAStoreError, StoreDamagedError, StoreError
from ..records import FORMAT_VERSION, Record
from .place import is_absent, make_file

__all__ = [
    "APPLICATION_ID",
    "FRONT",
    "check_file",
    "connect",
    "explain",
    "find_problems",
    "make_store",
    "record_of",
    "upgrade",
]

APPLICATION_ID = 0x6E74726F
"""``ntro``."""

_SCHEMA = """
CREATE TABLE owner (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  epoch INTEGER NOT NULL, batch INTEGER NOT NULL, released INTEGER NOT NULL,
  boot_id TEXT NOT NULL, pid INTEGER NOT NULL, started INTEGER NOT NULL, host TEXT NOT NULL
) STRICT;
CREATE TABLE mark (one INTEGER PRIMARY KEY CHECK (one = 1), heads_seq INTEGER NOT NULL) STRICT;
CREATE TABLE log (seq INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE heads (agent INTEGER PRIMARY KEY, unfinished INTEGER NOT NULL, body TEXT NOT NULL) STRICT;
CREATE INDEX heads_unfinished ON heads (agent) WHERE unfinished = 1;
INSERT INTO owner VALUES (1, 0, 0, 1, '', 0, 0, '');
INSERT INTO mark VALUES (1, 0);
"""
"""``log.body`` is three little-endian 64-bit integers (prev, agent, at_us) and then the record's facts in CBOR;
``heads.body`` is the ``Head`` as a JSON array in the order of its fields."""

STEPS: dict[int, Callable[[apsw.Connection], None]] = {}
"""What takes a file from a form to the next one, by the form it starts from. The first form has no former one; whoever
raises ``FORMAT_VERSION`` adds a step here, and keeps a store of the old form in ``tests/stores/kept``."""

FRONT = struct.Struct("<qqq")
"""The beginning of ``log.body``: prev, agent, at_us."""


def record_of(seq: int, body: bytes | None) -> Record:
    """Return the record in a row of ``log``.

    Raises:
        apsw.CorruptError: there is none, as in a page that was lost.
    """
    if body is None or len(body) < FRONT.size:
        raise apsw.CorruptError(f"record {seq} is empty")
    prev, agent, at_us = FRONT.unpack_from(body)
    return Record(seq, prev, agent, at_us, body[24:])


def check_file(path: Path, vfs: str = "") -> bool:
    """Say whether a store is at ``path`` (True) or could be made there (False).

    Raises:
        NotAStoreError, NewerStoreError: what is there is not for this version.
        StoreError: it cannot be looked at.
    """
    if is_absent(path):
        return False
    header = _header(path, vfs)
    if header[:16] != b"SQLite format 3\0":
        raise NotAStoreError(f"{path} is not a nanotrio store (no SQLite file); name another file, or move it away")
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise NotAStoreError(f"{path} is a SQLite file of another program; name another file")
    version = int.from_bytes(header[60:64], "big")
    if version > FORMAT_VERSION:
        raise NewerStoreError(
            f"{path} was written by a newer nanotrio (form {version}, this one knows {FORMAT_VERSION}); "
            "upgrade nanotrio to open it"
        )
    return True


def _header(path: Path, vfs: str) -> bytes:
    if not os.access(path, os.R_OK):
        raise StoreError(f"{path} cannot be read: permission denied")
    try:
        file = apsw.VFSFile(vfs, str(path), [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0])
        try:
            return file.xRead(min(100, file.xFileSize()), 0).ljust(100, b"\0")
        finally:
            file.xClose()
    except apsw.Error as error:
        raise explain(error, path) from error


def make_store(path: Path, vfs: str = "") -> None:
    """Make a store at ``path`` unless one is there; several processes may do so at once.

    Raises:
        apsw.BusyError: another process is at it; try again.
        StoreError: the file cannot be made.
    """
    make_file(path)
    if not os.access(path, os.W_OK):
        raise StoreError(f"{path} cannot be written: permission denied")
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs or None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not connection.execute("SELECT count(*) FROM sqlite_schema").get:
                connection.execute(_SCHEMA)
                connection.pragma("application_id", APPLICATION_ID)
                connection.pragma("user_version", FORMAT_VERSION)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        # The header went into the main file by now, where check_file reads it, and only then is a WAL used.
        connection.pragma("journal_mode", "wal")
    finally:
        connection.close()


def upgrade(
    db: apsw.Connection, steps: Mapping[int, Callable[[apsw.Connection], None]] = STEPS, to: int = FORMAT_VERSION
) -> None:
    """Take a file of an older form forward, step by step; inside the transaction in which it gets its owner.

    Whoever looks into the file meanwhile sees the old form or the new one, whole.
    """
    form: int = db.pragma("user_version")
    for step in range(form, to):
        steps[step](db)
    if form < to:
        db.pragma("user_version", to)


def connect(path: Path, *, read_only: bool, fsync: bool = False, vfs: str = "") -> apsw.Connection:
    """Open a connection whose WAL is moved into the main file only on demand, and that never waits for a lock."""
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    connection = apsw.Connection(str(path), flags=flags, vfs=vfs or None)
    try:
        connection.set_busy_timeout(0)
        if not read_only:
            connection.pragma("journal_mode", "wal")
            connection.pragma("synchronous", "full" if fsync else "normal")
            connection.wal_autocheckpoint(0)
            connection.pragma("journal_size_limit", 64 << 20)
    except BaseException:
        connection.close()
        raise
    return connection


def find_problems(path: Path) -> list[str]:
    """Let SQLite look through the whole file, and return what it finds wrong; blocks.

    Raises:
        StoreError: the file cannot be opened at all.
    """
    try:
        connection = connect(path, read_only=True)
        try:
            found = [str(line) for (line,) in connection.execute("PRAGMA quick_check(20)")]
        finally:
            connection.close()
    except apsw.CorruptError as error:
        return [f"SQLite: {error}"]
    except apsw.Error as error:
        raise explain(error, path) from error
    return [] if found == ["ok"] else [f"SQLite: {line}" for line in found]


def explain(error: apsw.Error, path: Path | str) -> StoreError:
    """Say in one line what SQLite's error means for the store at ``path``."""
    match error:
        case apsw.CorruptError() | apsw.NotADBError() | apsw.FormatError():
            return StoreDamagedError(
                f"{path} is damaged ({error}); put a copy back, or save what can be read with "
                f"`nanotrio store repair sqlite:{path}`"
            )
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return StoreError(f"another program keeps {path} busy with a transaction of its own; end that program")
        case apsw.FullError():
            return StoreError(f"the disk that holds {path} is full; free some space")
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
            return StoreError(f"{path} cannot be written ({error}); check the permissions of the file and its folder")
        case apsw.CantOpenError():
            return StoreError(f"{path} cannot be opened; check that the file and its folder are there and permitted")
        case apsw.IOError():
            return StoreError(f"the disk that holds {path} failed ({error}); see the system's log")
        case apsw.SQLError() if "no such" in str(error):
            return StoreDamagedError(
                f"{path} has not the tables of this version ({error}); open it with the nanotrio that wrote it, "
                "or move it away"
            )
        case _:
            return StoreError(f"SQLite failed on {path}: {type(error).__name__}: {error}")

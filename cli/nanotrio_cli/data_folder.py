"""Where nanotrio keeps what it keeps: the stores of runs, the history of prompts, reports of its own faults."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from .exits import CommandError

__all__ = ["DataFolder"]

_ADVICE = "set NANOTRIO_DATA to a folder, or give --store sqlite:PATH, or --no-session"


class DataFolder:
    """The folder of one person. It is found at once and made when something is first written."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.path = _find(environment)

    @property
    def runs(self) -> Path:
        """The folder of the stores that runs without ``--store`` write, a file each."""
        return self.path / "runs"

    def new_run(self, session: str) -> Path:
        """Return the path of a new session's store; its folder exists afterwards.

        Raises:
            CommandError: the folder cannot be made.
        """
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        return self._made(self.runs) / f"{stamp}-{session}.db"

    def job_store(self, job: str) -> Path:
        """Return the path of a job's store, the same each time; its folder exists afterwards.

        Raises:
            CommandError: the folder cannot be made.
        """
        return self._made(self.runs) / f"map-{job}.db"

    def history(self) -> Path:
        """Return the file of typed prompts, readable for its owner alone; it exists afterwards."""
        path = self._made(self.path) / "history"
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise CommandError(f"{path} cannot be written: {error.strerror}; {_ADVICE}") from None
        return path

    def fault_report(self) -> Path:
        """Return the path of a new report of a fault of nanotrio's own; its folder exists afterwards."""
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        return self._made(self.path / "logs") / f"{stamp}-{os.getpid()}-{uuid.uuid4().hex[:6]}.log"

    def stores(self) -> list[str]:
        """Return the URLs of all run stores, the one last written first."""
        try:
            with os.scandir(self.runs) as entries:
                found = [
                    (_written(entry.path), f"sqlite:{entry.path}")
                    for entry in entries
                    if entry.name.endswith(".db") and entry.is_file()
                ]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CommandError(f"{self.runs} cannot be read: {error.strerror}; {_ADVICE}") from None
        return [url for _, url in sorted(found, reverse=True)]

    def _made(self, folder: Path) -> Path:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(f"{folder} cannot be made: {error.strerror}; {_ADVICE}") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CommandError(f"{folder} cannot be written; {_ADVICE}")
        return folder


def _written(path: str) -> float:
    """When a store was last written: SQLite's newest writes stand in the file beside it, which a reader makes empty."""
    newest = 0.0
    for name in (path, f"{path}-wal"):
        with suppress(OSError):
            found = Path(name).stat()
            if found.st_size:
                newest = max(newest, found.st_mtime)
    return newest


def _find(environment: Mapping[str, str]) -> Path:
    given = environment.get("NANOTRIO_DATA", "")
    if given:
        path = Path(given)
        if not path.is_absolute():
            raise CommandError(f"NANOTRIO_DATA is {given!r}, which is not an absolute path")
        return path
    import platformdirs

    path = Path(platformdirs.user_data_dir("nanotrio", appauthor=False))
    if not path.is_absolute() or environment.get("HOME") == "":
        raise CommandError(f"there is no home folder to keep sessions in (HOME names none); {_ADVICE}")
    return path

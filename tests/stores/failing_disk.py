"""An SQLite file layer whose disk can be full for a while."""

from __future__ import annotations

from typing import Any

import apsw


class FailingDisk(apsw.VFS):
    """Registered under ``name``; while ``full``, writes to files whose names end in ``suffix`` fail."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.full = False
        self.suffix = ""
        self.failures = 0
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: list[int]) -> FailingFile:  # noqa: N802 - the library's name
        return FailingFile(self, name, flags)

    def refuses(self, filename: str) -> bool:
        if self.full and filename.endswith(self.suffix):
            self.failures += 1
            return True
        return False


class FailingFile(apsw.VFSFile):
    def __init__(self, disk: FailingDisk, name: Any, flags: list[int]) -> None:
        self.disk = disk
        self.filename = name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - the library's name
        if self.disk.refuses(self.filename):
            raise apsw.FullError("no space left on the pretended device")
        super().xWrite(data, offset)

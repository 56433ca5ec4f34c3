"""A file that is open, and what its errors mean."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ..errors import StoreError

__all__ = ["RawFile", "explain_os"]

_MOST_BYTES = 1 << 30
"""Linux moves at most 2 GiB less a page at once (write(2))."""


class RawFile:
    """A descriptor that is closed once nobody refers to it any more.

    So a thread that reads may go on in a file that was replaced meanwhile. All methods block and raise ``OSError``.
    """

    __slots__ = ("fd", "identity", "path")

    def __init__(self, path: Path, flags: int = os.O_RDONLY) -> None:
        self.path = path
        self.fd = -1
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        status = os.fstat(self.fd)
        self.identity = (status.st_dev, status.st_ino)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    @property
    def size(self) -> int:
        """Bytes in it now."""
        return os.fstat(self.fd).st_size

    def size_in_place(self) -> int:
        """Bytes in it now, or -1 where its path does not lead to it any more."""
        try:
            status = os.stat(self.path)  # noqa: PTH116 - on the path of every commit
        except OSError:
            return -1
        return status.st_size if (status.st_dev, status.st_ino) == self.identity else -1

    def is_in_place(self) -> bool:
        """Whether its path still leads to it."""
        return self.size_in_place() >= 0

    def read(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes, fewer only where the file ends."""
        data = os.pread(self.fd, min(size, _MOST_BYTES), at)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self.fd, min(size - got, _MOST_BYTES), at + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def write(self, data: bytes, at: int, *, fsync: bool = False) -> None:
        """Write all of ``data``; what was written of it where that fails is cut off again."""
        try:
            done = os.pwrite(self.fd, data, at)
            while done < len(data):
                done += os.pwrite(self.fd, memoryview(data)[done:], at + done)
            if fsync:
                os.fsync(self.fd)
        except OSError:
            self.cut(at)
            raise

    def append(self, data: bytes, *, fsync: bool = False) -> int:
        """Write ``data`` at the end, wherever that is by then (needs ``O_APPEND``), and return where it begins."""
        done = os.write(self.fd, data)
        end = os.lseek(self.fd, 0, os.SEEK_CUR)
        if done < len(data):
            if self.size == end:
                self.cut(end - done)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if fsync:
            os.fsync(self.fd)
        return end - done

    def cut(self, at: int) -> None:
        """End the file at ``at``."""
        os.ftruncate(self.fd, at)


def explain_os(error: OSError, path: Path | str) -> StoreError:
    """Say in one line what an error of the system means for the store at ``path``."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return StoreError(f"the disk that holds {path} is full; free some space")
        case errno.EFBIG:
            return StoreError(f"{path} may not grow (the limit on file sizes, ulimit -f); raise it")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return StoreError(
                f"{path} cannot be used ({error.strerror}); check the permissions of the file and its folder"
            )
        case errno.ENOENT:
            return StoreError(f"{error.filename or path} is gone; put it back to go on")
        case errno.EMFILE | errno.ENFILE:
            return StoreError(f"{path} cannot be opened: too many open files (ulimit -n); raise the limit")
        case _:
            return StoreError(f"the disk that holds {path} failed ({error.strerror}); see the system's log")

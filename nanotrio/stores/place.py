"""The place in the file system where a store lives, or is to be made."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from ..errors import NotAStoreError, StoreError

__all__ = ["file_identity", "file_size", "is_absent", "make_file", "mounted_type", "network_file_system"]

_NETWORK = frozenset(
    [
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "ceph", "lustre", "beegfs", "glusterfs"),
        *("davfs", "fuse.glusterfs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.davfs"),
        "fuse.ceph-fuse",
    ]
)
"""Types that proc(5) names in ``/proc/self/mountinfo`` and whose locks or shared memory do not hold across machines."""


def is_absent(path: Path) -> bool:
    """Whether nothing is at ``path``, or an empty file, so that a store may be made there.

    Raises:
        NotAStoreError: a directory, a device or the like.
        StoreError: the path cannot be looked at, or lies on a network file system.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        status = None
    except OSError as error:
        raise StoreError(f"cannot look at {path}: {error.strerror}") from error
    if status is not None and not stat.S_ISREG(status.st_mode):
        what = "a directory" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise NotAStoreError(f"{path} is {what}, not a store; name a file")
    kind = network_file_system(path)
    if kind:
        raise StoreError(
            f"{path} lies on a network file system ({kind}), where locks cannot be trusted; use a local disk"
        )
    return status is None or status.st_size == 0


def make_file(path: Path) -> None:
    """Make an empty file that only its owner can read (0600), and the folders above it that are missing (0700).

    An empty file that is there already gets that mode; folders that are there stay as they are.
    """
    try:
        missing = []
        for folder in path.parents:
            if folder.exists():
                break
            missing.append(folder)
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            if file_size(path) == 0:
                path.chmod(0o600)
    except OSError as error:
        raise StoreError(f"cannot make a store at {path}: {error.strerror}") from error


def file_size(path: Path) -> int:
    """Bytes in a file, 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def file_identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from another that is later put in its place; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def network_file_system(path: Path) -> str:
    """The type of the network file system that ``path`` lies on, or would; empty for a local or unknown one."""
    for folder in (path, *path.parents):
        try:
            device = folder.stat().st_dev
        except OSError:
            continue
        break
    else:
        return ""
    try:
        with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="replace") as mounts:
            kind = mounted_type(mounts, device)
    except OSError:
        return ""
    return kind if kind in _NETWORK else ""


def mounted_type(mounts: Iterable[str], device: int) -> str:
    """The file system type of ``device`` in lines of ``/proc/self/mountinfo``, empty where it is not named."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts:
        fields = line.split()
        # A hyphen ends the optional fields; the type follows it.
        if len(fields) > 2 and fields[2] == wanted and "-" in fields[:-1]:
            return fields[fields.index("-") + 1]
    return ""

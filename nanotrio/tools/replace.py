"""Changing a file as a whole: what is there is the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
from pathlib import Path

from ..errors import ToolError
from .paths import file_trouble, shown

__all__ = ["replace_file"]

_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def replace_file(path: Path, data: bytes) -> bool:
    """Make ``data`` the content of ``path`` and return whether the file is new.

    A symbolic link is followed. Missing directories are made. The content is written beside the file and renamed
    over it, with the old one's mode and owner; where that would break a hard link, lose the owner, or is not
    permitted in the directory, the file is written in place, and a crash may then leave a part. Not synced to disk.
    A process that is killed just then leaves the file beside; the next one that writes the same file removes it.

    Raises:
        ToolError: it could not be written; the old content is untouched, unless the message says otherwise.
    """
    old: os.stat_result | None = None
    try:
        target = path.resolve()
        with contextlib.suppress(FileNotFoundError):
            old = target.stat()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise file_trouble(path, error) from error
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise ToolError(f"{shown(path)} is a directory or device, not a file; give another path")
    if old is not None and not os.access(target, os.W_OK):
        raise ToolError(f"{shown(path)} is write-protected; change its mode first if it is meant to change")
    try:
        if old is None:
            target.parent.mkdir(parents=True, exist_ok=True)
        if (old is not None and old.st_nlink > 1) or not _rename_over(target, data, old):
            _write_in_place(path, target, data)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ToolError(f"{shown(path)} was not written: the disk is full; free some space first") from error
        raise file_trouble(path, error) from error
    return old is None


def _rename_over(target: Path, data: bytes, old: os.stat_result | None) -> bool:
    """Write a file beside the target and rename it; return False, with nothing changed, where that is not possible."""
    try:
        beside, descriptor = _make_beside(target)
    except (PermissionError, OSError) as error:
        if old is not None and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG):
            return False
        raise
    try:
        _write(descriptor, data)
        if old is not None and not _take_after(descriptor, old):
            beside.unlink()
            return False
        beside.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    finally:
        os.close(descriptor)
    return True


def _make_beside(target: Path) -> tuple[Path, int]:
    """Make the file that is to be renamed, and return where it is, and it itself, locked for as long as it is open.

    Its name tells whose place it takes, so that what a killed process left is found without a look at the directory,
    and the lock tells it from one that is being written. Whoever writes the same file meanwhile takes another name.
    """
    name = hashlib.blake2b(os.fsencode(target.name), digest_size=8).hexdigest()
    usual = target.with_name(f".nanotrio-{name}")
    _remove_left(usual)
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(usual, _MAKE, 0o666)
        if _is_held(descriptor, usual):
            return usual, descriptor
        os.close(descriptor)
    other = target.with_name(f".nanotrio-{secrets.token_hex(8)}")
    return other, os.open(other, _MAKE, 0o666)


def _remove_left(beside: Path) -> None:
    """Remove a file that nobody has locked; a no-op where there is none, and where there are no locks."""
    with contextlib.suppress(OSError):
        descriptor = os.open(beside, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), beside.lstat()):
                beside.unlink()
        finally:
            os.close(descriptor)


def _is_held(descriptor: int, beside: Path) -> bool:
    """Lock a file just made; return whether it is ours, or False where another takes it for one that was left."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # without locks nobody removes it
    try:
        return os.path.samestat(os.fstat(descriptor), beside.lstat())
    except OSError:
        return False


def _take_after(descriptor: int, old: os.stat_result) -> bool:
    """Give the new file the old one's owner and mode; return whether that was permitted."""
    new = os.fstat(descriptor)
    try:
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
            os.fchown(descriptor, old.st_uid, old.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
    except PermissionError:
        return False
    return True


def _write_in_place(path: Path, target: Path, data: bytes) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        _write(descriptor, data)
    except OSError as error:
        raise ToolError(f"{shown(path)} was written in part: {error.strerror}; write it again") from error
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]

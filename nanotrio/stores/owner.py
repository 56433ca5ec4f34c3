"""Who owns a store, and whether that process still lives.

A process is named by the boot it runs in, its pid and its start time: the same pid under another boot or with another
start time is another process. Linux tells all three under ``/proc`` (proc(5): ``/proc/sys/kernel/random/boot_id``,
and fields 3 and 22 of ``/proc/PID/stat``). Elsewhere the start time is 0, which stands for unknown, and a pid that is
taken counts as the owner.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Literal, TypeAlias

from ..errors import StoreOwnedError
from .store import Owner

__all__ = ["TAKE_OVER", "OwnerState", "is_held", "owner_of", "refuse_if_alive", "state_of", "this_process"]

TAKE_OVER = "take the store over (--takeover, or open_swarm(takeover=True))"
"""What else can be done about a live owner, for the command's people and the library's."""

OwnerState: TypeAlias = Literal["dead", "running", "stopped", "elsewhere"]


def this_process() -> Owner:
    """Return the running process as an owner; reads a few small files, does not checkpoint."""
    return owner_of(os.getpid())


def owner_of(pid: int) -> Owner:
    """Return the process ``pid`` of this machine as an owner; ``started`` is 0 where it is dead or unknown."""
    stat = _stat(pid)
    return Owner(boot_id=_boot_id(), pid=pid, started=stat[1] if stat else 0, host=os.uname().nodename)


def state_of(owner: Owner) -> OwnerState:
    """Say whether ``owner`` still lives.

    ``"stopped"`` lives too, but does nothing until it is continued (SIGSTOP, Ctrl-Z, a debugger). Another boot of the
    machine with the same name is over, so its processes are dead; one of a machine with another name cannot be seen
    from here and is ``"elsewhere"``.
    """
    if owner.boot_id != _boot_id():
        return "dead" if owner.host in ("", os.uname().nodename) else "elsewhere"
    if sys.platform != "linux":
        return "running" if _answers(owner.pid) else "dead"
    stat = _stat(owner.pid)
    if stat is None:
        return "dead"
    letter, started = stat
    if letter in "ZXx" or (owner.started and started != owner.started):
        return "dead"
    return "stopped" if letter in "Tt" else "running"


def is_held(former: Owner | None, *, released: bool) -> bool:
    """Say whether a store's former owner lives and has it yet, so that it is taken from it."""
    return former is not None and not released and state_of(former) != "dead"


def refuse_if_alive(place: Path | str, former: Owner, owner: Owner) -> None:
    """Refuse the store at ``place`` to ``owner`` while ``former`` lives.

    Raises:
        StoreOwnedError: it does; says who that is, and what to do.
    """
    state = state_of(former)
    if state == "dead":
        return
    if former == owner:
        text = f"{place} is open in this process already; close it there first"
    else:
        where = f"process {former.pid}" + (f" on {former.host}" if state == "elsewhere" else "")
        advice = "continue or end it" if state == "stopped" else "end it"
        text = f"{place} is owned by {where} ({state}); {advice}, or {TAKE_OVER}"
    raise StoreOwnedError(text, pid=former.pid, state=state)


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time of a process, None where there is none or no ``/proc``."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The second field is the command's name in parentheses, and may itself hold spaces and parentheses.
    fields = text[text.rindex(b")") + 2 :].split()
    return fields[0].decode(), int(fields[19])


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return _boot_session()


def _boot_session() -> str:
    """What macOS has in place of a boot id (``sysctl kern.bootsessionuuid``), or nothing."""
    sysctl = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    if sysctl is None:
        return ""
    value = ctypes.create_string_buffer(64)
    size = ctypes.c_size_t(len(value))
    failed = sysctl(b"kern.bootsessionuuid", value, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else value.value.decode("ascii", "replace")

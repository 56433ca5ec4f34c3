"""Telling a live owner from a dead one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest

from nanotrio.errors import StoreOwnedError
from nanotrio.stores import open_store
from nanotrio.stores.owner import owner_of, refuse_if_alive, state_of, this_process
from nanotrio.stores.store import Owner

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def test_this_process_is_running() -> None:
    assert state_of(this_process()) == "running"
    assert this_process().pid == os.getpid()


@linux
def test_a_process_is_running_then_stopped_then_dead() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        owner = owner_of(process.pid)
        assert state_of(owner) == "running"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert state_of(owner) == "stopped"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert state_of(owner) == "dead", "a zombie does nothing any more"
    assert state_of(owner) == "dead"


def test_a_refusal_says_how_the_store_is_taken_over_from_a_shell_and_from_a_program() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        with pytest.raises(StoreOwnedError, match=rf"process {process.pid} .*--takeover.*open_swarm\(takeover=True\)"):
            refuse_if_alive("swarm.db", owner_of(process.pid), this_process())
        process.kill()


@linux
def test_a_reused_pid_is_not_the_owner() -> None:
    mine = this_process()
    assert state_of(msgspec.structs.replace(mine, started=mine.started - 1)) == "dead"


def test_a_former_boot_is_over_and_another_machine_cannot_be_seen() -> None:
    mine = this_process()
    assert state_of(msgspec.structs.replace(mine, boot_id="another")) == "dead"
    assert state_of(Owner(boot_id="another", pid=mine.pid, started=0)) == "dead"
    assert state_of(msgspec.structs.replace(mine, boot_id="another", host="elsewhere.example")) == "elsewhere"


@linux
async def test_who_takes_a_store_is_told_whether_its_former_owner_had_it_and_lives(
    new_url: Callable[[], str],
) -> None:
    lives = owner_of(os.getppid())
    dead = msgspec.structs.replace(lives, started=lives.started - 1)
    url = new_url()
    stores = [await open_store(url) for _ in range(4)]
    assert not (await stores[0].acquire(lives)).former_lives, "there was none"
    taken = await stores[1].acquire(dead, takeover=True)
    assert (taken.former, taken.former_lives) == (lives, True)
    assert not (await stores[2].acquire(lives, takeover=True)).former_lives, "it was killed"
    await stores[2].aclose()
    assert not (await stores[3].acquire(dead, takeover=True)).former_lives, "it had given the store back"
    for store in stores:
        await store.aclose()

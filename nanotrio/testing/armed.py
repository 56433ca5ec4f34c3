"""Run as a program: the process that is to be killed, ``python -m nanotrio.testing.armed PROGRAM TRIAL``.

With ``--forks DESCRIPTOR`` it is the process that such ones are forked from, so that a trial does not pay for starting
Python and importing everything: it serves one order after the other on a socket and runs nothing itself, so each child
begins with one thread and an untouched Trio.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

import msgspec

from .crashing import arm_from_environment
from .trial import Trial, find_program, run_program

__all__ = ["Order"]

_ORDER_BYTES = 1 << 16


class Order(msgspec.Struct, frozen=True):
    """What a child is to run; with it go the descriptors of the pipe for acknowledged numbers and of its errors."""

    program: str
    trial: Trial
    environment: dict[str, str]


def _serve(descriptor: int) -> None:
    """Fork a child for each order; say its number, and when asked to, how it ended."""
    import nanotrio.swarm  # noqa: F401 - imported once, for all of them

    with socket.socket(fileno=descriptor) as orders:
        while True:
            data, descriptors, _, _ = socket.recv_fds(orders, _ORDER_BYTES, 2)
            if not data:
                return
            order = msgspec.json.decode(data, type=Order)
            with suppress(Exception):  # the child finds the same, and says so
                find_program(order.program)
            child = os.fork()
            if not child:
                orders.close()
                _run(order, *descriptors)
            for each in descriptors:
                os.close(each)
            orders.sendall(child.to_bytes(8, "little"))
            # Until it is asked for the child is not reaped, so its number stays its own and may be killed.
            if orders.recv(1):
                _, status = os.waitpid(child, 0)
                orders.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "little", signed=True))


def _run(order: Order, acknowledged: int, errors: int) -> NoReturn:
    """Be the child; never returns."""
    code = 1
    try:
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        os.environ.update(order.environment)
        arm_from_environment({**order.environment, "NANOTRIO_ACKNOWLEDGED_FD": str(acknowledged)})
        run_program(find_program(order.program), order.trial)
        code = 0
    except BaseException:  # noqa: BLE001, ASYNC103 - whatever it is, it is this process's last word
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _main(arguments: list[str]) -> None:
    if arguments[0] == "--forks":
        _serve(int(arguments[1]))
        return
    arm_from_environment()
    run_program(find_program(arguments[0]), msgspec.json.decode(arguments[1], type=Trial))


if __name__ == "__main__":
    _main(sys.argv[1:])

"""A connection to Postgres that runs on Trio: psycopg's protocol, Trio's waits; no asyncio, no threads.

Theory of operation
-------------------
psycopg writes its protocol as generators that yield what they wait for (readable, writable) and are sent what came.
``wait`` drives them with Trio's own waits on the socket. Five things make that safe here:

1. A connection serves one task at a time; its lock never waits and never checkpoints, it only refuses a second one.
2. A generator that never blocks never checkpoints, so a long COPY could not be cancelled. When some milliseconds have
   passed since the last wait, ``wait`` checkpoints *before* it goes on; afterwards a result would be lost.
3. Cancellation in Trio is a state, not an event: every wait in a cancelled scope ends at once. So what must still be
   said to the server is said in a shield with a deadline.
4. When ``wait`` is cancelled, the server is asked to cancel (on a connection of its own, as the protocol has it), the
   generator is driven to its end and what is left is read. A connection that is not idle then is closed, and whoever
   keeps connections replaces it. With ``finishing`` set, the statement is instead given some seconds to end by itself.
5. Whoever leaves a connection inside a transaction closes it; the server rolls back. So no exit needs the network.

A server that says nothing for ``silence_seconds`` while something is awaited counts as lost.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, TypeVar, cast

import trio

# psycopg takes asyncio's functions as they are when it is imported; trio-asyncio must have replaced them by then.
import trio_asyncio  # noqa: F401

# isort: split
import psycopg
from psycopg import capabilities, generators
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo, ConnStatus, ExecStatus, Format, PGconn, PollingStatus, TransactionStatus, abc
from psycopg.waiting import Ready, Wait

from .. import crash

__all__ = ["TrioConnection", "connect"]

_T = TypeVar("_T")
_BUSY_SECONDS = 0.005
"""A generator that ran for so long without a wait is made to checkpoint."""
_CANCEL_SECONDS = 5.0
"""How long the server may take to end a statement that was cancelled."""
_COPY = (ExecStatus.COPY_IN, ExecStatus.COPY_OUT, ExecStatus.COPY_BOTH)


class TrioConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """psycopg's asynchronous connection on Trio; make one with ``connect``.

    One task at a time may use it. Cancelling an operation cancels it on the server too.

    Attributes:
        finishing: while set, a cancelled operation is first given 5 s to end by itself; if it does, its result is
            returned as if nothing had happened, and Trio raises at the next checkpoint.
        silence_seconds: a server that says nothing for so long is lost.
    """

    def __init__(self, pgconn: Any) -> None:
        super().__init__(pgconn)
        self.lock = cast("Any", _OneTask())
        self.finishing = False
        self.silence_seconds = 30.0
        self._waited_at = time.perf_counter()

    async def wait(self, gen: PQGen[_T], interval: float = 0.0, timeout: float | None = None) -> _T:  # noqa: ARG002
        """Drive ``gen`` to its end and return its result. Checkpoints where it blocks, or after some milliseconds.

        ``interval`` has no use here. ``timeout`` is raised as psycopg's own ``_WaitTimeout``.
        """
        state = Wait.R
        began = False
        try:
            if time.perf_counter() - self._waited_at > _BUSY_SECONDS:
                await trio.lowlevel.checkpoint()
                self._waited_at = time.perf_counter()
            state = next(gen)
            began = True
            seconds = self.silence_seconds if timeout is None else timeout
            with trio.move_on_after(seconds) as scope:
                while True:
                    ready = await _ready(self.pgconn.socket, state)
                    self._waited_at = time.perf_counter()
                    state = gen.send(ready)
                    if timeout is None:
                        scope.deadline = trio.current_time() + seconds
        except StopIteration as stop:
            return cast("_T", stop.value)
        except trio.Cancelled:
            if self.finishing and began:
                with trio.move_on_after(_CANCEL_SECONDS, shield=True):
                    return await self._drive(gen, state)  # noqa: ASYNC104 - it raises again at the next checkpoint
            with trio.move_on_after(_CANCEL_SECONDS, shield=True), suppress(psycopg.Error):
                await self._abandon(gen, state if began else None)
            self.discard_unless_idle()
            raise
        if timeout is not None:
            raise psycopg.errors._WaitTimeout  # noqa: SLF001 - what psycopg's own callers of wait() expect
        self.discard()
        raise psycopg.OperationalError(f"the server said nothing for {self.silence_seconds:g} s")

    async def statement(
        self, query: bytes, parameters: Sequence[bytes | None] = (), types: Sequence[int] = ()
    ) -> abc.PGresult:
        """Run one statement with parameters in binary form, and return its result in binary form. Checkpoints.

        Nothing is prepared, so it works behind a pooler that shares server connections by transaction.
        """
        self._check_connection_ok()
        with self.lock.held():  # type: ignore[attr-defined]
            formats = [Format.BINARY] * len(parameters)
            self.pgconn.send_query_params(query, parameters, types, formats, Format.BINARY)
            if crash.here is not None:
                self.pgconn.flush()
                crash.here("in-commit", 0)
            results = await self.wait(generators.execute(self.pgconn))
        result: abc.PGresult = results[-1]
        if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            return result
        raise psycopg.errors.error_from_result(result, encoding="utf-8")

    async def cancel_safe(self, *, timeout: float = _CANCEL_SECONDS) -> None:
        """Ask the server to cancel what this connection runs; libpq before version 17 does so in a thread."""
        if not self._should_cancel():
            return
        with trio.move_on_after(timeout) as scope:
            if capabilities.has_cancel_safe():
                cancelling = self.pgconn.cancel_conn()
                cancelling.start()
                if not await _polled(cancelling, cancelling.poll):
                    raise psycopg.OperationalError(f"cancellation failed: {cancelling.get_error_message('utf-8')}")
            else:
                await trio.to_thread.run_sync(self.cancel, limiter=trio.CapacityLimiter(1))
        if scope.cancelled_caught:
            raise psycopg.errors.CancellationTimeout("the server did not answer a request to cancel")

    async def close(self) -> None:
        """Close the connection; does not wait for the server."""
        self.discard()

    def discard(self) -> None:
        """Close the connection at once; what ran in it is rolled back by the server."""
        self._closed = True
        self.pgconn.finish()

    def discard_unless_idle(self) -> None:
        """Close the connection unless it is open and outside any transaction."""
        if self.pgconn.transaction_status != TransactionStatus.IDLE:
            self.discard()

    async def _drive(self, gen: Generator[Any, Any, _T], state: Any) -> _T:
        """Go on with ``gen``, which waits for ``state``."""
        try:
            while True:
                state = gen.send(await _ready(self.pgconn.socket, state))
        except StopIteration as stop:
            return cast("_T", stop.value)

    async def _abandon(self, gen: PQGen[_T], state: Any) -> None:
        """Cancel on the server and read what is left, so that the connection can serve again."""
        if self.pgconn.transaction_status != TransactionStatus.ACTIVE or self.pgconn.flush():
            # Either nothing runs, or the server has half a message and would not see a cancel: then only closing helps.
            return
        await self.cancel_safe()
        with suppress(psycopg.Error, StopIteration):
            await self._drive(gen, next(gen) if state is None else state)
        while self.pgconn.transaction_status == TransactionStatus.ACTIVE:
            rest = generators.fetch(self.pgconn)
            try:
                result = await self._drive(rest, next(rest))
            except StopIteration as stop:
                result = stop.value
            if result is None or result.status in _COPY:
                return


class _OneTask:
    """In the place of a connection's lock: free of checkpoints, and a second task is told instead of queued."""

    def __init__(self) -> None:
        self._held = False

    @contextmanager
    def held(self) -> Iterator[None]:
        if self._held:
            raise RuntimeError("a connection to Postgres serves one task at a time; this one is in use")
        self._held = True
        try:
            yield
        finally:
            self._held = False

    async def __aenter__(self) -> None:
        if self._held:
            raise RuntimeError("a connection to Postgres serves one task at a time; this one is in use")
        self._held = True

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held = False


async def connect(parameters: Mapping[str, str], *, seconds: float = 10.0) -> TrioConnection:
    """Connect to the first server of ``parameters`` (libpq's keywords) that answers, each tried for ``seconds``.

    The connection commits each statement by itself and prepares none. Checkpoints.

    Raises:
        psycopg.OperationalError: none answered or let us in; the last one's reason.
    """
    error: psycopg.Error = psycopg.OperationalError("no server is named")
    for attempt in await _attempts(parameters):
        with trio.move_on_after(seconds) as scope:
            try:
                pgconn = await _connected(make_conninfo("", **attempt))
            except psycopg.Error as failed:
                error = failed
                continue
            connection = TrioConnection(pgconn)
            connection._autocommit = True  # noqa: SLF001 - set_autocommit would only check what a new connection is
            connection.prepare_threshold = None
            return connection
        if scope.cancelled_caught:
            error = psycopg.errors.ConnectionTimeout(f"no answer within {seconds:g} s")
    raise error


async def _connected(conninfo: str) -> abc.PGconn:
    """Connect to one server."""
    pgconn = PGconn.connect_start(conninfo.encode())
    if pgconn.status == ConnStatus.BAD or not await _polled(pgconn, pgconn.connect_poll):
        error = psycopg.OperationalError(f"connection failed: {pgconn.get_error_message('utf-8')}")
        pgconn.finish()
        raise error
    pgconn.nonblocking = 1
    return pgconn


async def _polled(connection: abc.PGconn | abc.PGcancelConn, poll: Callable[[], int]) -> bool:
    """Poll as libpq asks to: wait until the socket is writable first, and after each poll as it says.

    psycopg's own generators poll at once (its issues 1335 and 1338). Where the kernel has not yet answered, libpq then
    takes the connection for made, and a server that refuses it for one that closed it.
    """
    status: int = PollingStatus.WRITING
    while status in (PollingStatus.READING, PollingStatus.WRITING):
        await _ready(connection.socket, Wait.R if status == PollingStatus.READING else Wait.W)
        status = poll()
    return status == PollingStatus.OK


async def _ready(descriptor: int, state: Any) -> Ready:
    """Wait for what a generator yielded."""
    if state == Wait.R:
        await trio.lowlevel.wait_readable(descriptor)
        return Ready.R
    if state == Wait.W:
        await trio.lowlevel.wait_writable(descriptor)
        return Ready.W
    found = 0

    async def watch(wait: Any, which: Ready) -> None:
        nonlocal found
        await wait(descriptor)
        found |= which
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, trio.lowlevel.wait_readable, Ready.R)
        nursery.start_soon(watch, trio.lowlevel.wait_writable, Ready.W)
    return Ready(found)


async def _attempts(parameters: Mapping[str, str]) -> list[dict[str, str]]:
    """One set of parameters for each address to try; names are looked up in a thread, since libpq would block."""
    defaults = {each.keyword.decode(): each.val.decode() for each in Conninfo.get_defaults() if each.val is not None}
    hosts = parameters.get("host", defaults.get("host", "")).split(",")
    ports = parameters.get("port", defaults.get("port", "5432")).split(",")
    if "hostaddr" in parameters:
        return [dict(parameters)]
    found = []
    failed: OSError | None = None
    for index, host in enumerate(hosts):
        attempt = {**parameters, "port": ports[index] if len(ports) == len(hosts) else ports[0]}
        if not host or host.startswith(("/", "@")):
            found.append(attempt | ({"host": host} if host else {}))
            continue
        try:
            ipaddress.ip_address(host)
            addresses = [host]
        except ValueError:
            try:
                answers = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except OSError as error:
                failed = error
                continue
            addresses = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
        found += [attempt | {"host": host, "hostaddr": address} for address in addresses]
    if not found:
        raise psycopg.OperationalError(f"could not look up {parameters.get('host')!r}: {failed}") from failed
    return found

"""HTTP/1.1 connections on Trio, and the pool that lends them out.

Theory of operation
-------------------
One *origin* (scheme, host, port) has a number of slots and a stack of idle connections. An exchange takes a slot
first, waiting for it as long as its caller's own scopes allow, then the newest idle connection that still looks alive,
or a new one. The slot and the connection are one *loan*, and a loan ends once, in one of two ways: ``finish`` (the
response was read to its end: the connection becomes idle) or ``drop`` (anything else: it is closed). Neither awaits,
so neither can be interrupted: a cancelled task closes its connection on the way out and frees its slot in the same
step. That is why sockets are closed directly here, without the farewell that TLS would like to wait for.

An idle connection is used again only if it is young and its socket has nothing to read: a readable idle socket is
either closed by the server or out of step.
"""

from __future__ import annotations

import math
import select
import ssl
from collections.abc import Callable
from typing import TypeAlias

import h11
import trio

__all__ = ["ConnectionPool", "Loan", "Origin", "TimedOutError"]

Origin: TypeAlias = tuple[str, str, int]
"""Scheme, host and port."""

_READ_BYTES = 65_536
_MAX_HEADER_BYTES = 65_536


class TimedOutError(Exception):
    """The peer was silent for longer than allowed; ``phase`` is ``connect``, ``write`` or ``read``."""

    def __init__(self, phase: str, seconds: float) -> None:
        super().__init__(f"{phase} took longer than {seconds:g} s")
        self.phase = phase
        self.seconds = seconds


class _Connection:
    """A socket, perhaps inside TLS, with the state of its protocol."""

    __slots__ = ("_socket", "_stream", "idle_since", "machine")

    def __init__(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream], sock: trio.SocketStream) -> None:
        self._stream = stream
        self._socket = sock.socket
        self.machine = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEADER_BYTES)
        self.idle_since = 0.0

    async def send(self, data: bytes, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._stream.send_all(data)
            return
        raise TimedOutError("write", seconds)

    async def receive(self, seconds: float) -> bytes:
        with trio.move_on_after(seconds):
            return bytes(await self._stream.receive_some(_READ_BYTES))
        raise TimedOutError("read", seconds)

    def is_fresh(self) -> bool:
        """Whether an idle socket is open and has nothing to read."""
        try:
            poll = select.poll()
            poll.register(self._socket.fileno(), select.POLLIN)
            return not poll.poll(0)
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        self._socket.close()


class _Slots:
    """What one origin has: slots, and connections that wait for their next use."""

    __slots__ = ("idle", "semaphore")

    def __init__(self, count: int) -> None:
        self.semaphore = trio.Semaphore(count, max_value=count)
        self.idle: list[_Connection] = []


class Loan:
    """A connection and its slot, for one exchange."""

    __slots__ = ("_connection", "_pool", "_slots")

    def __init__(self, pool: ConnectionPool, slots: _Slots) -> None:
        self._pool = pool
        self._slots: _Slots | None = slots
        self._connection: _Connection | None = None

    async def open(self, origin: Origin, seconds: float) -> None:
        """Take an idle connection or make one. On any failure ``drop`` is to be called.

        Raises:
            OSError, ssl.SSLError, trio.BrokenResourceError: there is no way to the address.
            TimedOutError: it took longer than ``seconds``.
        """
        if self._slots is None:
            raise RuntimeError("a loan that has ended cannot be opened")
        idle = self._slots.idle
        oldest = trio.current_time() - self._pool.keepalive_seconds
        while idle:
            connection = idle.pop()
            if connection.idle_since >= oldest and connection.is_fresh():
                self._connection = connection
                return  # noqa: ASYNC910 - taking the slot was a checkpoint
            connection.close()
        with trio.move_on_after(seconds):
            await self._connect(origin)
            return
        raise TimedOutError("connect", seconds)

    async def _connect(self, origin: Origin) -> None:
        scheme, host, port = origin
        tcp = await trio.open_tcp_stream(host, port)
        if scheme != "https":
            self._connection = _Connection(tcp, tcp)
            return
        try:
            tls = trio.SSLStream(tcp, self._pool.tls_context(), server_hostname=host, https_compatible=True)
            self._connection = _Connection(tls, tcp)
            await tls.do_handshake()
        except BaseException:
            tcp.socket.close()
            raise

    async def send(self, request: h11.Request, body: bytes, seconds: float) -> None:
        """Send a request whole.

        Raises:
            TimedOutError, trio.BrokenResourceError, trio.ClosedResourceError, h11.LocalProtocolError.
        """
        connection = self._current()
        data = connection.machine.send(request) or b""
        if body:
            data += connection.machine.send(h11.Data(data=body)) or b""
        data += connection.machine.send(h11.EndOfMessage()) or b""
        await connection.send(data, seconds)

    async def receive_head(self, seconds: float) -> h11.Response:
        """Return the status and headers of the response; ``seconds`` of silence at most.

        Raises:
            TimedOutError, trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError.
        """
        while True:
            event = await self._next_event(seconds)
            if isinstance(event, h11.Response):
                return event

    async def receive_body(self, seconds: float) -> bytes:
        """Return the next bytes of the body, ``b""`` at its end; then the loan has ended.

        Raises: as ``receive_head``.
        """
        if self._connection is None:
            return b""  # noqa: ASYNC910 - the end was told already
        while True:
            event = await self._next_event(seconds)
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if isinstance(event, h11.EndOfMessage):
                self.finish()
                return b""

    async def _next_event(self, seconds: float) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        connection = self._current()
        while True:
            event = connection.machine.next_event()
            if event is not h11.NEED_DATA:
                return event  # noqa: ASYNC910 - what was read already costs no pass of the scheduler
            connection.machine.receive_data(await connection.receive(seconds))

    def finish(self) -> None:
        """The exchange is complete: keep the connection where both sides would, and free the slot."""
        connection, slots = self._connection, self._slots
        if connection is None or slots is None or connection.machine.trailing_data[0]:
            self.drop()
            return
        try:
            connection.machine.start_next_cycle()
        except h11.LocalProtocolError:  # one side wants to close
            self.drop()
            return
        self._connection = None
        self._slots = None
        connection.idle_since = trio.current_time()
        if self._pool.is_closed:
            connection.close()
        else:
            slots.idle.append(connection)
        slots.semaphore.release()

    def drop(self) -> None:
        """Close the connection, if there is one, and free the slot; more than once is harmless."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._slots is not None:
            self._slots.semaphore.release()
            self._slots = None

    def _current(self) -> _Connection:
        if self._connection is None:
            raise trio.ClosedResourceError("this exchange has ended")
        return self._connection


class ConnectionPool:
    """Connections to any number of origins, at most ``max_connections`` in use to each.

    ``make_tls_context`` is called once, when the first https origin is reached; making one costs 25 ms.
    """

    def __init__(
        self,
        *,
        max_connections: int,
        keepalive_seconds: float,
        make_tls_context: Callable[[], ssl.SSLContext],
    ) -> None:
        self.keepalive_seconds = keepalive_seconds
        self.is_closed = False
        self._max_connections = max_connections
        self._make_tls_context = make_tls_context
        self._tls_context: ssl.SSLContext | None = None
        self._origins: dict[Origin, _Slots] = {}

    async def acquire(self, origin: Origin) -> Loan:
        """Wait for a slot. Checkpoints; a cancelled wait takes none."""
        slots = self._origins.get(origin)
        if slots is None:
            slots = self._origins[origin] = _Slots(self._max_connections)
        await slots.semaphore.acquire()
        return Loan(self, slots)

    def tls_context(self) -> ssl.SSLContext:
        """The one TLS context of this pool."""
        if self._tls_context is None:
            self._tls_context = self._make_tls_context()
        return self._tls_context

    def statistics(self) -> dict[str, int]:
        """Return the numbers of slots in use, of idle connections, and of tasks waiting for a slot."""
        used = idle = waiting = 0
        for slots in self._origins.values():
            used += self._max_connections - slots.semaphore.value
            idle += len(slots.idle)
            waiting += slots.semaphore.statistics().tasks_waiting
        return {"used": used, "idle": idle, "waiting": waiting}

    def close(self) -> None:
        """Close idle connections now, and those in use when their exchange ends."""
        self.is_closed = True
        for slots in self._origins.values():
            for connection in slots.idle:
                connection.close()
            slots.idle.clear()


def seconds_or_forever(seconds: float | None) -> float:
    """A bound for ``trio.move_on_after``."""
    return math.inf if seconds is None else seconds

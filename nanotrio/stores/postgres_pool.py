"""A few connections to one Postgres server, for reading; made on demand and replaced when they are lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
import trio

from ..errors import StoreError
from .postgres_address import PostgresAddress
from .postgres_connection import TrioConnection, connect
from .postgres_schema import explain, is_lost

__all__ = ["PostgresPool"]

_T = TypeVar("_T")
_PATIENCE_SECONDS = 10.0
"""How long a lost server is tried again before a read gives up."""
_FIRST_PAUSE = 0.02
_LAST_PAUSE = 1.0


class PostgresPool:
    """Connections that each serve one task at a time; at most ``size`` at once, more tasks wait."""

    def __init__(self, address: PostgresAddress, size: int = 4) -> None:
        self.address = address
        self._limiter = trio.CapacityLimiter(size)
        self._idle: list[TrioConnection] = []
        self._closed = False

    async def run(self, work: Callable[[TrioConnection], Awaitable[_T]], *, patient: bool) -> _T:
        """Do ``work`` on a connection, and return its result. Checkpoints; safe to cancel at any point.

        With ``patient``, a connection that was lost is replaced and ``work`` done again, for some 10 s, with growing
        pauses; so it must only read.

        Raises:
            StoreError: what the server or the way to it said.
        """
        pause, deadline = _FIRST_PAUSE, trio.current_time() + _PATIENCE_SECONDS
        while True:
            try:
                async with self._limiter:
                    return await self._once(work)
            except psycopg.Error as error:
                lost = is_lost(error)
                if lost:
                    # One that was lost tells of a server that went; the others would only be found out one by one.
                    self._drop_idle()
                if not (lost and patient) or trio.current_time() >= deadline:
                    raise explain(error, self.address) from error
            await trio.sleep(pause)
            pause = min(pause * 2, _LAST_PAUSE)

    async def _once(self, work: Callable[[TrioConnection], Awaitable[_T]]) -> _T:
        if self._closed:
            raise StoreError(f"{self.address.url} was closed; open it again")
        connection = self._idle.pop() if self._idle else await connect(self.address.parameters)
        try:
            return await work(connection)
        finally:
            # Whatever happened: one that is idle is as good as new, and any other is closed.
            connection.discard_unless_idle()
            self._take_back(connection)

    def _take_back(self, connection: TrioConnection) -> None:
        if self._closed:
            connection.discard()
        elif not connection.closed:
            self._idle.append(connection)

    def close(self) -> None:
        """Close the connections that are not in use now, and the others when they come back."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().discard()

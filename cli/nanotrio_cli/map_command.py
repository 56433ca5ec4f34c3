"""``nanotrio map``: an agent for each item of a file, results in order, and a job that goes on where it stopped.

Everything that can be known of the items is said before any money is spent. A signal or a reader that has gone
interrupts the work: nothing final is written, and the same command goes on.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import trio

from nanotrio import Approval, Limits, MapResult, Swarm, open_swarm
from nanotrio.counted import counted
from nanotrio.errors import NanotrioError, UsageError
from nanotrio.swarm import MapResults, MapStatistics, Template
from nanotrio.tools import standard_tools

from .data_folder import DataFolder
from .exits import FAILED, OK, USAGE, CommandError, CommandLineError, OutputClosedError, signal_code
from .faults import FaultLog, foreseen
from .instructions import system_prompt
from .map_arguments import MapRunOptions
from .map_items import GlobItems, Items, StdinItems, choose_items
from .map_output import ResultsFile, ResultsStream, Sink, open_sink, result_line
from .map_progress import MapProgress
from .map_rows import Row
from .map_survey import Duplicates, Survey, check_columns, prompt_of, survey_of
from .model_choice import chosen_model
from .money import view_cost
from .opening import Place, leftovers, result_schema
from .output import Output, encode_line, write_error, write_now
from .rules import Rules, rules_of
from .sessions import check_url
from .signals import signal_name, watch_signals

__all__ = ["run_map"]

_FLUSH_SECONDS = 0.2


def run_map(options: MapRunOptions, environment: Mapping[str, str], directory: Path) -> int:
    """Run the job and return the exit code.

    Raises:
        CommandLineError: a value of the command line cannot be used; nothing was written.
        CommandError: items that cannot be used; nothing was run.
        OutputClosedError: the reader has gone.
    """
    try:
        template = Template(options.prompt)
    except UsageError as error:
        raise CommandLineError(f"--prompt: {error}") from None
    if options.store:
        check_url(options.store)
    if options.output == "-":
        options = msgspec.structs.replace(options, output=None)
    schema = result_schema(options)
    items = choose_items(options.items, options.format, directory, options.output)
    survey = None
    if isinstance(items, StdinItems):
        if options.dry_run:
            raise CommandLineError("--dry-run reads all items first, so standard input cannot go with it; name a file")
        if items.form == "lines":
            check_columns(template, items, None, None)
    else:
        if isinstance(items, GlobItems):
            items.wants_text = "text" in template.fields
        survey = survey_of(items, template, options.duplicates, _tell)
    try:
        model = chosen_model(options.model, environment)
    except CommandError:
        if not options.dry_run:
            raise
        model = ""
    job = _job(options, items, model, schema, directory)
    if options.dry_run:
        assert survey is not None
        return _show(survey, model, job)
    with FaultLog(environment, write_error):
        return trio.run(_Map(options, environment, directory, _Work(template, items, survey, model, job, schema)).run)


class _Work(msgspec.Struct, frozen=True):
    """What is to be done, checked."""

    template: Template
    items: Items
    survey: Survey | None
    model: str
    job: str
    schema: dict[str, Any] | None


def _tell(line: str) -> None:
    write_error(f"nanotrio: {line}")


def _job(options: MapRunOptions, items: Items, model: str, schema: dict[str, Any] | None, directory: Path) -> str:
    """Return the job's id: the same for all that asks the same of the same items."""
    asked = (
        *(items.place, items.form, options.prompt, model, schema, system_prompt(options, directory), str(directory)),
        *(options.permission_mode, options.allowed_tools, options.denied_tools, options.max_turns),
    )
    text = msgspec.json.encode(asked, order="deterministic")
    return str(uuid.UUID(bytes=blake2b(text, digest_size=16).digest(), version=5))


def _show(survey: Survey, model: str, job: str) -> int:
    """Show what would be run; ``model`` may be empty, and then nobody knows which job it would be."""
    whose = f" for {model}, job {job}" if model else "; no model is chosen yet"
    lines = [f"{counted(survey.items, 'item')}{whose}"]
    if survey.duplicates:
        lines.append(f"{survey.duplicates:,} of the rows {_were(survey.duplicates)} there before")
    for where, prompt in survey.first:
        lines += ["", f"--- {where}", prompt]
    if survey.items > len(survey.first):
        lines += ["", f"--- and {survey.items - len(survey.first):,} more"]
    write_now("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    return OK


class _Map:
    def __init__(self, options: MapRunOptions, environment: Mapping[str, str], directory: Path, work: _Work) -> None:
        self._options = options
        self._environment = environment
        self._directory = directory
        self._work = work
        self._rules: Rules | None = None
        self._scope = trio.CancelScope()
        self._signal = 0
        self._reader_gone = False
        self._error = ""
        self._is_misused = False
        self._denied = 0
        self._written = 0
        self._first_failure = ""
        self._is_whole = False
        self._totals = MapStatistics(0, 0, 0, 0, 0)
        self._cost = ""
        self._began = time.monotonic()

    async def run(self) -> int:
        self._rules = rules_of(self._options, Place(None, self._work.job))
        total = self._work.survey.items if self._work.survey is not None else None
        is_shared = self._options.output is None  # then results go where the bar would stand
        with MapProgress(total, is_quiet=self._options.no_progress, is_shared=is_shared) as progress:
            sink = open_sink(self._options.output, lambda line: progress.say(f"nanotrio: {line}"))
            async with trio.open_nursery() as nursery:
                await nursery.start(watch_signals, self._on_signal)
                if isinstance(sink, ResultsStream):
                    nursery.start_soon(self._watch_reader, sink.output)
                with self._scope:
                    try:
                        await self._conduct(sink, progress)
                    except Exception as error:
                        known = foreseen(error)
                        if not isinstance(known, NanotrioError | CommandError | CommandLineError):
                            raise
                        self._error, self._is_misused = str(known), isinstance(known, CommandLineError)
                nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                try:
                    await sink.aclose(is_whole=self._is_whole)
                except CommandError as error:
                    self._error = self._error or str(error)
        if self._reader_gone:
            raise OutputClosedError
        return self._finish(total)

    def _on_signal(self, number: int) -> bool:
        self._signal = number
        self._scope.cancel()
        return True

    async def _watch_reader(self, output: Output) -> None:
        await output.wait_closed()
        self._reader_gone = True
        self._scope.cancel()

    async def _conduct(self, sink: Sink, progress: MapProgress) -> None:
        options, work = self._options, self._work
        url = options.store or f"sqlite:{DataFolder(self._environment).job_store(work.job)}"
        assert self._rules is not None
        async with open_swarm(
            store=url,
            model=work.model,
            tools=standard_tools(),
            system=system_prompt(options, self._directory),
            limits=Limits(**({} if options.max_turns is None else {"max_steps": options.max_turns})),
            max_active=options.concurrency,
            takeover=options.takeover,
            environment=self._environment,
            directory=self._directory,
            permission_mode=self._rules.mode,
            allowed_tools=options.allowed_tools,
            denied_tools=options.denied_tools,
            approve=self._answer,
        ) as swarm:
            for line in await leftovers(swarm):
                progress.say(f"nanotrio: {line}")
            if isinstance(sink, ResultsFile) and not options.takeover:  # its former owner may have the lock yet
                sink.lock()
            await self._map(swarm, sink, progress)

    async def _map(self, swarm: Swarm, sink: Sink, progress: MapProgress) -> None:
        options, work = self._options, self._work
        given: dict[str, Any] = {}
        if options.max_budget_usd is not None:
            given["budget_usd"] = options.max_budget_usd
        if options.item_budget_usd is not None:
            given["item_budget_usd"] = options.item_budget_usd
        if work.schema is not None:
            given["result_type"] = work.schema
        async with (
            swarm.map(
                self._prompt,
                self._rows(progress),
                job=work.job,
                key=lambda row: row.key,
                retries=options.retries,
                retry_failed=options.retry_failed,
                max_active=options.concurrency,
                **given,
            ) as results,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._watch, results, sink, progress)
            try:
                await self._take(results, sink)
            finally:
                self._note(results)
            nursery.cancel_scope.cancel()

    async def _take(self, results: MapResults, sink: Sink) -> None:
        async for result in results:
            await sink.write(encode_line(result_line(result)))
            self._written += 1
            if result.status != "completed" and not self._first_failure:
                self._first_failure = _failure(result, self._work.items.where(result.item))
        self._is_whole = self._written > 0

    async def _watch(self, results: MapResults, sink: Sink, progress: MapProgress) -> None:
        """Show how far it is, and let no line wait long in a buffer."""
        shown = trio.current_time()
        while True:
            await trio.sleep(min(progress.seconds, _FLUSH_SECONDS))
            self._note(results)
            if isinstance(sink, ResultsFile):
                sink.flush()
            if trio.current_time() - shown >= progress.seconds:
                shown = trio.current_time()
                progress.show(self._totals, self._cost)

    def _note(self, results: MapResults) -> None:
        self._totals = results.statistics()
        self._cost = view_cost(results.agent.view())

    def _prompt(self, row: Row) -> str:
        try:
            prompt = prompt_of(row, self._work.template)
        except UsageError as error:
            raise UsageError(f"{self._work.items.where(row)}: {error}") from None
        row.values = {}
        return prompt

    def _rows(self, progress: MapProgress) -> Iterator[Row] | AsyncIterator[Row]:
        items = self._work.items
        is_told = not isinstance(items, StdinItems)  # by the survey
        say = (lambda _: None) if is_told else (lambda line: progress.say(f"nanotrio: {line}"))
        duplicates = Duplicates(self._options.duplicates, items.where, say)
        if isinstance(items, StdinItems):
            return self._rows_of_input(items, duplicates)
        if self._options.duplicates == "keep":
            return (row for _, row in items.read())
        return (used for _, row in items.read() if (used := duplicates.check(row)) is not None)

    async def _rows_of_input(self, items: StdinItems, duplicates: Duplicates) -> AsyncIterator[Row]:
        """Yield the rows. Where there is none that is an error, as it is of a file: it ends nothing of a former run."""
        is_checked = False
        async for reader, row in items.read():
            if not is_checked:
                check_columns(self._work.template, items, reader, row)
                is_checked = True
            if (used := duplicates.check(row)) is not None:
                yield used
        if not is_checked:
            raise CommandError("standard input: there is no item in it; nothing was run")

    async def _answer(self, approval: Approval) -> bool | None:
        """Say what the command line says; nobody is there to ask."""
        await trio.lowlevel.checkpoint()
        assert self._rules is not None
        if self._rules.allow(approval):
            return True
        self._denied += 1
        return None

    def _finish(self, total: int | None) -> int:
        totals = self._totals
        if self._denied:
            write_error(
                f"nanotrio: {counted(self._denied, 'tool call')} {_were(self._denied)} denied, as nobody is there to "
                "ask; --allowedTools and --permission-mode say what is allowed"
            )
        if self._signal or self._error:
            of = f"of {counted(total, 'item')}" if total is not None else "items"
            why = f"interrupted by {signal_name(self._signal)}" if self._signal else self._error
            done = f"; {totals.completed + totals.failed:,} {of} are done" if totals.items else ""
            write_error(f"nanotrio: {why}{done}{'; the same command goes on' if totals.items else ''}")
            return signal_code(self._signal) if self._signal else USAGE if self._is_misused else FAILED
        if not totals.items:  # of a file that was emptied since it was surveyed
            write_error(f"nanotrio: {self._work.items.name}: there is no item in it; nothing was run")
            return FAILED
        parts = [f"{counted(totals.items, 'item')}: {totals.completed:,} completed, {totals.failed:,} failed"]
        if totals.restored:
            parts.append(f"{totals.restored:,} {_were(totals.restored)} done before")
        parts += [self._cost, f"{time.monotonic() - self._began:.1f} s"]
        if self._first_failure:
            parts.append(f"the first failure is {self._first_failure}")
        write_error(f"nanotrio: {'; '.join(parts)}")
        return FAILED if totals.failed else OK


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _failure(result: MapResult, where: str) -> str:
    """Return how an item failed, by its line or its file; of one without a prompt the reason names that already."""
    reason = (result.reason or result.status).removeprefix(f"item {result.index} has no prompt: ")
    return reason if reason.startswith(f"{where}: ") else f"{where}: {reason}"

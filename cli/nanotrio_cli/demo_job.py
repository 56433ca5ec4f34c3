"""The job that the demo's agents do, and the script that plays their model.

An almanac is made: an editor for each month under one root, and under each editor the writers of its pages. Half of
the writers put their page into a file with ``write``, a quarter sign a register through ``bash`` (some of them slowly),
and each tells the next one where it stopped. One month has a budget that is too small for it; its writers are brief.

The script is a function of the conversation alone, as a model is: it knows nothing of a kill but what the conversation
says. A writer who is told that the outcome of a command is unknown looks before it does the thing again.
"""

from __future__ import annotations

import re
import zlib
from typing import Any

import msgspec

from nanotrio.messages import Usage
from nanotrio.models import Conversation, Late, Price, Reply, ScriptedModel, reply_calls, reply_text
from nanotrio.turn import INTERRUPTED

__all__ = ["MIN_AGENTS", "REGISTER", "Month", "Plan", "demo_model", "job_of", "make_plan", "page_file"]

MIN_AGENTS = 20
"""Below this there is no room for three generations of which one month is refused."""

REGISTER = "register.txt"

_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_CAPPED_MONTH = 3
_PAGE = re.compile(r"Write page (\d+) of (\d+) of ([a-z]+)\.")
_MONTH = re.compile(r"Edit ([a-z]+): (\d+) pages\.")
_ALMANAC = re.compile(r"Make an almanac: ([^.]*)\.")
_ENTRY = re.compile(r"([a-z]+) (\d+)")
_CAP = re.compile(r"\(at most ([\d.]+) USD for ([a-z]+)\)")
_SLOW_SECONDS = 1.5
_PRICE = Price(input=3_000, output=15_000, cache_read=300, cache_write=3_750)
_USAGE = Usage(input=1_800, output=90)
"""Of each reply; with the price, about two thirds of a cent."""


class Month(msgspec.Struct, frozen=True):
    """An editor and its pages."""

    name: str
    pages: int


class Plan(msgspec.Struct, frozen=True):
    """Who there will be; root, editors and writers together are as many agents as were asked for."""

    months: tuple[Month, ...]
    capped: Month
    cap_usd: float

    @property
    def prompt(self) -> str:
        """What the root is asked."""
        months = ", ".join(f"{month.name} {month.pages}" for month in self.months)
        return f"Make an almanac: {months}. (at most {self.cap_usd:.2f} USD for {self.capped.name})"


def make_plan(agents: int) -> Plan:
    """Return the plan for that many agents, at least ``MIN_AGENTS``."""
    count = min(len(_MONTHS), max(2, agents // 20))
    pages, more = divmod(agents - 1 - count, count)
    months = tuple(Month(name, pages + (index < more)) for index, name in enumerate(_MONTHS[:count]))
    capped = months[min(_CAPPED_MONTH, count - 1)]
    # The editor's own calls, the reservation of one page, and then about a third of the pages.
    cap_usd = round(0.07 + capped.pages / 3 * _PRICE.cost_nano(_USAGE) / 1e9, 2)
    return Plan(months, capped, cap_usd)


def job_of(task: str) -> str:
    """Return what the agent of that task leaves outside the tree: ``file``, ``signature`` or nothing."""
    found = _PAGE.search(task)
    if found is None or _CAP.search(task):
        return ""
    return ("file", "signature", "file", "")[int(found[1]) % 4]


def page_file(name: str) -> str:
    """Return the file of a page, ``january-07``, below the job's directory."""
    return f"pages/{name}.txt"


def demo_model() -> ScriptedModel:
    """Return the model that all agents of the demo use."""
    return ScriptedModel(_script, name="scripted/demo", price=_PRICE)


def _script(conversation: Conversation) -> Late:
    task = conversation.task
    if found := _PAGE.search(task):
        reply = _writer(conversation, int(found[1]), int(found[2]), found[3], is_brief=_CAP.search(task) is not None)
    elif found := _MONTH.search(task):
        reply = _editor(conversation, found[1], int(found[2]), _CAP.search(task))
    else:
        reply = _root(conversation, task)
    # From 0.2 to 0.35 s, the same in every run. Two replies take longer than any one, so a message that goes out with
    # a writer's first finds the next writer still at work.
    return Late(reply, 0.2 + zlib.crc32(f"{task} {conversation.steps}".encode()) % 151 / 1000)


def _root(conversation: Conversation, task: str) -> Reply:
    if conversation.steps == 0:
        found, cap = _ALMANAC.search(task), _CAP.search(task)
        children = []
        for name, pages in _ENTRY.findall(found[1] if found else ""):
            is_capped = cap is not None and cap[2] == name
            child: dict[str, Any] = {"name": name, "prompt": f"Edit {name}: {pages} pages."}
            if cap is not None and is_capped:
                child |= {"prompt": f"{child['prompt']} {cap[0]}", "budget_usd": float(cap[1])}
            children.append(child)
        return _calls(("spawn_agents", {"agents": children}))
    if conversation.steps == 1:
        return _calls(("wait_agents", {}))
    return reply_text("The almanac is made, but for the pages its budget refused.", usage=_USAGE)


def _editor(conversation: Conversation, month: str, pages: int, cap: re.Match[str] | None) -> Reply:
    if conversation.steps == 0:
        children = [
            {
                "name": f"{month}-{page:02}",
                "prompt": f"Write page {page} of {pages} of {month}.{f' {cap[0]}' if cap else ''}",
                "tools": ["bash", "write", "send_message"],
            }
            for page in range(1, pages + 1)
        ]
        return _calls(("spawn_agents", {"agents": children}))
    if conversation.steps == 1:
        return _calls(("wait_agents", {}))
    return reply_text(f"{month.capitalize()} is edited: {pages} pages.", usage=_USAGE)


def _writer(conversation: Conversation, page: int, pages: int, month: str, *, is_brief: bool) -> Reply:
    name = f"{month}-{page:02}"
    results = conversation.results
    if any(result.content == INTERRUPTED for result in results):
        return _look_first(name, job_of(conversation.task))
    if results:
        return _calls(("submit_result", {"result": f"{name} is written"}))
    if conversation.steps:
        return reply_text(f"{name} is written; I have read what came later.", usage=_USAGE)
    if is_brief:
        return _calls(("submit_result", {"result": f"{name} is written, briefly"}))
    calls: list[tuple[str, dict[str, Any]]] = []
    if page < pages:
        calls.append(
            ("send_message", {"to": f"{month}-{page + 1:02}", "text": f"Page {page} ends at noon; go on there."})
        )
    job = job_of(conversation.task)
    if job == "file":
        calls.append(("write", {"path": page_file(name), "content": f"Page {page} of {month}.\n"}))
    elif job == "signature":
        wait = f"sleep {_SLOW_SECONDS}; " if page % 20 == 5 else ""
        calls.append(("bash", {"command": f"{wait}echo {name} >> {REGISTER}"}))
    return _calls(*calls) if calls else _calls(("submit_result", {"result": f"{name} is left white"}))


def _look_first(name: str, job: str) -> Reply:
    """Make sure of what a cut-off call was to do, without doing it twice."""
    if job == "signature":
        command = f"grep -qx {name} {REGISTER} || echo {name} >> {REGISTER}"
    else:
        command = f"test -s {page_file(name)} || echo 'Page {name}.' > {page_file(name)}"
    return _calls(("bash", {"command": command}))


def _calls(*calls: tuple[str, dict[str, Any]]) -> Reply:
    return reply_calls(*calls, usage=_USAGE)

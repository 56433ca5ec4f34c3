"""The model of the real job: what it does next follows from the conversation alone.

Theory of operation
-------------------
The root's plan is a list of *goals*. Each goal looks at the calls made for it so far and their results, and either is
reached, or names the next calls. A result that says the outcome is unknown never counts as done and is never simply
asked for again: the goal first looks at the world (reads the file, the log of effects or the list of agents).

Steps with a visible effect append ``begin NAME.N`` and ``end NAME.N`` to a log outside git. N counts the times that
the *model* asked, so a line that appears twice was run twice without the model being told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from tests.servers.conversation import Ask, Call, Conversation, Fault, Reply, Result

from .repository import FIXED_LINES

__all__ = ["SUMMARY", "think"]

SUMMARY = (
    "All tests pass. Fixed the discount and the free shipping bound in shop/prices.py; the other modules are fine."
)

_LOG = "../effects.log"
_STEP_SECONDS = 0.15
_CHECKS = {"stock": "shop/stock.py", "labels": "shop/labels.py"}
_MAX_CALLS = 60


class _Told(msgspec.Struct, frozen=True):
    """A call and what became of it."""

    call: Call
    result: Result

    @property
    def unknown(self) -> bool:
        return "unknown" in self.result.text.lower() and "interrupted" in self.result.text.lower()

    @property
    def failed(self) -> bool:
        text = self.result.text.lower()
        return self.unknown or self.result.is_error or text.startswith(("error", "interrupted", "cancelled"))


def think(conversation: Conversation) -> Reply | Fault:
    """Answer as the root, or as the child whose prompt opens the conversation."""
    history = [_Told(call, result) for call, result in conversation.calls()]
    if len(history) > _MAX_CALLS:
        return Reply(text="I give up: too many calls.")
    for name, path in _CHECKS.items():
        if f"Check the file {path}" in conversation.prompt:
            return _answer(_child(name, path, history), "Handed in.")
    return _answer(_root(history, _user_text(conversation)), SUMMARY)


def _answer(steps: Iterator[tuple[str, tuple[Ask, ...]]], summary: str) -> Reply:
    for text, calls in steps:
        return Reply(text=text, calls=calls, thinking=f"Next: {text}")
    return Reply(text=summary)


def _user_text(conversation: Conversation) -> str:
    return "\n".join(said.text for said in conversation.said if said.role == "user")


def _root(history: list[_Told], user_text: str) -> Iterator[tuple[str, tuple[Ask, ...]]]:
    """Yield the calls of each goal that is not reached yet, the next one first."""
    if not _read_well(history, "shop/prices.py") or not _read_well(history, "tests/test_prices.py"):
        paths = [path for path in ("shop/prices.py", "tests/test_prices.py") if not _read_well(history, path)]
        yield "I read the module and its test.", tuple(Ask("read", {"path": path}) for path in paths)
    if not any("FAILED" in told.result.text for told in _runs_of_tests(history)):
        yield "I run the tests.", (_test_run(len(_runs_of_tests(history))),)
    children: dict[str, str] = {}
    missing = []
    for name, path in _CHECKS.items():
        child = _child_id(history, f"check_{name}")
        if child is None:
            missing.append(
                Ask("spawn_agent", {"name": f"check_{name}", "prompt": f"Check the file {path} and hand in a result."})
            )
        else:
            children[name] = child
    if missing:
        if _spawn_in_doubt(history):
            yield "Some spawn is in doubt; who is there?", (Ask("list_agents", {}),)
        yield "Others check the other modules.", tuple(missing)
    for before, after in FIXED_LINES:
        yield from _edited(history, before.strip("\n"), after.strip("\n"))
    yield from _stepped(history, "fixed")
    if not any(told.result.text.rstrip().endswith("OK") for told in _runs_of_tests(history)):
        yield "I run the tests again.", (_test_run(len(_runs_of_tests(history))),)
    waiting = [child for child in children.values() if not _has_ended(history, user_text, child)]
    if waiting:
        yield "I wait for the checks.", (Ask("wait_agents", {"ids": waiting, "mode": "all", "timeout_seconds": 60}),)


def _child(name: str, path: str, history: list[_Told]) -> Iterator[tuple[str, tuple[Ask, ...]]]:
    if not _read_well(history, path):
        yield "I read it.", (Ask("read", {"path": path}),)
    yield from _stepped(history, name)
    handed = [told for told in history if told.call.name == "submit_result"]
    if not any(not told.failed for told in handed):
        yield "I hand in.", (Ask("submit_result", {"result": {"file": path, "ok": True}}),)


# -- goals -----------------------------------------------------------------------------------------------------------


def _read_well(history: list[_Told], path: str, since: int = 0) -> bool:
    return any(
        told.call.name == "read" and told.call.arguments.get("path") == path and not told.failed
        for told in history[since:]
    )


def _test_run(number: int) -> Ask:
    command = "PYTHONDONTWRITEBYTECODE=1 python3 -m unittest -q 2>&1"
    return Ask("bash", {"command": command, "description": f"Run the tests, time {number + 1}"})


def _runs_of_tests(history: list[_Told]) -> list[_Told]:
    return [told for told in history if told.call.name == "bash" and "unittest" in told.call.arguments["command"]]


def _child_id(history: list[_Told], name: str) -> str | None:
    """The id of the child, from whichever result showed it."""
    for told in history:
        if told.call.name in ("spawn_agent", "list_agents") and not told.failed:
            found = re.search(rf"\b{name}\.\d+", told.result.text)
            if found:
                return found[0]
    return None


def _spawn_in_doubt(history: list[_Told]) -> bool:
    """Whether a spawn may have happened and nobody has looked since."""
    doubted = [n for n, told in enumerate(history) if told.call.name == "spawn_agent" and told.failed]
    return bool(doubted) and not any(
        told.call.name == "list_agents" and not told.failed for told in history[doubted[-1] + 1 :]
    )


def _has_ended(history: list[_Told], user_text: str, child: str) -> bool:
    told = [
        told.result.text for told in history if told.call.name in ("wait_agents", "list_agents") and not told.failed
    ]
    return any(child in line and "completed" in line for text in (*told, user_text) for line in _statements(text))


def _statements(text: str) -> list[str]:
    """Lines, and JSON objects inside them, so that one agent's status is not taken for another's."""
    return [part for line in text.splitlines() for part in re.split(r"(?<=\}),", line)]


def _edited(history: list[_Told], before: str, after: str) -> Iterator[tuple[str, tuple[Ask, ...]]]:
    """One replacement in ``shop/prices.py``; after an unknown outcome the file is read before anything else."""
    mine = [
        n for n, told in enumerate(history) if told.call.name == "edit" and told.call.arguments["old_string"] == before
    ]
    if mine and not history[mine[-1]].failed:
        return
    if mine:
        looks = [told for told in history[mine[-1] + 1 :] if told.call.name == "read" and not told.failed]
        if not looks:
            yield "That edit is in doubt; I look at the file.", (Ask("read", {"path": "shop/prices.py"}),)
            return
        shown = looks[-1].result.text
        if re.search(rf"{re.escape(after.strip())}$", shown, re.MULTILINE):
            return
    yield "I edit the line.", (Ask("edit", {"path": "shop/prices.py", "old_string": before, "new_string": after}),)


def _stepped(history: list[_Told], name: str) -> Iterator[tuple[str, tuple[Ask, ...]]]:
    """One visible effect; after an unknown outcome the log is looked at before it is asked for again."""
    mine = [
        n
        for n, told in enumerate(history)
        if told.call.name == "bash" and f"end {name}." in told.call.arguments["command"]
    ]
    if mine and not history[mine[-1]].failed:
        return
    if mine:
        looks = [told for told in history[mine[-1] + 1 :] if "cat " in str(told.call.arguments.get("command"))]
        if not looks or looks[-1].failed:
            yield "That step is in doubt; I look at its log.", (Ask("bash", {"command": f"cat {_LOG}"}),)
            return
        if f"end {name}." in looks[-1].result.text:
            return
    label = f"{name}.{len(mine) + 1}"
    command = f"echo begin {label} >> {_LOG}; sleep {_STEP_SECONDS}; echo end {label} >> {_LOG}; echo did {label}"
    yield "I note the step.", (Ask("bash", {"command": command, "description": f"Step {label}"}),)

r"""Scripted models from a file, ``scripted:FILE``: a JSON document of rules.

::

    {
      "rules": [
        {"text": "list (?P<what>\\w+)", "calls": [{"name": "bash", "arguments": {"command": "ls ${what}"}}]},
        {"result": "No such file", "reply": "There is no such folder."},
        {"task": "flaky", "error": {"kind": "transient", "message": "overloaded", "times": 2}},
        {"step": 0, "reply": "Hello, you said: ${last}"},
        {"reply": "Done.", "latency_seconds": 0.1}
      ],
      "latency_seconds": 0,
      "price": {"input": 3000, "output": 15000, "cache_read": 300, "cache_write": 3750}
    }

The first rule whose conditions all hold makes the reply; a rule without conditions always does. Conditions:

``text``
    a regular expression, searched in the text of the last message, which must have text.
``result``
    the same for the results of tools in the last message, joined by line ends.
``task``
    the same for the text of the conversation's first message.
``step``
    the number of the assistant's messages so far, or an array of such numbers.

What the reply is: ``reply`` (text, also an empty one), ``thinking`` (text), ``calls`` (an array of ``name`` and
``arguments``, an object or, to try broken JSON, text), ``stop`` (``end``, ``max_tokens``, ``pause`` or ``refusal``),
``usage`` (``input``, ``output``, ``cache_read``, ``cache_write``; derived from sizes where it is left out),
``latency_seconds``. Or ``error`` with ``kind`` (see ``errors.ModelErrorKind``), ``message``, ``status``,
``retry_after_seconds`` and ``times``: how often this rule fails, counted over all conversations; afterwards the rule no
longer holds. Without ``times`` it always fails.
``about``, in the document and in each rule, is for the reader.

In texts and in the strings of arguments ``${NAME}`` stands for a group of that name, and ``${1}`` for a numbered
group, of the rule's regular expressions (``text`` before ``result`` before ``task``); ``${last}``, ``${task}``,
``${step}`` for the text of the last message (or its results), the first text and the step. ``$${`` stands for ``${``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast, get_args

import msgspec

from ..errors import ModelError, ModelErrorKind, UsageError
from ..messages import StopReason, Usage
from .model import Price, Reply
from .payload import excerpt
from .scripted import FREE, Conversation, Late, ScriptedModel, reply_calls

__all__ = ["load_script"]

_MAX_FILE_BYTES = 16 * 1024 * 1024
_TEMPLATE = re.compile(r"\$\$\{|\$\{(\w+)\}")
_OWN_NAMES = frozenset({"last", "task", "step"})


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] | str = {}


class _Error(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    message: str = "the script says so"
    status: int = 0
    retry_after_seconds: float | None = None
    times: int | None = None


class _UsageFields(msgspec.Struct, forbid_unknown_fields=True):
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0


class _Rule(msgspec.Struct, forbid_unknown_fields=True):
    text: str | None = None
    result: str | None = None
    task: str | None = None
    step: int | list[int] | None = None
    reply: str | None = None
    thinking: str = ""
    calls: list[_Call] = []
    error: _Error | None = None
    stop: StopReason | None = None
    usage: _UsageFields | None = None
    latency_seconds: float | None = None
    about: str = ""


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    rules: list[_Rule]
    latency_seconds: float = 0.0
    price: _UsageFields | None = None
    about: str = ""


class _ReadyRule:
    """A rule with its expressions compiled, and the number of times it may still fail."""

    __slots__ = ("failures_left", "patterns", "rule", "steps")

    def __init__(self, rule: _Rule, patterns: tuple[re.Pattern[str] | None, ...]) -> None:
        self.rule = rule
        self.patterns = patterns
        self.steps = None if rule.step is None else (rule.step if isinstance(rule.step, list) else [rule.step])
        self.failures_left = None if rule.error is None else rule.error.times

    def match(self, conversation: Conversation) -> list[re.Match[str]] | None:
        """The matches of the expressions, in order of precedence; None where the rule does not hold."""
        if self.failures_left == 0 or (self.steps is not None and conversation.steps not in self.steps):
            return None
        found = []
        for pattern, source in zip(self.patterns, (_last_text, _results, _task), strict=True):
            if pattern is None:
                continue
            subject = source(conversation)
            match = None if subject is None else pattern.search(subject)
            if match is None:
                return None
            found.append(match)
        return found

    def answer(self, conversation: Conversation, matches: list[re.Match[str]]) -> Reply | ModelError | Late:
        """What this rule says."""
        rule = self.rule
        answer: Reply | ModelError
        if rule.error is not None:
            if self.failures_left is not None:
                self.failures_left -= 1
            error = rule.error
            answer = ModelError(
                error.message,
                kind=cast("ModelErrorKind", error.kind),
                status=error.status,
                retry_after_seconds=error.retry_after_seconds,
            )
        else:
            answer = _reply(rule, conversation, matches)
        return answer if rule.latency_seconds is None else Late(answer, rule.latency_seconds)


def _reply(rule: _Rule, conversation: Conversation, matches: list[re.Match[str]]) -> Reply:
    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return _TEMPLATE.sub(lambda found: _value(found[1], conversation, matches), value)
        if isinstance(value, list):
            return [fill(item) for item in value]
        if isinstance(value, dict):
            return {name: fill(item) for name, item in value.items()}
        return value

    calls = [(call.name, fill(call.arguments)) for call in rule.calls]
    reply = reply_calls(*calls, text=fill(rule.reply or ""), thinking=fill(rule.thinking))
    usage = reply.usage if rule.usage is None else Usage(*msgspec.structs.astuple(rule.usage))
    return Reply(reply.parts, rule.stop or ("tool_use" if calls else "end"), usage)


def _value(name: str | None, conversation: Conversation, matches: list[re.Match[str]]) -> str:
    """What stands for ``${name}``; None is the escape."""
    if name is None:
        return "${"
    for match in matches:
        if name.isdecimal():
            if int(name) <= (match.re.groups):
                return match[int(name)] or ""
        elif name in match.re.groupindex:
            return match[name] or ""
    if name == "step":
        return str(conversation.steps)
    return conversation.task if name == "task" else _last(conversation)


def _last(conversation: Conversation) -> str:
    return conversation.last_text or _results(conversation) or ""


def _last_text(conversation: Conversation) -> str | None:
    return conversation.last_text or None


def _results(conversation: Conversation) -> str | None:
    results = conversation.results
    return "\n".join(result.content for result in results) if results else None


def _task(conversation: Conversation) -> str | None:
    return conversation.task


def load_script(path: str | Path) -> ScriptedModel:
    """Return the model whose rules are in the file at ``path``; its name is ``scripted:PATH``. Reads the file at once.

    Raises:
        UsageError: the file cannot be read or is no script; the message says where.
    """
    place = str(path)
    document = _parse(place, _read(place))
    rules = [_ready(place, index, rule) for index, rule in enumerate(document.rules)]
    name = f"scripted:{place}"

    def script(conversation: Conversation) -> Reply | ModelError | Late:
        for ready in rules:
            matches = ready.match(conversation)
            if matches is not None:
                return ready.answer(conversation, matches)
        return ModelError(
            f"no rule of {place} fits step {conversation.steps} of this conversation, whose last message is "
            f"{excerpt(_last(conversation), 80)!r}; add a rule without conditions at the end",
            kind="rejected",
        )

    price = FREE if document.price is None else Price(*msgspec.structs.astuple(document.price))
    return ScriptedModel(script, name=name, latency_seconds=document.latency_seconds, price=price)


def _read(place: str) -> str:
    try:
        with Path(place).open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read the script {place}: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise UsageError(f"the script {place} is larger than {_MAX_FILE_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{place}, line {line}: not UTF-8 text") from error


def _parse(place: str, text: str) -> _Document:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{place}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise UsageError(f"{place}: nested too deeply for a script") from error
    try:
        return msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        words = re.sub(r"\$\.rules\[(\d+)\]", lambda found: f"rule {int(found[1]) + 1}", str(error))
        raise UsageError(f"{place}: {words}; the format is described in nanotrio.models.script_file") from error


def _ready(place: str, index: int, rule: _Rule) -> _ReadyRule:
    """Check what the shape alone does not show, and compile."""
    where = f"{place}: rule {index + 1}"
    patterns = []
    groups = set(_OWN_NAMES)
    for field in ("text", "result", "task"):
        source: str | None = getattr(rule, field)
        try:
            pattern = None if source is None else re.compile(source, re.DOTALL)
        except re.error as error:
            raise UsageError(f"{where}: {field!r} is not a regular expression: {error}") from error
        patterns.append(pattern)
        if pattern is not None:
            groups |= set(pattern.groupindex) | {str(number) for number in range(pattern.groups + 1)}
    if rule.error is None:
        if rule.reply is None and not (rule.calls or rule.thinking):
            raise UsageError(f"{where} has neither 'reply' nor 'calls' nor 'error'")
    elif rule.reply is not None or rule.calls or rule.thinking:
        raise UsageError(f"{where} has both an 'error' and a reply; make two rules of it")
    elif rule.error.kind not in get_args(ModelErrorKind):
        raise UsageError(
            f"{where}: no error is of kind {rule.error.kind!r}; one of {', '.join(get_args(ModelErrorKind))}"
        )
    for name in _names_in([rule.reply, rule.thinking, [call.arguments for call in rule.calls]]):
        if name not in groups:
            raise UsageError(f"{where}: ${{{name}}} names no group of its expressions, nor last, task or step")
    return _ReadyRule(rule, tuple(patterns))


def _names_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [found[1] for found in _TEMPLATE.finditer(value) if found[1]]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [name for item in items for name in _names_in(item)]

"""Events as a person reads them: the answer as it streams, a tool call as one line, a note for what else matters.

Pure: events in, styled pieces of text out. Live pieces may be lost on the way, so the whole message that follows them
decides: what was not shown of it is shown then.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, assert_never

import msgspec

from nanotrio.messages import Message, ToolCall, text_of
from nanotrio.swarm.events import (
    AgentSpawned,
    AgentWaiting,
    AttemptRetried,
    BudgetWarned,
    Event,
    MemoryShort,
    MessageReplied,
    StoreTroubled,
    TextDelta,
    ThinkingDelta,
    ToolFinished,
    ToolStarted,
    TurnBegan,
    TurnFinished,
)

from .money import cost_text
from .printable import one_line, printable, visible

__all__ = ["Piece", "Style", "Transcript", "call_line", "call_text"]

Style: TypeAlias = Literal["answer", "thinking", "tool", "note", "error", "prompt"]

_LEADING = ("command", "path", "prompt", "to", "ids", "pattern", "url", "name", "result")
"""The arguments that say most about a call, the first that is there is shown."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Text of one style, safe for a terminal; newlines are in the text."""

    style: Style
    text: str


def call_line(call: ToolCall, width: int = 100) -> str:
    """Return a call on one line: the tool and its leading argument."""
    try:
        arguments = msgspec.json.decode(call.arguments, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeEncodeError):
        arguments = {}
    leading = next((arguments[name] for name in _LEADING if name in arguments), arguments or "")
    text = leading if isinstance(leading, str) else msgspec.json.encode(leading).decode()
    return one_line(f"{call.name}  {text}".rstrip(), width)


def call_text(call: ToolCall) -> str:
    """Return a call whole, for a person who must judge it: nothing is cut, control characters are spelled out."""
    try:
        arguments = msgspec.json.decode(call.arguments, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return f"{visible(call.name)} {visible(call.arguments)}"
    lines = [visible(call.name)]
    for name, value in arguments.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        first, *rest = visible(text).split("\n")
        lines.append(f"  {visible(name)}: {first}")
        lines.extend(f"    {line}" for line in rest)
    return "\n".join(lines)


class Transcript:
    """What one watcher has been shown of a tree; ``root`` is the agent whose answer streams."""

    def __init__(self, root: int, *, width: int = 100, everything: bool = False) -> None:
        self.root = root
        self._width = width
        self._everything = everything
        self._shown = ""
        """The part of the root's present message that was shown as it streamed."""
        self._mid_line = False
        self.is_blank = True
        """No answer has been shown yet."""

    def pieces(self, event: Event) -> list[Piece]:
        """Return what ``event`` adds to the screen."""
        if isinstance(event, StoreTroubled):
            text = event.message or "the store takes writes again"
            return self._line("error" if event.message else "note", text)
        if isinstance(event, MemoryShort):
            text = event.message or "there is memory for new agents again"
            return self._line("error" if event.message else "note", text)
        own = event.agent == self.root
        match event:
            case TextDelta():
                return self._stream(event.text) if own else []
            case MessageReplied():
                return self._message(event.message) if own else []
            case AttemptRetried():
                self._shown = "" if own else self._shown
                text = f"{event.name} tries again in {event.delay_seconds:.1f} s: {event.reason}"
                return self._line("note", text) if own or self._everything else []
            case ToolStarted():
                who = "" if own else f"{event.name}: "
                return self._line("tool", f"• {who}{call_line(event.call)}") if own or self._everything else []
            case ToolFinished():
                text = f"  {event.call.name} failed: {event.result.content}"
                return self._line("error", text) if own and event.result.is_error else []
            case AgentSpawned():
                return self._line("note", f"+ {event.name}: {event.task}") if event.parent else []
            case AgentWaiting():
                return self._line("note", f"{event.name} waits for {event.reason}") if self._everything else []
            case BudgetWarned():
                return self._line("error", event.message)
            case TurnFinished():
                return self._finished(event, own=own)
            case ThinkingDelta() | TurnBegan():
                return []
            case _:
                assert_never(event)

    def end_line(self) -> list[Piece]:
        """Return what brings the cursor to the beginning of a line."""
        if not self._mid_line:
            return []
        self._mid_line = False
        return [Piece("answer", "\n")]

    def _line(self, style: Style, text: str) -> list[Piece]:
        return [*self.end_line(), Piece(style, one_line(text, self._width) + "\n")]

    def _stream(self, text: str) -> list[Piece]:
        self._shown += text
        clean = printable(text)
        if not clean:
            return []
        self._mid_line = not clean.endswith("\n")
        self.is_blank = False
        return [Piece("answer", clean)]

    def _message(self, message: Message) -> list[Piece]:
        text, shown = text_of(message), self._shown
        self._shown = ""
        if not text:
            return self.end_line()
        if text.startswith(shown):
            return [*self._rest(text[len(shown) :]), *self.end_line()]
        return [*self.end_line(), *self._rest(text), *self.end_line()]

    def _rest(self, text: str) -> list[Piece]:
        pieces = self._stream(text)
        self._shown = ""
        return pieces

    def _finished(self, event: TurnFinished, *, own: bool) -> list[Piece]:
        outcome = event.outcome
        if own:
            self._shown = ""
            return self.end_line()
        failed = outcome.status != "completed"
        cost = cost_text(outcome.cost_nano, unpriced=outcome.unpriced, uncertain_nano=outcome.uncertain_nano)
        text = f"- {event.name} {outcome.status}  {cost}" + (f"  {outcome.reason}" if failed else "")
        return self._line("error" if failed else "note", text)

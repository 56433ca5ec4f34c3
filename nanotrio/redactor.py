"""Keys that nanotrio was given never reach a record: they become ``[NAME]`` before it is made.

A key is the value of a variable whose name ends in ``_KEY``, ``_TOKEN``, ``_SECRET`` or ``_PASSWORD``; one shorter
than 8 characters is not replaced, since it would be found in ordinary text. The model sees the same as the journal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import msgspec

from .messages import Part, Text, Thinking, ToolCall, clean_text

__all__ = ["RedactedStream", "Redactor"]

_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
_MIN_CHARACTERS = 8


class Redactor:
    """Replaces the secrets of one environment; costs nothing where there are none."""

    __slots__ = ("_beginnings", "_longest", "_names", "_pattern")

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._names: dict[str, str] = {}
        for name, value in environment.items():
            if name.upper().endswith(_ENDINGS) and len(value) >= _MIN_CHARACTERS:
                for spelling in _spellings(value):
                    self._names.setdefault(spelling, name)
        longest_first = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._longest = len(longest_first[0]) if longest_first else 0
        beginnings = dict.fromkeys([secret[:_MIN_CHARACTERS] for secret in longest_first])
        self._beginnings = re.compile(f"(?={'|'.join(map(re.escape, beginnings))})")

    def text(self, text: str) -> str:
        """Return ``text`` with each secret replaced by its name in brackets."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: f"[{self._names[found[0]]}]", text)

    def stream(self) -> RedactedStream | None:
        """Return what does the same for a text that comes in pieces; None where there are no secrets."""
        return None if self._pattern is None else RedactedStream(self)

    def begin(self, text: str) -> tuple[str, str]:
        """Return what is certain of a text that may go on, without secrets, and the rest, which may begin one."""
        assert self._pattern is not None
        done: list[str] = []
        at, edge = 0, self._edge(text, 0)
        while (found := self._pattern.search(text, at)) is not None and found.start() < edge:
            done += (text[at : found.start()], f"[{self._names[found[0]]}]")
            at = found.end()
            if at > edge:
                edge = self._edge(text, at)
        return "".join((*done, text[at:edge])), text[edge:]

    def _edge(self, text: str, start: int) -> int:
        """Return where the longest end of ``text`` begins that may be the beginning of a secret."""
        start = max(start, len(text) - self._longest + 1)
        short = max(start, len(text) - _MIN_CHARACTERS + 1)  # from here on what is left is shorter than a beginning
        for found in self._beginnings.finditer(text, start):  # a key may be very long: few places are worth a look
            if self._may_begin(text, found.start()):
                return found.start()
        return next((edge for edge in range(short, len(text)) if self._may_begin(text, edge)), len(text))

    def _may_begin(self, text: str, edge: int) -> bool:
        rest = text[edge:]
        return any(secret.startswith(rest) for secret in self._names if secret[0] == rest[0])

    def parts(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Return a reply's parts without secrets; thinking that holds one is dropped whole, since it is signed.

        Where the text parts hold a secret only together they become one.
        """
        if self._pattern is None:
            return parts
        texts = [part.text for part in parts if isinstance(part, Text)]
        if len(texts) > 1 and (whole := self.text("".join(texts))) != "".join(map(self.text, texts)):
            first = next(at for at, part in enumerate(parts) if isinstance(part, Text))
            rest = [part for part in parts[first:] if not isinstance(part, Text)]
            parts = (*parts[:first], Text(whole), *rest)
        kept: list[Part] = []
        for part in parts:
            if isinstance(part, Text):
                kept.append(Text(self.text(part.text)))
            elif isinstance(part, ToolCall):
                name, arguments, problem = map(self.text, (part.name, part.arguments, part.problem))
                kept.append(msgspec.structs.replace(part, name=name, arguments=arguments, problem=problem))
            elif isinstance(part, Thinking) and self._pattern.search(part.text):
                continue
            else:
                kept.append(part)
        return tuple(kept)


def _spellings(value: str) -> Iterator[str]:
    """Yield what a key can stand as: as it is, without the blanks of a careless export, and either within JSON.

    A call's arguments are JSON as the model wrote it, with characters beyond ASCII escaped or not.
    """
    for text in dict.fromkeys((value, clean_text(value), value.strip())):
        if len(text) >= _MIN_CHARACTERS:
            yield text
            yield json.dumps(text)[1:-1]
            yield json.dumps(text, ensure_ascii=False)[1:-1]


class RedactedStream:
    """One text that comes in pieces, cut anywhere.

    What it hands out, joined, is what ``Redactor.text`` makes of the whole. It holds back less than the longest
    secret, and only where that may be the beginning of one.
    """

    __slots__ = ("_held", "_redactor")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def feed(self, piece: str) -> str:
        """Take a piece; return what is certain now."""
        done, self._held = self._redactor.begin(self._held + piece)
        return done

    def end(self) -> str:
        """Return what was held back: the text is at its end."""
        rest, self._held = self._held, ""
        return self._redactor.text(rest)

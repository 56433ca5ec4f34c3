"""Keys that nanotrio was given never reach a record: they become ``[NAME]`` before it is made.

A key is the value of a variable whose name ends in ``_KEY``, ``_TOKEN``, ``_SECRET`` or ``_PASSWORD``; one shorter
than 8 characters is not replaced, since it would be found in ordinary text. The model sees the same as the journal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import msgspec

from .messages import Part, Text, Thinking, ToolCall

__all__ = ["Redactor"]

_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
_MIN_CHARACTERS = 8


class Redactor:
    """Replaces the secrets of one environment; costs nothing where there are none."""

    __slots__ = ("_names", "_pattern")

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._names: dict[str, str] = {}
        for name, value in environment.items():
            if name.upper().endswith(_ENDINGS) and len(value) >= _MIN_CHARACTERS:
                self._names.setdefault(value, name)
                self._names.setdefault(json.dumps(value)[1:-1], name)  # as it stands inside a call's arguments
        longest_first = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        """Return ``text`` with each secret replaced by its name in brackets."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: f"[{self._names[found[0]]}]", text)

    def parts(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Return a reply's parts without secrets; thinking that holds one is dropped whole, since it is signed."""
        if self._pattern is None:
            return parts
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

"""Prompts with places in them that an item fills in.

``{name}`` is a place; ``{{`` and ``}}`` stand for braces. What is filled in is text and never read as a template.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from ..errors import UsageError

__all__ = ["Template", "hint", "text_of", "values_of"]

_PLACES = re.compile(r"\{\{|\}\}|\{([^{}\n]*)\}|[{}]")
_NO_ITEM = (
    "cannot be filled into a template; items are texts, paths, numbers, lists, dicts, dataclasses or msgspec Structs, "
    "and a function from an item to its prompt, in place of the template, takes any"
)


class Template:
    """A prompt to be filled in.

    Attributes:
        fields: the names of its places, each once, in order.
    """

    def __init__(self, text: str) -> None:
        """Read a template.

        Raises:
            UsageError: a brace that stands alone, or a place without a name.
        """
        self._literals: list[str] = []
        self._names: list[str] = []
        literal, end = "", 0
        for place in _PLACES.finditer(text):
            literal += text[end : place.start()]
            end = place.end()
            found = place[0]
            if found in ("{{", "}}"):
                literal += found[0]
                continue
            name = (place[1] or "").strip()
            if not name:
                raise UsageError(
                    f"the template has a {found!r} at character {place.start() + 1} that names nothing; "
                    "write {item} or {COLUMN}, and {{ or }} for a brace"
                )
            self._literals.append(literal)
            self._names.append(name)
            literal = ""
        self._literals.append(literal + text[end:])
        self.fields = tuple(dict.fromkeys(self._names))

    def check(self, names: Collection[str]) -> None:
        """Look whether every place has a value among ``names``.

        Raises:
            UsageError: one has none; says which name is near it, or how a brace is written.
        """
        for name in self.fields:
            if name not in names:
                raise UsageError(f"{missing(name, names)}; {hint(name, names)}")

    def render(self, values: Mapping[str, Any]) -> str:
        """Return the template filled in.

        Raises:
            UsageError: a place has no value.
        """
        parts = [self._literals[0]]
        for name, literal in zip(self._names, self._literals[1:], strict=True):
            if name not in values:
                raise UsageError(missing(name, values))
            parts.append(text_of(values[name]))
            parts.append(literal)
        return "".join(parts)


def missing(name: str, names: Collection[str]) -> str:
    """Return the sentence that says that a place has no value, and which names have one."""
    return f"the template asks for {{{name}}}, and there is {', '.join(map(str, names)) or 'nothing'}"


def hint(name: str, names: Collection[str]) -> str:
    """Return what may have been meant by a place that has no value."""
    near = difflib.get_close_matches(name, [str(each) for each in names], n=1)
    return f"did you mean {{{near[0]}}}?" if near else "a brace of the text itself is written {{ or }}"


def text_of(value: Any) -> str:
    """Return a value as a template shows it: texts as they are, the rest as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def values_of(item: Any) -> Mapping[str, Any]:
    """Return the values of an item by name: ``item`` for the whole, and its fields where it has some.

    A path, or another ``os.PathLike``, is its text.

    Raises:
        UsageError: it is nothing that JSON can carry; says what an item may be.
    """
    if isinstance(item, str):
        return {"item": item}
    try:
        plain = msgspec.to_builtins(item, str_keys=True, enc_hook=_path_text)
    except UsageError as error:
        inner = "" if str(error) == type(item).__name__ else f"with a {error} in it "
        raise UsageError(f"an item of the type {type(item).__name__} {inner}{_NO_ITEM}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"an item of the type {type(item).__name__} {_NO_ITEM} ({error})") from None
    return {"item": plain, **plain} if isinstance(plain, dict) else {"item": plain}


def _path_text(value: Any) -> str:
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise UsageError(type(value).__name__)

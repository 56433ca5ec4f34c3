"""The ``edit`` tool: replace text in a file, and no other byte.

A model sees lines without their endings and cannot tell LF from CRLF, so a line break in ``old_string`` matches
either. In ``new_string`` a CRLF is meant as it stands, and an LF is given the ending that its line had: that of the
same line in the text it replaces where there is one, else that of its surroundings.
"""

from __future__ import annotations

import difflib
import re
from itertools import pairwise
from pathlib import Path

from ..errors import ToolError
from ..messages import clean_text
from .encoding import Encoding, require_text
from .files import read_whole
from .function import tool
from .paths import resolve_path, shown
from .replace import replace_file
from .tool import ToolContext

__all__ = ["edit"]

_BREAK = re.compile(r"\r?\n")
_NUMBERED = re.compile(r"^ *\d+\t", re.MULTILINE)
_MAX_ALIGNED = 500
"""Lines above which replaced and new lines are paired by order alone."""
_MAX_NAMED = 5


@tool(
    effect=True,
    description="Replace text in a file. The old text must occur exactly once, so give enough of its surroundings, "
    "without the line numbers that read shows.",
)
async def edit(
    context: ToolContext,
    path: str,
    old_string: str,
    new_string: str,
    replace_all: bool = False,
) -> str:
    """Replace text in a file.

    Args:
        context: of the call.
        path: relative to the working directory, absolute, or below ~.
        old_string: the text to replace, as it stands in the file.
        new_string: the text to put there.
        replace_all: replace every occurrence, not just one.
    """
    place = resolve_path(context, path)
    if not old_string:
        raise ToolError("old_string is empty; give the text to replace, or use write for a whole file")
    if old_string == new_string:
        raise ToolError("old_string and new_string are the same, so there is nothing to change")
    data = read_whole(place)
    encoding = require_text(place, data, "edited")
    new_string = clean_text(new_string)
    _check_characters(place, encoding, old_string, new_string)
    text = encoding.decode(data)
    spans = _find(text, old_string)
    if not spans:
        raise ToolError(_not_found(place, text, old_string))
    if len(spans) > 1 and not replace_all:
        raise ToolError(
            f"old_string occurs {len(spans)} times in {shown(place)} ({_line_numbers(text, spans)}); give more of "
            "what stands around the one you mean, or set replace_all"
        )
    if not encoding.is_known:
        _check_edges(place, text, spans)
    replace_file(place, encoding.encode(_replace(text, spans, new_string)))
    count = "1 place" if len(spans) == 1 else f"{len(spans)} places"
    return f"changed {shown(place)} in {count} ({_line_numbers(text, spans)})"


def _check_characters(place: Path, encoding: Encoding, old: str, new: str) -> None:
    if encoding.is_known or (old.isascii() and new.isascii()):
        return
    raise ToolError(
        f"{shown(place)} is in an encoding that is neither UTF-8 nor marked, so only plain ASCII in it can be "
        "replaced, by plain ASCII; give a smaller old_string, or convert the file first (iconv)"
    )


def _check_edges(place: Path, text: str, spans: list[tuple[int, int]]) -> None:
    """Refuse a match that may begin inside a character of two bytes, whose second byte can look like ASCII."""
    for start, _ in spans:
        if start and text[start - 1] >= "\x80" and text[start] >= "0":
            raise ToolError(
                f"{shown(place)} is in an encoding that is neither UTF-8 nor marked, and the match at line "
                f"{text.count(chr(10), 0, start) + 1} may begin inside a character; convert the file first (iconv)"
            )


def _find(text: str, old: str) -> list[tuple[int, int]]:
    if "\n" not in old:
        pattern = re.compile(re.escape(old))
    else:
        pattern = re.compile(r"\r?\n".join(re.escape(line) for line in _BREAK.split(old)))
    return [match.span() for match in pattern.finditer(text)]


def _replace(text: str, spans: list[tuple[int, int]], new: str) -> str:
    pieces = [text[: spans[0][0]]]
    ends = [start for start, _ in spans[1:]] + [len(text)]
    for (start, end), next_start in zip(spans, ends, strict=True):
        pieces += (_with_endings(text, start, end, new), text[end:next_start])
    return "".join(pieces)


def _with_endings(text: str, start: int, end: int, new: str) -> str:
    """Return ``new`` with the line endings that belong where it goes."""
    if "\n" not in new or "\r\n" not in text:
        return new
    old_lines, new_lines = _lines(text[start:end]), _lines(new)
    endings = [ending for _, ending in old_lines if ending]
    around = endings[-1] if endings else _ending_at(text, start, end)
    is_mixed = len(set(endings)) > 1
    chosen = _aligned(old_lines, new_lines, around) if is_mixed else [around] * len(new_lines)
    return "".join(
        body + (own if own in ("", "\r\n") else ending) for (body, own), ending in zip(new_lines, chosen, strict=True)
    )


def _lines(text: str) -> list[tuple[str, str]]:
    """Split into lines and their endings; the last has none."""
    bodies, endings = _BREAK.split(text), _BREAK.findall(text)
    return list(zip(bodies, [*endings, ""], strict=True))


def _ending_at(text: str, start: int, end: int) -> str:
    """Return the ending of the line that the span lies in, or of the line before."""
    if match := _BREAK.search(text, end):
        return match.group()
    before = text.rfind("\n", 0, start)
    return "\r\n" if before > 0 and text[before - 1] == "\r" else "\n"


def _aligned(old: list[tuple[str, str]], new: list[tuple[str, str]], around: str) -> list[str]:
    """Give each new line the ending of the old line it stands for."""
    if len(old) + len(new) > _MAX_ALIGNED:
        return [(old[i][1] if i < len(old) else "") or around for i in range(len(new))]
    matcher = difflib.SequenceMatcher(None, [body for body, _ in old], [body for body, _ in new], autojunk=False)
    chosen: list[str] = []
    for _, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        for index in range(new_end - new_start):
            source = min(old_start + index, max(old_end - 1, old_start - 1, 0))
            chosen.append(old[min(source, len(old) - 1)][1] or around)
    return chosen


def _line_numbers(text: str, spans: list[tuple[int, int]]) -> str:
    starts = [0] + [start for start, _ in spans[:_MAX_NAMED]]
    numbers, line = [], 1
    for before, start in pairwise(starts):
        line += text.count("\n", before, start)
        numbers.append(str(line))
    more = " ..." if len(spans) > _MAX_NAMED else ""
    return f"line{'s' if len(spans) > 1 else ''} {', '.join(numbers)}{more}"


def _not_found(place: Path, text: str, old: str) -> str:
    """Say that the text is not there, and what looks like it."""
    message = f"old_string does not occur in {shown(place)}"
    bare = _NUMBERED.sub("", old)
    if bare != old and _find(text, bare):
        return f"{message}, but without the line numbers of read it does; leave them out"
    wanted = [" ".join(line.split()) for line in old.splitlines() if line.strip()]
    if wanted:
        for number, line in enumerate(text.split("\n"), 1):
            if " ".join(line.split()) == wanted[0]:
                return f"{message}; line {number} is like its first, with other spaces or other lines after it"
    return f"{message}; read the file again, it may have changed"

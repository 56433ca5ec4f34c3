"""The Python in the documentation: each fenced block is a file under ``docs/examples``, and each of those is run.

A block opens with ```` ```python file=docs/examples/NAME.py ```` and holds the whole file, or, with ``lines=3-9`` after
it, those lines; a block of JSON may name its file in the same way. The file is the truth: ``python -m tests.documents``
writes the files' text into the blocks.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

from tests.source import ROOT

EXAMPLES = ROOT / "docs" / "examples"

_BLOCK = re.compile(r"^```(?P<language>python|json)(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """One fenced block of Python or JSON."""

    page: Path
    line: int
    language: str
    file: str
    """Relative to the project's root; empty where the block names none."""
    first: int
    last: int | None
    text: str

    def source(self) -> str:
        """Return the text that the named file has in those lines."""
        lines = (ROOT / self.file).read_text(encoding="utf-8").splitlines(keepends=True)
        return "".join(lines[self.first - 1 : self.last])


def pages() -> list[Path]:
    """Return the pages that people read."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """Return the page's Python blocks, and those of JSON that name a file, in order."""
    text = page.read_text(encoding="utf-8")
    found = [_block(page, text, match) for match in _BLOCK.finditer(text)]
    return [block for block in found if block.file or block.language == "python"]


def _block(page: Path, text: str, match: re.Match[str]) -> Block:
    info = dict(word.partition("=")[::2] for word in match["info"].split())
    first, _, last = info.get("lines", "1-").partition("-")
    line = text.count("\n", 0, match.start()) + 1
    return Block(
        page, line, match["language"], info.get("file", ""), int(first), int(last) if last else None, match["text"]
    )


def write() -> None:
    """Put the text of the files into the blocks that name them."""
    for page in pages():
        text = page.read_text(encoding="utf-8")

        def replaced(match: re.Match[str], page: Path = page, text: str = text) -> str:
            block = _block(page, text, match)
            return f"```{match['language']}{match['info']}\n{block.source()}```" if block.file else match[0]

        page.write_text(_BLOCK.sub(replaced, text), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(write())

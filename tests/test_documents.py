from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents import EXAMPLES, Block, blocks, pages
from tests.source import ROOT

BLOCKS = [block for page in pages() for block in blocks(page)]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def place(block: Block) -> str:
    return f"{block.page.relative_to(ROOT)}:{block.line}"


@pytest.mark.parametrize("block", BLOCKS, ids=place)
def test_a_block_of_python_is_the_text_of_its_file(block: Block) -> None:
    assert block.file, f"{place(block)} names no file: open it with ```python file=docs/examples/NAME.py"
    assert block.text == block.source(), f"{place(block)} differs from {block.file}: python -m tests.documents"


def test_each_example_is_shown_on_a_page() -> None:
    shown = {ROOT / block.file for block in BLOCKS}
    assert set(EXAMPLES.glob("*.py")) <= shown


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    targets = [target.partition("#")[0] for target in LINK.findall(page.read_text(encoding="utf-8"))]
    missing = [target for target in targets if target and "://" not in target and not (page.parent / target).exists()]
    assert not missing

"""Text of models and tools, made safe for a terminal.

What a model or a tool wrote must never move the cursor, change a title or reorder what a person reads, so control
characters and the characters that override the direction of text do not reach a terminal.
"""

from __future__ import annotations

from nanotrio.messages import clean_text

__all__ = ["one_line", "printable", "visible"]

_DIRECTION = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)
_CONTROL = (*(code for code in range(0x20) if code not in (0x09, 0x0A)), *range(0x7F, 0xA0))

_STRIP: dict[int, str | None] = dict.fromkeys((*_CONTROL, *_DIRECTION))
_STRIP |= {0x2028: "\n", 0x2029: "\n"}
_SHOW: dict[int, str] = {code: f"\\x{code:02x}" for code in _CONTROL} | {code: f"\\u{code:04x}" for code in _DIRECTION}
_FLAT: dict[int, str | None] = _STRIP | {0x09: " ", 0x0A: " ", 0x2028: " ", 0x2029: " "}


def printable(text: str) -> str:
    """Return ``text`` without control characters but for newlines and tabs; surrogates become U+FFFD."""
    return clean_text(text).translate(_STRIP)


def visible(text: str) -> str:
    r"""Return ``text`` with control characters spelled out (``\x1b``), for what a person must judge."""
    return clean_text(text).translate(_SHOW)


def one_line(text: str, width: int = 100) -> str:
    """Return the beginning of ``text`` on one line of at most ``width`` characters, ``…`` where it was cut."""
    flat = " ".join(clean_text(text[: 4 * width]).translate(_FLAT).split())
    return flat if len(flat) <= width else flat[: max(width - 1, 0)].rstrip() + "…"

"""Bars on a logarithmic scale, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

__all__ = ["bars"]

_WIDTH, _LABELS, _VALUES, _BAR, _GAP = 800, 290, 110, 13, 12
_COLOURS = ("#2b6cb0", "#b7b7b7")


def bars(title: str, names: tuple[str, str], rows: Sequence[tuple[str, float | None, float | None, str]]) -> str:
    """Return a plot: of each row a label, two values (None where there is none) and their unit; less is better."""
    values = [each for row in rows for each in row[1:3] if each and each > 0]  # a scale of powers has no other place
    low = 10 ** math.floor(math.log10(min(values) * 0.7))
    high = 10 ** math.ceil(math.log10(max(values)))
    room = _WIDTH - _LABELS - _VALUES
    height = 46 + len(rows) * (2 * _BAR + _GAP)
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="16" font-size="13" font-weight="bold">{escape(title)}</text>',
    ]
    for index, (name, colour) in enumerate(zip(names, _COLOURS, strict=True)):
        x = 8 + index * 150
        lines.append(f'<rect x="{x}" y="24" width="10" height="10" fill="{colour}"/>')
        lines.append(f'<text x="{x + 15}" y="33">{escape(name)}</text>')
    lines.append(f'<text x="{_WIDTH - 8}" y="33" text-anchor="end">logarithmic, less is better</text>')
    y = 46
    for label, *pair, unit in rows:
        lines.append(f'<text x="{_LABELS - 8}" y="{y + _BAR + 4}" text-anchor="end">{escape(label)}</text>')
        for value, colour in zip(pair, _COLOURS, strict=True):
            if value and value > 0:
                length = max(1.0, room * math.log10(value / low) / math.log10(high / low))
                lines.append(f'<rect x="{_LABELS}" y="{y}" width="{length:.1f}" height="{_BAR - 2}" fill="{colour}"/>')
                text = f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"
                lines.append(f'<text x="{_LABELS + length + 5:.1f}" y="{y + 10}">{escape(f"{text} {unit}")}</text>')
            y += _BAR
        y += _GAP
    return "\n".join([*lines, "</svg>"]) + "\n"

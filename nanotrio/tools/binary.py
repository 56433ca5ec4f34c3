"""Telling text from what is not, and naming what is not."""

from __future__ import annotations

import re

__all__ = ["binary_kind", "binary_output"]

_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b\x08", "gzip data"),
    (b"\x7fELF", "an ELF program"),
    (b"SQLite format 3\x00", "an SQLite database"),
)
_CONTROLS = re.compile("[\x01-\x06\x0e-\x1a\x1c-\x1f\x7f\ufffd]")
_SAMPLE_BYTES = 8192
_MAX_CONTROLS = 0.3
"""The share of characters no text has above which output that holds NUL is binary."""
_MAX_NULS = 0.6
"""The same for NUL, of which UTF-16 text has a half."""


def binary_kind(head: bytes) -> str:
    """Name a binary by its first bytes (file(1)'s magic numbers), or return nothing where they are of no known kind."""
    return next((kind for magic, kind in _KINDS if head.startswith(magic)), "")


def binary_output(head: bytes | bytearray) -> str:
    """Say what kind of binary a process's output is by its beginning, or return nothing where it is text.

    Output that is only partly damaged, or in another encoding, is still text: better shown than withheld.
    """
    sample = bytes(head[:_SAMPLE_BYTES])
    if kind := binary_kind(sample):
        return kind
    nuls = sample.count(0)
    if nuls > _MAX_NULS * len(sample):
        return "binary data"
    if nuls == 0:
        return ""
    text = sample.decode(errors="replace")
    return "binary data" if len(_CONTROLS.findall(text)) > _MAX_CONTROLS * len(text) else ""

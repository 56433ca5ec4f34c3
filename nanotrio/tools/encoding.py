"""How a file's bytes are text, such that unread and untouched bytes stay what they were."""

from __future__ import annotations

import codecs
from pathlib import Path

import msgspec

from ..errors import ToolError
from .binary import binary_kind
from .paths import shown

__all__ = ["UTF8", "Encoding", "encoding_of", "require_text"]


class Encoding(msgspec.Struct, frozen=True, gc=False):
    """An encoding in which every file we accept makes the round trip exactly.

    A file that is neither UTF-8 nor marked as UTF-16 is of an unknown encoding, in which ASCII means ASCII (Latin-1,
    Windows-1252, GBK, Shift-JIS nearly ...). Its bytes are carried as Latin-1 characters, which all bytes are.
    """

    name: str
    """A Python codec; ``"latin-1"`` carries an unknown one."""
    mark: bytes = b""

    @property
    def is_known(self) -> bool:
        """Whether characters above ASCII can be read and written."""
        return self.name != "latin-1"

    def decode(self, data: bytes) -> str:
        """Return the text after the mark."""
        return data[len(self.mark) :].decode(self.name)

    def encode(self, text: str) -> bytes:
        """Return the bytes of a file with this text."""
        return self.mark + text.encode(self.name)


UTF8 = Encoding("utf-8")


def encoding_of(data: bytes) -> Encoding | None:
    """Return the encoding of a whole file, None for a binary."""
    if data.startswith(codecs.BOM_UTF8):
        return _if_valid(Encoding("utf-8", codecs.BOM_UTF8), data)
    for name, mark in (("utf-16-le", codecs.BOM_UTF16_LE), ("utf-16-be", codecs.BOM_UTF16_BE)):
        if data.startswith(mark) and not data.startswith(codecs.BOM_UTF32_LE):
            return _if_valid(Encoding(name, mark), data)
    if 0 in data or binary_kind(data):
        return None
    return _if_valid(UTF8, data) or Encoding("latin-1")


def require_text(path: Path, data: bytes, verb: str) -> Encoding:
    """Return the encoding of ``path``'s whole content.

    Raises:
        ToolError: it is a binary.
    """
    encoding = encoding_of(data)
    if encoding is None:
        kind = binary_kind(data) or "a binary"
        raise ToolError(f"{shown(path)} is {kind} of {len(data):,} bytes, not text; it cannot be {verb} as text")
    return encoding


def _if_valid(encoding: Encoding, data: bytes) -> Encoding | None:
    try:
        encoding.decode(data)
    except UnicodeDecodeError:
        return None
    return encoding

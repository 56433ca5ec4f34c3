"""Reading one JSON document that a model's server sent, and the reasons why it may be unreadable."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from ..errors import ModelError
from ..messages import Usage, clean_text
from .retry import KNOWN_ERRORS

__all__ = ["decode_payload", "error_of", "excerpt"]

T = TypeVar("T")


def excerpt(text: str | bytes, size: int = 200) -> str:
    """Return the beginning of ``text`` on one line, at most ``size`` characters, fit for a message to a person."""
    if isinstance(text, bytes):
        text = text[: 4 * size].decode(errors="replace")
    line = " ".join(clean_text(text[: 4 * size]).split())
    line = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)
    return line if len(line) <= size else line[: size - 1] + "\N{HORIZONTAL ELLIPSIS}"


def decode_payload(decoder: msgspec.json.Decoder[T], data: bytes, usage: Usage | None) -> T:
    """Return ``data`` in the shape ``decoder`` was made for.

    A lone surrogate written as an escape, and bytes that are not UTF-8, are read too; the text they are in is to be
    cleaned when it is whole, since a pair may be cut over two events.

    Raises:
        ModelError: (transient, with ``usage``) it is not JSON, or not of that shape.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        problem: Exception = error
    except (msgspec.DecodeError, RecursionError):
        # msgspec refuses lone surrogates and invalid UTF-8; the standard library reads the first as they are.
        try:
            loose: Any = json.loads(data.decode(errors="replace"))
            converted: T = msgspec.convert(loose, decoder.type)
        except (ValueError, RecursionError) as error:
            problem = error
        else:
            return converted
    raise ModelError(
        f"the server broke the format of its stream ({excerpt(str(problem), 120)}): {excerpt(data)}",
        kind="transient",
        usage=usage,
    ) from problem


def error_of(document: Any) -> tuple[str, str]:
    """Return the name and the words of the error in a decoded body, each empty where there is none.

    Providers write ``{"error": {"type": ..., "code": ..., "message": ...}}``; compatible servers also write the
    error as plain text, or ``message`` or ``detail`` at the top.
    """
    if isinstance(document, list) and document:
        document = document[0]
    if not isinstance(document, dict):
        return "", ""
    error = document.get("error", document)
    if isinstance(error, str):
        return "", error
    if not isinstance(error, dict):
        return "", ""
    name = ""
    for field in ("code", "type"):
        value = error.get(field)
        if isinstance(value, str) and value and (not name or name not in KNOWN_ERRORS):
            name = value
    message = error.get("message") or error.get("detail") or ""
    return name, message if isinstance(message, str) else json.dumps(message)

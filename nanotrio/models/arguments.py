"""The arguments of a tool call, as a model wrote them.

What is stored and sent back must always be the text of a JSON object, and a call whose arguments were salvaged from
something broken must never run. So either the text is a whole object, or it is replaced by ``{}`` and the call
carries the problem.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import msgspec

from ..messages import ToolCall, clean_text
from .payload import excerpt

__all__ = ["MAX_ARGUMENTS_BYTES", "make_call", "parse_arguments", "unique_ids"]

MAX_ARGUMENTS_BYTES = 1_000_000
"""Bytes of one call's arguments; more is a problem that the model is told of."""

_decode_any = msgspec.json.Decoder().decode

_NOUNS = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
}


def parse_arguments(text: str, *, cut: bool = False) -> tuple[str, str]:
    """Return the text of a JSON object and a problem, of which one is empty: ``{}`` goes with a problem.

    An empty text is an object without members, as servers send for tools without parameters. An object that was
    encoded twice, so that it came as a JSON string, is accepted. ``cut`` says that the model's output limit was
    reached in this call; it changes the words of the problem, and makes an empty text one.
    """
    if not text.strip():
        return ("{}", "the output limit was reached before the arguments of this call began" if cut else "")
    # No character takes more than four bytes, so a short text need not be encoded to be counted.
    if len(text) > MAX_ARGUMENTS_BYTES // 4 and len(text.encode(errors="surrogatepass")) > MAX_ARGUMENTS_BYTES:
        return "{}", f"the arguments are longer than {MAX_ARGUMENTS_BYTES} bytes; pass large content in smaller pieces"
    try:
        value, is_clean = _decode(text)
        if isinstance(value, str):
            inner, is_clean = _decode(value)
            if isinstance(inner, dict):
                text, value = value, inner
    except (ValueError, RecursionError) as error:
        if cut:
            return "{}", "the output limit was reached in the middle of the arguments of this call"
        reason = "nested too deeply" if isinstance(error, RecursionError) else excerpt(str(error), 100)
        return "{}", f"the arguments are not valid JSON ({reason}): {excerpt(text, 80)}"
    if not isinstance(value, dict):
        return "{}", f"the arguments must be a JSON object, not {_NOUNS[type(value)]}: {excerpt(text, 80)}"
    # The model's own text, where every store and wire takes it as it is; else the value written anew.
    return (text if is_clean else clean_text(json.dumps(value, ensure_ascii=False))), ""


def make_call(call_id: str, name: str, text: str, *, cut: bool) -> ToolCall:
    """Return the call of ``name`` with the arguments in ``text``, read by ``parse_arguments``."""
    arguments, problem = parse_arguments(text, cut=cut)
    name = clean_text(name)
    if not name:
        problem = problem or "the call names no tool"
    return ToolCall(clean_text(call_id), name, arguments, problem)


def unique_ids(calls: list[ToolCall], reply_id: str) -> list[ToolCall]:
    """Return ``calls`` with an id each that no other of them has.

    Some servers leave ids out or repeat them; ``reply_id``, the server's name of the whole reply, then tells calls
    of different replies apart.
    """
    seen: set[str] = set()
    result = []
    for index, call in enumerate(calls):
        if not call.id or call.id in seen:
            stem = f"call_{reply_id}_{index}" if reply_id else f"call_{index}"
            while stem in seen:
                stem += "_"
            call = ToolCall(stem, call.name, call.arguments, call.problem)  # noqa: PLW2901 - the call under its new id
        seen.add(call.id)
        result.append(call)
    return result


def _decode(text: str) -> tuple[Any, bool]:
    """Return the value of ``text``, and whether the text is free of surrogates."""
    try:
        return _decode_any(text), True
    except (msgspec.DecodeError, UnicodeEncodeError):
        # Lone surrogates are refused by msgspec, but are a mere blemish here; everything else fails again.
        return json.loads(text, parse_constant=_refuse_constant), False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")

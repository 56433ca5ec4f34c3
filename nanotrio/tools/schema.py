"""What a function's signature says to a model: a JSON schema, and the check of what the model sends.

Arguments go through msgspec twice at most. The usual case, a valid object, is one typed decode. Only when that fails
is the object read again without types, to try aliases (``aliases.py``) and to say everything that is wrong at once.
"""

from __future__ import annotations

import copy
import inspect
import re
import typing
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from ..errors import ToolError, UsageError
from .aliases import argument_name
from .tool import ToolContext

__all__ = ["Signature", "read_docstring", "signature_of"]

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?|Attributes):\s*$")


class Signature(msgspec.Struct, frozen=True):
    """What a model is told of a function's arguments, and how they are read."""

    description: str
    parameters: dict[str, Any]
    """A JSON schema of type object."""
    context_name: str
    """The parameter that takes the ``ToolContext``, or empty."""
    parse: Callable[[str], dict[str, Any]]
    """As ``Tool.parse``."""


def signature_of(function: Callable[..., Any], name: str) -> Signature:
    """Read ``function``'s type hints and docstring.

    Raises:
        UsageError: a parameter has no type, a type JSON cannot carry, or cannot be passed by name.
    """
    hints = _hints(function, name)
    parameters = inspect.signature(function).parameters
    context_name = ""
    described: dict[str, inspect.Parameter] = {}
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(f"tool {name!r}: parameter {parameter.name!r} must be one that is passed by name")
        if parameter.name not in hints:
            raise UsageError(f"tool {name!r}: parameter {parameter.name!r} has no type; the model is told types")
        if hints[parameter.name] is ToolContext:
            context_name = parameter.name
        else:
            described[parameter.name] = parameter
    description, texts = read_docstring(inspect.getdoc(function) or "", tuple(described))
    fields = [_field(parameter, hints[parameter.name], texts) for parameter in described.values()]
    struct = msgspec.defstruct(name, fields, forbid_unknown_fields=True, kw_only=True)
    try:
        schema = _schema(struct, list(described.values()))
        decoder = msgspec.json.Decoder(struct)
    except TypeError as error:
        raise UsageError(f"tool {name!r} has a parameter of a type that JSON cannot carry: {error}") from error
    parse = _parser(name, struct, decoder, {p.name: p.default is p.empty for p in described.values()})
    return Signature(description or name.replace("_", " "), schema, context_name, parse)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise UsageError(
            f"tool {name!r}: a type in its signature cannot be found ({error}); types of tools stand at the top level "
            "of their module, not inside a function or under TYPE_CHECKING"
        ) from error


def _field(parameter: inspect.Parameter, hint: Any, texts: dict[str, str]) -> tuple[Any, ...]:
    text = texts.get(parameter.name)
    if text:
        hint = Annotated[hint, msgspec.Meta(description=text)]
    default = parameter.default
    if default is parameter.empty:
        return (parameter.name, hint)
    if isinstance(default, (list, dict, set, bytearray)):
        return (parameter.name, hint, msgspec.field(default_factory=lambda: copy.deepcopy(default)))
    return (parameter.name, hint, msgspec.field(default=default))


def _schema(struct: type[Any], parameters: list[inspect.Parameter]) -> dict[str, Any]:
    (reference,), components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    schema = dict(components.pop(reference["$ref"].removeprefix("#/$defs/")))
    schema.pop("title", None)
    schema.setdefault("required", [])
    for parameter in parameters:
        if isinstance(parameter.default, (list, dict)):
            schema["properties"][parameter.name].setdefault("default", parameter.default)
    if components:
        schema["$defs"] = components
    return schema


def _parser(
    name: str, struct: type[Any], decoder: msgspec.json.Decoder[Any], required: dict[str, bool]
) -> Callable[[str], dict[str, Any]]:
    def parse(text: str) -> dict[str, Any]:
        try:
            value = decoder.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError):
            value = _read_again(name, struct, text, required)
        return msgspec.structs.asdict(value)

    return parse


def _read_again(name: str, struct: type[Any], text: str, required: dict[str, bool]) -> Any:
    """Return the arguments read with aliases, or say all that is wrong with them."""
    try:
        given = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise ToolError(f"the arguments of {name} are not valid JSON: {error}") from error
    if not isinstance(given, dict):
        raise ToolError(f"the arguments of {name} must be a JSON object, not {_json_kind(given)}")
    arguments = _renamed(struct, given, required)
    faults = []
    if missing := [field for field, must in required.items() if must and field not in arguments]:
        faults.append(f"missing: {', '.join(missing)}")
    if unknown := [key for key in arguments if key not in required]:
        faults.append(f"unknown: {', '.join(unknown)} (it takes {', '.join(required) or 'none'})")
    faults += [fault for key in required if key in arguments and (fault := _fault(arguments[key], struct, key))]
    if faults:
        raise ToolError(f"wrong arguments for {name}; {'; '.join(faults)}")
    return msgspec.convert(arguments, struct)


def _renamed(struct: type[Any], given: dict[str, Any], required: dict[str, bool]) -> dict[str, Any]:
    """Return the arguments under our names, without the nulls that models write for "not given"."""
    arguments: dict[str, Any] = {}
    for key, value in given.items():
        field = argument_name(key, required)
        if field != key and (field in given or field in arguments):
            field = key
        if value is None and required.get(field) is False and _fault(None, struct, field):
            continue
        arguments[field] = value
    return arguments


def _fault(value: Any, struct: type[Any], field: str) -> str:
    """Say what is wrong with one argument, or nothing."""
    hint = next(info.type for info in msgspec.structs.fields(struct) if info.name == field)
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        return f"{field}: {str(error).replace('`$', f'`{field}')}"
    return ""


def _json_kind(value: object) -> str:
    kinds = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")


def read_docstring(text: str, names: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """Split a docstring into what the tool does and what each parameter means.

    The first paragraph is the description. A parameter is described by ``name: text`` where a line or a sentence
    begins, or in an ``Args:`` section; a description goes on to the end of its paragraph or to the next parameter.
    """
    if not names:
        return _joined(text.split("\n\n", 1)[0]), {}
    marker = re.compile(
        rf"(?:^|(?<=[.!?;])[ \t]+)[ \t]*({'|'.join(map(re.escape, names))})(?: *\([^)\n]*\))?:[ \t]+", re.MULTILINE
    )
    texts: dict[str, str] = {}
    description = ""
    for index, paragraph in enumerate(_paragraphs(text)):
        pieces = marker.split(paragraph)
        if index == 0:
            description = _joined(pieces[0])
        for name, meaning in zip(pieces[1::2], pieces[2::2], strict=True):
            texts.setdefault(name, _joined(meaning))
    return description, texts


def _paragraphs(text: str) -> list[str]:
    """Split at empty lines and at the titles of sections."""
    paragraphs: list[list[str]] = [[]]
    for line in text.splitlines():
        if not line.strip() or _SECTION.match(line.strip()):
            paragraphs.append([])
        else:
            paragraphs[-1].append(line)
    return ["\n".join(lines) for lines in paragraphs if lines]


def _joined(text: str) -> str:
    return " ".join(text.split())

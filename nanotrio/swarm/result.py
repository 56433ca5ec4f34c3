"""Holding a submitted result to the schema that was asked for."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from decimal import Decimal
from functools import lru_cache, partial
from itertools import islice
from typing import Any
from uuid import UUID

import msgspec

from ..errors import ToolError, UsageError
from ..messages import ToolSpec
from .cpu_limit import CpuLimitError, call_within

__all__ = ["check_result", "check_schema", "result_of_text", "schema_of", "with_schema"]

_FORMATS = {
    "date-time": dt.datetime,
    "date": dt.date,
    "time": dt.time,
    "duration": dt.timedelta,
    "uuid": UUID,
    "decimal": Decimal,
}
_MAX_PROBLEMS = 5
_MAX_FIELDS = 20
_MAX_PROBLEM_CHARACTERS = 200
_MAX_FOUND = 1_000
_MAX_CHECK_SECONDS = 0.25
"""Of processor time, in which nobody else runs; a result of 50 KB takes a few hundredths."""


def schema_of(result_type: Any) -> str:
    """Return a result type as the text of a JSON schema; empty for None.

    Raises:
        UsageError: it is neither a schema nor a type that JSON can carry.
    """
    if result_type is None:
        return ""
    if isinstance(result_type, str):
        return check_schema(result_type)
    try:
        if isinstance(result_type, dict):
            return check_schema(json.dumps(result_type))
        return json.dumps(msgspec.json.schema(result_type))
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        why = " ".join(str(error).split())
        raise UsageError(
            f"result_type {result_type!r} cannot be told as a JSON schema ({why}); "
            "give a msgspec Struct, a dataclass or a schema"
        ) from error


def check_schema(schema: str) -> str:
    """Return ``schema``, a text, if results can be held to it.

    Raises:
        UsageError: it is no JSON schema, or refers to what is not in it.
    """
    from jsonschema.exceptions import SchemaError

    try:
        validator = _validator(schema)
        call_within(_MAX_CHECK_SECONDS, lambda: validator.check_schema(validator.schema))
        _check_references(validator.schema)
    except CpuLimitError:
        raise UsageError(f"the schema of the result cannot be checked within {_MAX_CHECK_SECONDS} s") from None
    except SchemaError as error:
        raise UsageError(f"the schema of the result is no JSON schema: {error.json_path}: {error.message}") from error
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"the schema of the result is not JSON: {error}") from error
    except Exception as error:  # it is no object, or its "$schema" is no text
        raise UsageError(f"the schema of the result is no JSON schema: {type(error).__name__}: {error}") from error
    return schema


def _check_references(document: Any) -> None:
    """Refuse a reference that leads nowhere: no result would ever fit. Parts with names of their own are let be."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    references: dict[str, None] = {}
    parts = [document]
    for part in parts:
        if isinstance(part, dict):
            if isinstance(reference := part.get("$ref"), str):
                references[reference] = None
            parts += [each for name, each in part.items() if name not in ("const", "enum", "default", "examples")]
        elif isinstance(part, list):
            parts += part
    if any(isinstance(part, dict) and "$id" in part for part in parts[1:]):
        return
    resolver = Registry().resolver_with_root(DRAFT202012.create_resource(document))
    for reference in references:
        try:
            resolver.lookup(reference)
        except Unresolvable:
            raise UsageError(f"the schema of the result refers to {reference!r}, which is not in it") from None


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    from jsonschema.validators import validator_for
    from referencing import Registry

    document = json.loads(schema)
    if not isinstance(document, (dict, bool)):
        raise TypeError("it is not an object")
    # A registry of our own: the default one fetches what "$ref" names, over the network, while the loop stands still.
    return validator_for(document)(document, registry=Registry(), format_checker=_formats())


def _formats() -> Any:
    """Return what checks the formats that types are told as, so that a result which fits becomes one."""
    from jsonschema import FormatChecker

    checker = FormatChecker(formats=())
    for name, type_ in _FORMATS.items():
        checker.checks(name, msgspec.ValidationError)(partial(_convert_text, type_))
    return checker


def _convert_text(type_: Any, value: Any) -> bool:
    if isinstance(value, str):
        msgspec.convert(value, type_)
    return True


def check_result(schema: str, result: str) -> None:
    """Check the JSON text ``result`` against the JSON text ``schema``; an empty schema takes anything.

    Raises:
        ToolError: says what does not fit, for the model.
    """
    if not schema:
        return
    value = json.loads(result)
    try:
        validator = _validator(schema)
        found = call_within(_MAX_CHECK_SECONDS, lambda: list(islice(validator.iter_errors(value), _MAX_FOUND)))
    except CpuLimitError:
        raise ToolError(
            f"the result cannot be held to its schema within {_MAX_CHECK_SECONDS} s: there are too many ways to try a "
            "pattern in it, or its alternatives"
        ) from None
    except Exception as error:  # a reference that leads nowhere, a pattern that is none, nesting without end
        raise ToolError(f"the result cannot be held to its schema: {type(error).__name__}: {error}") from error
    if found:
        raise ToolError(f"the result does not fit its schema: {_told(value, found)}; submit it again")


def _told(value: Any, found: list[Any]) -> str:
    """Return what does not fit, fields that are missing and those that are present apart; a few hundred characters."""
    found = [closest for problem in found for closest in _closest(problem)]
    problems = sorted(found, key=lambda problem: list(map(str, problem.absolute_path)))
    missing = {
        _field(problem.json_path, name): None
        for problem in problems
        if problem.validator == "required" and isinstance(problem.instance, dict)
        for name in problem.validator_value
        if name not in problem.instance
    }
    told = [f"missing: {_some(missing)}"] if missing else []
    others = [
        f"{problem.json_path}: {_cut(problem.message)}" for problem in problems if problem.validator != "required"
    ]
    told += others[:_MAX_PROBLEMS]
    if len(others) > _MAX_PROBLEMS:
        told.append(f"and {len(others) - _MAX_PROBLEMS} more")
    if isinstance(value, dict):
        told.append(f"present: {_some(value) or 'nothing'}")
    return "; ".join(told)


def _closest(problem: Any) -> list[Any]:
    """Return what is wrong with the one alternative that was meant, where several are allowed and none fits.

    That is the only one of the value's own type, or, of several, the one whose tag it has; else the problem stands.
    """
    alternatives: dict[int, list[Any]] = {}
    for each in problem.context if problem.validator in ("anyOf", "oneOf") else ():
        alternatives.setdefault(each.relative_schema_path[0], []).append(each)
    meant = [found for found in alternatives.values() if not any(map(_is_of_another_type, found))]
    if len(meant) > 1:
        meant = [found for found in meant if not any(map(_is_of_another_tag, found))]
    if len(meant) != 1:
        return [problem]
    return [closest for each in meant[0] for closest in _closest(each)]


def _is_of_another_type(problem: Any) -> bool:
    return problem.validator in ("type", "const", "enum") and not problem.relative_path


def _is_of_another_tag(problem: Any) -> bool:
    return problem.validator in ("const", "enum") and len(problem.relative_path) == 1


def _field(path: str, name: str) -> str:
    return f"{path}.{name}".removeprefix("$.")


def _some(names: Iterable[str]) -> str:
    some = [_cut(name) for name in names]
    more = [f"and {len(some) - _MAX_FIELDS} more"] if len(some) > _MAX_FIELDS else []
    return ", ".join(some[:_MAX_FIELDS] + more)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_PROBLEM_CHARACTERS else f"{text[:_MAX_PROBLEM_CHARACTERS]} [cut]"


def result_of_text(schema: str, text: str) -> str:
    """Return the last text of a turn as the JSON text of its result; an empty schema leaves it to be what it is.

    Raises:
        ToolError: it does not fit the schema, neither as JSON nor as a string; says so for the model.
    """
    if not schema:
        return ""
    as_string = json.dumps(text, ensure_ascii=False)
    for result in (text, as_string):
        try:
            check_result(schema, result)
        except (ValueError, RecursionError, ToolError):
            continue
        return result
    raise ToolError(
        "Your turn is not over: a text alone is not taken as its result, which must fit this JSON schema: "
        f"{schema}\nHand the result in by submit_result."
    )


def with_schema(spec: ToolSpec, schema: str) -> ToolSpec:
    """Return the spec of ``submit_result`` as an agent sees it whose result is held to ``schema``."""
    if spec.name != "submit_result" or not schema:
        return spec
    told = f"{spec.description}\n\nThe result of this turn must fit this JSON schema: {schema}"
    return ToolSpec(spec.name, told, spec.parameters)

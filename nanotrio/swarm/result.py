"""Holding a submitted result to the schema that was asked for."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import msgspec

from ..errors import ToolError, UsageError

__all__ = ["check_result", "schema_of"]

_MAX_PROBLEMS = 5


def schema_of(result_type: Any) -> str:
    """Return a result type as the text of a JSON schema; empty for None.

    Raises:
        UsageError: it is neither a schema nor a type that JSON can carry.
    """
    if result_type is None:
        return ""
    if isinstance(result_type, str):
        return result_type
    if isinstance(result_type, dict):
        return json.dumps(result_type)
    try:
        return json.dumps(msgspec.json.schema(result_type))
    except TypeError as error:
        raise UsageError(f"result_type {result_type!r} cannot be told as a JSON schema: {error}") from error


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    from jsonschema.validators import validator_for

    document = json.loads(schema)
    return validator_for(document)(document)


def check_result(schema: str, result: str) -> None:
    """Check the JSON text ``result`` against the JSON text ``schema``; an empty schema takes anything.

    Raises:
        ToolError: says what does not fit, for the model.
    """
    if not schema:
        return
    value = json.loads(result)
    problems = sorted(_validator(schema).iter_errors(value), key=lambda problem: list(map(str, problem.absolute_path)))
    if not problems:
        return
    told = "; ".join([f"{problem.json_path}: {problem.message}" for problem in problems[:_MAX_PROBLEMS]])
    present = f"; present: {', '.join(value)}" if isinstance(value, dict) else ""
    raise ToolError(f"the result does not fit its schema: {told}{present}; submit it again")

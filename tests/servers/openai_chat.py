"""OpenAI Chat Completions, as strict as the provider is, or a little stricter.

Source: https://platform.openai.com/docs/api-reference/chat and its streaming page. Stricter than the provider: results
come in the order of their calls, a system message stands first, arguments in history are JSON objects, and a call must
name a tool that is declared or that this server asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .conversation import Call, Conversation, Reply, Result, Said, Tokens, WireRefusal
from .fields import joined, nonempty_list, only, refuse_unless
from .memory import Memory

__all__ = ["error_body", "error_event", "read", "reply_body", "reply_events"]

_TOP = frozenset(
    [
        "model",
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "n",
        "stop",
        "seed",
        "user",
        "metadata",
        "store",
        "response_format",
        "reasoning_effort",
        "frequency_penalty",
        "presence_penalty",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "verbosity",
        "modalities",
        "prediction",
    ]
)
_MESSAGE = {
    "system": frozenset(("role", "content", "name")),
    "developer": frozenset(("role", "content", "name")),
    "user": frozenset(("role", "content", "name")),
    "assistant": frozenset(("role", "content", "name", "tool_calls", "refusal", "reasoning_content")),
    "tool": frozenset(("role", "content", "tool_call_id")),
}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def read(body: Any, memory: Memory) -> Conversation:
    """Return the conversation in ``body``, or refuse it in the provider's words."""
    refuse_unless(isinstance(body, dict), "We could not parse the JSON body of your request.")
    for name in body:
        refuse_unless(name in _TOP, f"Unrecognized request argument supplied: {name}")
    refuse_unless(isinstance(body.get("model"), str), "you must provide a model parameter")
    stream = body.get("stream", False)
    refuse_unless(isinstance(stream, bool), "Invalid type for 'stream': expected a boolean")
    refuse_unless(
        stream or "stream_options" not in body,
        "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
    )
    if "stream_options" in body:
        only(body["stream_options"], frozenset(("include_usage", "include_obfuscation")), "stream_options.")
    refuse_unless(
        not ("max_tokens" in body and "max_completion_tokens" in body),
        "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
    )
    bound = body.get("max_completion_tokens", body.get("max_tokens"))
    refuse_unless(
        bound is None or (isinstance(bound, int) and bound > 0), "Invalid 'max_tokens': integer below minimum value"
    )
    tools = _tools(body)
    system, said = _messages(nonempty_list(body.get("messages"), "messages"), set(tools), memory)
    return Conversation(
        wire="openai-chat", model=body["model"], system=system, tools=tools, said=tuple(said), max_tokens=bound
    )


def _tools(body: dict[str, Any]) -> tuple[str, ...]:
    if "tools" not in body:
        refuse_unless(
            "parallel_tool_calls" not in body, "'parallel_tool_calls' is only allowed when 'tools' are specified."
        )
        return ()
    names: list[str] = []
    for index, tool in enumerate(nonempty_list(body["tools"], "tools")):
        where = f"tools[{index}]"
        refuse_unless(isinstance(tool, dict) and tool.get("type") == "function", f"Invalid value: '{where}.type'")
        only(tool, frozenset(("type", "function")), f"{where}.")
        function = tool.get("function")
        refuse_unless(isinstance(function, dict), f"Missing required parameter: '{where}.function'.")
        only(function, frozenset(("name", "description", "parameters", "strict")), f"{where}.function.")
        name, schema = function.get("name"), function.get("parameters", {"type": "object"})
        refuse_unless(isinstance(name, str) and _NAME.fullmatch(name), f"Invalid '{where}.function.name': bad pattern")
        refuse_unless(
            isinstance(schema, dict) and schema.get("type") == "object", f"Invalid schema for function '{name}'"
        )
        refuse_unless(name not in names, f"Duplicate function name '{name}'")
        names.append(name)
    return tuple(names)


def _messages(messages: list[Any], tools: set[str], memory: Memory) -> tuple[str, list[Said]]:
    said: list[Said] = []
    system: list[str] = []
    seen: set[str] = set()
    waiting: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        refuse_unless(isinstance(message, dict), f"Invalid type for '{where}': expected an object")
        role = message.get("role")
        refuse_unless(
            role in _MESSAGE, f"Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', 'tool'."
        )
        only(message, _MESSAGE[role], f"{where}.")
        if role != "tool":
            refuse_unless(
                not waiting,
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(waiting)}",
            )
        match role:
            case "system" | "developer":
                refuse_unless(not said, f"'{where}': a system message must come first")
                system.append(_content(message.get("content"), where))
            case "user":
                joined(said, "user", Said(role="user", texts=(_content(message.get("content"), where),)))
            case "assistant":
                refuse_unless(
                    said and said[-1].role == "user",
                    f"'{where}': an assistant message must follow a user's or a tool's",
                )
                one = _assistant(message, where, tools, seen, memory)
                waiting = [call.id for call in one.calls]
                said.append(one)
            case _:
                result = _result(message, where, waiting)
                waiting = waiting[1:]
                joined(said, "user", Said(role="user", results=(result,)))
    refuse_unless(not waiting, f"The following tool_call_ids did not have response messages: {', '.join(waiting)}")
    refuse_unless(said and said[-1].role == "user", "the last message must be a user's or a tool's")
    return "\n".join(system), said


def _content(content: Any, where: str, *, may_be_empty: bool = False) -> str:
    if isinstance(content, list):
        texts = []
        for number, part in enumerate(nonempty_list(content, f"{where}.content")):
            here = f"{where}.content[{number}]"
            refuse_unless(isinstance(part, dict) and part.get("type") == "text", f"Invalid value: '{here}.type'")
            only(part, frozenset(("type", "text", "cache_control")), f"{here}.")
            refuse_unless(isinstance(part.get("text"), str) and part["text"], f"Invalid '{here}.text': empty string")
            texts.append(part["text"])
        content = "\n".join(texts)
    refuse_unless(isinstance(content, str), f"Invalid value for '{where}.content': expected a string, got {content!r}")
    refuse_unless(content.strip() or may_be_empty, f"Invalid '{where}.content': empty string")
    return str(content)


def _assistant(message: dict[str, Any], where: str, tools: set[str], seen: set[str], memory: Memory) -> Said:
    content, raw = message.get("content"), message.get("tool_calls")
    texts = () if content is None else (_content(content, where),)
    if raw is None:
        refuse_unless(texts, f"Invalid value for '{where}.content': expected a string, got null.")
        return Said(role="assistant", texts=texts)
    calls = []
    for number, item in enumerate(nonempty_list(raw, f"{where}.tool_calls")):
        call = _call(item, f"{where}.tool_calls[{number}]")
        refuse_unless(call.id not in seen, f"Duplicate tool_call_id '{call.id}'")
        memory.check_call(call.id, call.name, call.arguments, tools, where)
        seen.add(call.id)
        calls.append(call)
    return Said(role="assistant", texts=texts, calls=tuple(calls))


def _call(item: Any, where: str) -> Call:
    refuse_unless(isinstance(item, dict) and item.get("type") == "function", f"Invalid value: '{where}.type'")
    only(item, frozenset(("id", "type", "function")), f"{where}.")
    function = item.get("function")
    refuse_unless(isinstance(item.get("id"), str) and item["id"], f"Missing required parameter: '{where}.id'.")
    refuse_unless(isinstance(function, dict), f"Missing required parameter: '{where}.function'.")
    only(function, frozenset(("name", "arguments")), f"{where}.function.")
    name, text = function.get("name"), function.get("arguments")
    refuse_unless(isinstance(name, str) and _NAME.fullmatch(name), f"Invalid '{where}.function.name': bad pattern")
    refuse_unless(isinstance(text, str), f"Invalid type for '{where}.function.arguments': expected a string")
    try:
        arguments = json.loads(text)
    except ValueError:
        raise WireRefusal(f"Invalid '{where}.function.arguments': not valid JSON: {text[:60]!r}") from None
    refuse_unless(isinstance(arguments, dict), f"Invalid '{where}.function.arguments': not an object: {text[:60]!r}")
    return Call(id=item["id"], name=str(name), arguments=arguments)


def _result(message: dict[str, Any], where: str, waiting: list[str]) -> Result:
    call_id = message.get("tool_call_id")
    refuse_unless(isinstance(call_id, str), f"Missing parameter '{where}.tool_call_id'")
    refuse_unless(
        call_id in waiting,
        f"Invalid parameter: '{where}' with role 'tool' must be a response to a preceding message with 'tool_calls'; "
        f"{call_id!r} is not waited for",
    )
    refuse_unless(call_id == waiting[0], f"'{where}': tool results are not in the order of their calls")
    return Result(call_id=str(call_id), text=_content(message.get("content"), where, may_be_empty=True))


# -- answers ---------------------------------------------------------------------------------------------------------


def _usage(tokens: Tokens) -> dict[str, Any]:
    prompt = tokens.input + tokens.cache_read + tokens.cache_write
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens.output,
        "total_tokens": prompt + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cache_read},
    }


def _stop(reply: Reply) -> str:
    return reply.stop or ("tool_calls" if reply.calls else "stop")


def _raw(arguments: dict[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def reply_body(
    reply: Reply, ids: tuple[str, ...], model: str, tokens: Tokens, _memory: Memory, message_id: str
) -> bytes:
    """Return the whole answer as one JSON object."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": ask.name, "arguments": _raw(ask.arguments)}}
            for call_id, ask in zip(ids, reply.calls, strict=True)
        ]
    answer = {
        "id": message_id,
        "object": "chat.completion",
        "created": 1_750_000_000,
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": _stop(reply)}],
        "usage": _usage(tokens),
    }
    return json.dumps(answer).encode()


def _chunk(message_id: str, model: str, choices: list[dict[str, Any]], **more: Any) -> bytes:
    data = {
        "id": message_id,
        "object": "chat.completion.chunk",
        "created": 1_750_000_000,
        "model": model,
        "choices": choices,
        **more,
    }
    return f"data: {json.dumps(data)}\n\n".encode()


def _deltas(reply: Reply, ids: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    size = reply.piece_characters
    yield {"role": "assistant", "content": None if reply.calls and not reply.text else ""}
    for name, text in (("reasoning_content", reply.thinking), ("content", reply.text)):
        for start in range(0, len(text), size):
            yield {name: text[start : start + size]}
    raws = [_raw(ask.arguments) for ask in reply.calls]
    for index, (call_id, ask) in enumerate(zip(ids, reply.calls, strict=True)):
        function = {"name": ask.name, "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        for start in range(0, len(raws[index]), size):
            yield {"tool_calls": [{"index": index, "function": {"arguments": raws[index][start : start + size]}}]}


def reply_events(
    reply: Reply,
    ids: tuple[str, ...],
    model: str,
    tokens: Tokens,
    _memory: Memory,
    message_id: str,
    *,
    with_usage: bool,
) -> Iterator[bytes]:
    """Yield the answer as server-sent events, the usage in a chunk of its own where asked, ``[DONE]`` last."""
    unsaid: dict[str, Any] = {"usage": None} if with_usage else {}
    for delta in _deltas(reply, ids):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        yield _chunk(message_id, model, [choice], **unsaid)
    last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": _stop(reply)}
    yield _chunk(message_id, model, [last], **unsaid)
    if with_usage:
        yield _chunk(message_id, model, [], usage=_usage(tokens))
    yield b"data: [DONE]\n\n"


def error_body(kind: str, message: str) -> bytes:
    """Return an error as the provider words it."""
    code = {"authentication_error": "invalid_api_key", "not_found_error": "model_not_found"}.get(kind)
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()


def error_event(kind: str, message: str) -> bytes:
    """Return an error that comes after a 200."""
    return b"data: " + error_body(kind, message) + b"\n\n"

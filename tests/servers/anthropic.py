"""Anthropic Messages, as strict as the provider is, or a little stricter.

Source: https://docs.anthropic.com/en/api/messages and .../streaming, .../errors, and the sentences that the provider
answers with. Stricter than the provider: results must come in the order of their calls, an assistant message must not
follow another, and a call must name a tool that is declared or that this server asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .conversation import Call, Conversation, Reply, Result, Said, Thought, Tokens, WireRefusal
from .fields import joined, nonempty_list, only, refuse_unless
from .memory import Memory

__all__ = ["error_body", "error_event", "read", "reply_body", "reply_events"]

_TOP = frozenset(
    [
        "model",
        "messages",
        "max_tokens",
        "system",
        "tools",
        "tool_choice",
        "stream",
        "temperature",
        "top_p",
        "top_k",
        "stop_sequences",
        "metadata",
        "thinking",
        "service_tier",
        "container",
        "context_management",
        "mcp_servers",
        "output_config",
        "output_format",
        "cache_control",
    ]
)
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")


def read(body: Any, memory: Memory) -> Conversation:
    """Return the conversation in ``body``, or refuse it in the provider's words."""
    refuse_unless(isinstance(body, dict), "body: Input should be an object")
    only(body, _TOP, "")
    for name, kind in (("model", str), ("max_tokens", int), ("messages", list)):
        refuse_unless(name in body, f"{name}: Field required")
        refuse_unless(
            isinstance(body[name], kind) and body[name] is not True, f"{name}: Input should be a {kind.__name__}"
        )
    refuse_unless(body["max_tokens"] > 0, "max_tokens: must be greater than or equal to 1")
    refuse_unless(isinstance(body.get("stream", False), bool), "stream: Input should be a valid boolean")
    markers = json.dumps(body).count('"cache_control": {')
    refuse_unless(markers <= 4, f"A maximum of 4 blocks with cache_control may be provided. Found {markers}.")
    tools = _tools(body.get("tools", []))
    said: list[Said] = []
    for index, message in enumerate(nonempty_list(body["messages"], "messages")):
        _read_message(message, f"messages.{index}", said, set(tools), body["model"], memory)
    refuse_unless(said[-1].role == "user", "This model does not support assistant message prefill.")
    refuse_unless(tools or not any(s.calls for s in said), "Requests which include `tool_use` blocks must define tools")
    return Conversation(
        wire="anthropic",
        model=body["model"],
        system=_system(body.get("system", "")),
        tools=tools,
        said=tuple(said),
        max_tokens=body["max_tokens"],
    )


def _system(value: Any) -> str:
    if isinstance(value, str):
        return value
    texts = []
    for index, block in enumerate(nonempty_list(value, "system")):
        texts.append(_text(block, f"system.{index}"))
    return "\n".join(texts)


def _tools(value: Any) -> tuple[str, ...]:
    refuse_unless(isinstance(value, list), "tools: Input should be a valid list")
    names = []
    for index, tool in enumerate(value):
        where = f"tools.{index}"
        refuse_unless(isinstance(tool, dict), f"{where}: Input should be an object")
        only(tool, frozenset(("name", "description", "input_schema", "cache_control", "type", "strict")), f"{where}.")
        name, schema = tool.get("name"), tool.get("input_schema")
        refuse_unless(isinstance(name, str) and _NAME.fullmatch(name), f"{where}.name: String should match pattern")
        refuse_unless(
            isinstance(schema, dict) and schema.get("type") == "object",
            f"{where}.input_schema.type: Input should be 'object'",
        )
        refuse_unless(name not in names, "tools: Tool names must be unique.")
        names.append(name)
    return tuple(names)


def _text(block: Any, where: str) -> str:
    refuse_unless(isinstance(block, dict) and block.get("type") == "text", f"{where}: Input should be a text block")
    only(block, frozenset(("type", "text", "cache_control")), f"{where}.text.")
    text = block.get("text")
    refuse_unless(isinstance(text, str), f"{where}.text.text: Input should be a valid string")
    refuse_unless(text, f"{where}: text content blocks must be non-empty")
    refuse_unless(text.strip(), f"{where}: text content blocks must contain non-whitespace text")
    return str(text)


def _read_message(message: Any, where: str, said: list[Said], tools: set[str], model: str, memory: Memory) -> None:
    refuse_unless(isinstance(message, dict), f"{where}: Input should be an object")
    only(message, frozenset(("role", "content")), f"{where}.")
    role, content = message.get("role"), message.get("content")
    refuse_unless(role in ("user", "assistant"), f'{where}.role: Input should be "user" or "assistant"')
    refuse_unless(said or role == "user", f'{where}: first message must use the "user" role')
    if isinstance(content, str):
        refuse_unless(content.strip(), f"{where}: all messages must have non-empty content")
        content = [{"type": "text", "text": content}]
    blocks = nonempty_list(content, f"{where}.content")
    if role == "assistant":
        refuse_unless(said[-1].role == "user", f"{where}: an assistant message directly after another")
        said.append(_assistant(blocks, where, said, tools, model, memory))
        return
    texts, results = _user(blocks, where)
    joined(said, "user", Said(role="user", texts=texts, results=results))
    _check_pairs(said, where)


def _check_pairs(said: list[Said], where: str) -> None:
    """Each call of the assistant's message is answered once, in order, in the message directly after it."""
    asked = [call.id for call in said[-2].calls] if len(said) > 1 else []
    answered = [result.call_id for result in said[-1].results]
    for call_id in answered:
        refuse_unless(
            call_id in asked,
            f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. Each `tool_result` block "
            "must have a corresponding `tool_use` block in the previous message.",
        )
    refuse_unless(len(set(answered)) == len(answered), f"{where}: each tool_use must have a single result")
    missing = [call_id for call_id in asked if call_id not in answered]
    refuse_unless(
        not missing,
        f"{where}: `tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(missing)}. "
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
    )
    refuse_unless(answered == asked, f"{where}: tool results are not in the order of their calls")


def _user(blocks: list[Any], where: str) -> tuple[tuple[str, ...], tuple[Result, ...]]:
    texts: list[str] = []
    results: list[Result] = []
    for number, block in enumerate(blocks):
        here = f"{where}.content.{number}"
        refuse_unless(isinstance(block, dict), f"{here}: Input should be an object")
        if block.get("type") == "tool_result":
            refuse_unless(not texts, f"{here}: tool_result blocks must come first in the content")
            results.append(_result(block, here))
        else:
            texts.append(_text(block, here))
    return tuple(texts), tuple(results)


def _result(block: dict[str, Any], where: str) -> Result:
    only(block, frozenset(("type", "tool_use_id", "content", "is_error", "cache_control")), f"{where}.tool_result.")
    call_id, content, is_error = block.get("tool_use_id"), block.get("content", ""), block.get("is_error", False)
    refuse_unless(isinstance(call_id, str), f"{where}.tool_result.tool_use_id: Field required")
    refuse_unless(isinstance(is_error, bool), f"{where}.tool_result.is_error: Input should be a valid boolean")
    if isinstance(content, list):
        content = "\n".join(_text(part, f"{where}.tool_result.content.{n}") for n, part in enumerate(content))
    refuse_unless(isinstance(content, str), f"{where}.tool_result.content: Input should be a valid string")
    refuse_unless(content or not is_error, f"{where}.tool_result: content cannot be empty if `is_error` is true")
    return Result(call_id=str(call_id), text=content, is_error=is_error)


def _assistant(blocks: list[Any], where: str, said: list[Said], tools: set[str], model: str, memory: Memory) -> Said:
    texts: list[str] = []
    calls: list[Call] = []
    thoughts: list[Thought] = []
    earlier = {call.id for one in said for call in one.calls}
    for number, block in enumerate(blocks):
        here = f"{where}.content.{number}"
        refuse_unless(isinstance(block, dict), f"{here}: Input should be an object")
        match block.get("type"):
            case "thinking":
                refuse_unless(number == len(thoughts), f"{here}: `thinking` blocks must come first")
                thoughts.append(_thought(block, here, model, memory))
            case "tool_use":
                call = _call(block, here)
                refuse_unless(call.id not in earlier, f"{where}: `tool_use` ids must be unique")
                memory.check_call(call.id, call.name, call.arguments, tools, here)
                earlier.add(call.id)
                calls.append(call)
            case _:
                refuse_unless(not calls, f"{here}: text after `tool_use` blocks")
                texts.append(_text(block, here))
    if calls and memory.expects_thinking(calls[0].id, model):
        refuse_unless(
            thoughts,
            f"{where}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{blocks[0].get('type')}`",
        )
    return Said(role="assistant", texts=tuple(texts), calls=tuple(calls), thoughts=tuple(thoughts))


def _thought(block: dict[str, Any], where: str, model: str, memory: Memory) -> Thought:
    only(block, frozenset(("type", "thinking", "signature")), f"{where}.thinking.")
    text, signature = block.get("thinking"), block.get("signature")
    refuse_unless(isinstance(text, str), f"{where}.thinking.thinking: Field required")
    refuse_unless(isinstance(signature, str) and signature, f"{where}.thinking.signature: Field required")
    thought = Thought(text=str(text), signature=str(signature))
    memory.check_thought(model, thought, where)
    return thought


def _call(block: dict[str, Any], where: str) -> Call:
    only(block, frozenset(("type", "id", "name", "input", "cache_control")), f"{where}.tool_use.")
    call_id, name, arguments = block.get("id"), block.get("name"), block.get("input")
    refuse_unless(
        isinstance(call_id, str) and _CALL_ID.fullmatch(call_id), f"{where}.tool_use.id: String should match pattern"
    )
    refuse_unless(
        isinstance(name, str) and _NAME.fullmatch(name), f"{where}.tool_use.name: String should match pattern"
    )
    if not isinstance(arguments, dict):
        raise WireRefusal(f"{where}.tool_use.input: Input should be a valid dictionary")
    return Call(id=str(call_id), name=str(name), arguments=arguments)


# -- answers ---------------------------------------------------------------------------------------------------------


def _usage(tokens: Tokens) -> dict[str, int]:
    return {
        "input_tokens": tokens.input,
        "cache_creation_input_tokens": tokens.cache_write,
        "cache_read_input_tokens": tokens.cache_read,
        "output_tokens": tokens.output,
    }


def _stop(reply: Reply) -> str:
    return reply.stop or ("tool_use" if reply.calls else "end_turn")


def reply_body(
    reply: Reply, ids: tuple[str, ...], model: str, tokens: Tokens, memory: Memory, message_id: str
) -> bytes:
    """Return the whole answer as one JSON object."""
    content: list[dict[str, Any]] = []
    if reply.thinking:
        signature = memory.sign(model, reply.thinking)
        content.append({"type": "thinking", "thinking": reply.thinking, "signature": signature})
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    for call_id, ask in zip(ids, reply.calls, strict=True):
        arguments = ask.arguments if isinstance(ask.arguments, dict) else {}
        content.append({"type": "tool_use", "id": call_id, "name": ask.name, "input": arguments})
    answer = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": _stop(reply),
        "stop_sequence": None,
        "usage": _usage(tokens),
    }
    return json.dumps(answer).encode()


def _event(name: str, **data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()


def _pieces(text: str, size: int) -> Iterator[str]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


def _block_events(index: int, start: dict[str, Any], deltas: list[dict[str, str]]) -> Iterator[bytes]:
    yield _event("content_block_start", index=index, content_block=start)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def reply_events(
    reply: Reply, ids: tuple[str, ...], model: str, tokens: Tokens, memory: Memory, message_id: str
) -> Iterator[bytes]:
    """Yield the answer as server-sent events, ``message_start`` to ``message_stop``."""
    size = reply.piece_characters
    message = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**_usage(tokens), "output_tokens": 1},
    }
    yield _event("message_start", message=message)
    yield _event("ping")
    index = 0
    if reply.thinking:
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(reply.thinking, size)]
        deltas.append({"type": "signature_delta", "signature": memory.sign(model, reply.thinking)})
        yield from _block_events(index, {"type": "thinking", "thinking": "", "signature": ""}, deltas)
        index += 1
    if reply.text:
        deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(reply.text, size)]
        yield from _block_events(index, {"type": "text", "text": ""}, deltas)
        index += 1
    for call_id, ask in zip(ids, reply.calls, strict=True):
        raw = ask.arguments if isinstance(ask.arguments, str) else json.dumps(ask.arguments)
        deltas = [{"type": "input_json_delta", "partial_json": ""}]
        deltas += [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(raw, size)]
        yield from _block_events(index, {"type": "tool_use", "id": call_id, "name": ask.name, "input": {}}, deltas)
        index += 1
    yield _event(
        "message_delta",
        delta={"stop_reason": _stop(reply), "stop_sequence": None},
        usage={"output_tokens": tokens.output},
    )
    yield _event("message_stop")


def error_body(kind: str, message: str) -> bytes:
    """Return an error as the provider words it."""
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_test"}).encode()


def error_event(kind: str, message: str) -> bytes:
    """Return an error that comes after a 200."""
    return _event("error", error={"type": kind, "message": message})

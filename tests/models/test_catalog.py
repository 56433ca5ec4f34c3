from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from nanotrio.errors import ModelError, NanotrioError, UnknownModelError, UsageError
from nanotrio.messages import Message, Text
from nanotrio.models import Price, open_model
from nanotrio.models.catalog import _PROVIDERS, _endpoint
from nanotrio.models.transport import open_client


@pytest.mark.parametrize(
    ("provider", "url", "endpoint"),
    [
        ("anthropic", "", "https://api.anthropic.com/v1/messages"),
        ("anthropic", "https://api.anthropic.com/", "https://api.anthropic.com/v1/messages"),
        ("anthropic", "http://h:1/v1", "http://h:1/v1/messages"),
        ("anthropic", "http://h:1/v1/", "http://h:1/v1/messages"),
        ("anthropic", "http://h:1/anthropic", "http://h:1/anthropic/v1/messages"),
        ("anthropic", "http://h:1/v1/messages", "http://h:1/v1/messages"),
        ("openai-chat", "", "https://api.openai.com/v1/chat/completions"),
        ("openai-chat", "http://h:1", "http://h:1/v1/chat/completions"),
        ("openai-chat", "http://h:1/v1", "http://h:1/v1/chat/completions"),
        ("openai-chat", "http://h:1/v1/", "http://h:1/v1/chat/completions"),
        ("openai-chat", "http://h:1/api/v3", "http://h:1/api/v3/chat/completions"),
        ("openai-chat", "http://h:1/v1/chat/completions", "http://h:1/v1/chat/completions"),
        ("openai-chat", "https://h/v1?api-version=2", "https://h/v1/chat/completions?api-version=2"),
    ],
)
def test_a_base_url_is_taken_with_and_without_its_version(provider: str, url: str, endpoint: str) -> None:
    assert _endpoint(provider, _PROVIDERS[provider], url) == endpoint


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("claude-sonnet-4-5", "lacks its provider.*did you mean anthropic/claude-sonnet-4-5"),
        ("gpt-4o", "did you mean openai-chat/gpt-4o"),
        ("anthropic", "lacks its provider"),
        ("anthropic/", "lacks its provider"),
        ("antropic/claude-sonnet-4-5", "no provider 'antropic'.*did you mean anthropic/claude-sonnet-4-5"),
        ("", "lacks its provider"),
        ("openai/gpt-5", "use openai-chat/gpt-5"),
        ("scripted/eco", "did you mean scripted/echo"),
        ("scripted/", "no script is registered"),
        ("google/gemini", "there are anthropic, openai-chat, scripted"),
    ],
)
def test_a_name_nobody_serves_is_refused_with_near_misses(name: str, words: str) -> None:
    with pytest.raises(UnknownModelError, match=words) as caught:
        open_model(name, environment={})
    assert "\n" not in str(caught.value)


def test_a_script_without_a_file_is_refused_as_such() -> None:
    with pytest.raises(UnknownModelError, match="names no file; write scripted:FILE"):
        open_model("scripted:", environment={})


SECRET = "sk-very-secret-value"


@pytest.mark.parametrize(
    ("name", "environment", "error", "words"),
    [
        ("anthropic/x", {}, ModelError, "set ANTHROPIC_API_KEY"),
        ("openai-chat/x", {}, ModelError, "set OPENAI_API_KEY"),
        ("openai-chat/x", {"ANTHROPIC_API_KEY": SECRET}, ModelError, "set OPENAI_API_KEY"),
        ("anthropic/x", {"ANTHROPIC_API_KEY": f"{SECRET}\nmore"}, ModelError, "cannot be a key"),
        ("anthropic/x", {"ANTHROPIC_API_KEY": f"\N{BULLET}{SECRET}"}, ModelError, "cannot be a key"),
        ("openai-chat/x", {"OPENAI_BASE_URL": "localhost:8000"}, UsageError, "OPENAI_BASE_URL is not an address"),
        ("openai-chat/x", {"OPENAI_BASE_URL": "http://"}, UsageError, "OPENAI_BASE_URL is not an address"),
        ("openai-chat/x", {"OPENAI_BASE_URL": "http://h:port/"}, UsageError, "OPENAI_BASE_URL is not an address"),
        ("openai-chat/x", {"OPENAI_BASE_URL": "http://[::1"}, UsageError, "OPENAI_BASE_URL is not an address"),
        ("anthropic/x", {"ANTHROPIC_BASE_URL": f"http://me:{SECRET}@h/"}, UsageError, "leave it out"),
    ],
)
def test_what_cannot_work_is_said_at_once_without_secrets(
    name: str, environment: dict[str, str], error: type[NanotrioError], words: str
) -> None:
    async def main() -> None:
        async with open_client({}) as client:
            with pytest.raises(error, match=words) as caught:
                open_model(name, environment=environment, client=client)
            assert SECRET not in str(caught.value)
            assert "\n" not in str(caught.value)

    trio.run(main)


def test_a_base_url_of_ones_own_needs_no_key() -> None:
    async def main() -> None:
        async with open_client({}) as client:
            for name, variable in (("openai-chat/llama", "OPENAI_BASE_URL"), ("anthropic/x", "ANTHROPIC_BASE_URL")):
                model = open_model(name, environment={variable: "http://127.0.0.1:1"}, client=client)
                assert model.name == name
                assert model.price is None

    trio.run(main)


def test_a_model_behind_http_needs_a_client() -> None:
    with pytest.raises(UsageError, match="open_client"):
        open_model("anthropic/x", environment={"ANTHROPIC_API_KEY": "k"})


def test_prices_come_from_the_list_unless_they_are_given() -> None:
    async def main() -> None:
        async with open_client({}) as client:
            environment = {"ANTHROPIC_API_KEY": " key\n"}
            name = "anthropic/claude-sonnet-4-5-20250929"
            assert open_model(name, environment=environment, client=client).price == Price(3_000, 15_000, 300, 3_750)
            own = Price(1, 2, 3, 4)
            assert open_model(name, environment=environment, client=client, price=own).price == own

    trio.run(main)


def test_a_script_file_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"rules": [{"reply": "hello"}]}))
    model = open_model(f"scripted:{path}", environment={})

    async def main() -> None:
        message = model.codec.encode_message(Message("user", (Text("x"),)), model.name)
        body = model.codec.join(model.codec.encode_head(model.name, "", [], 9), [message])
        assert (await model.attempt(body, None, idle_seconds=1)).parts == (Text("hello"),)

    trio.run(main)

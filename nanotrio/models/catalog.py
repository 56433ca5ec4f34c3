"""From a model's full name to a model that can be called.

===================  ==========================================================  ==========================
name                 what serves it                                              variables
===================  ==========================================================  ==========================
anthropic/NAME       the Messages API                                            ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL
openai-chat/NAME     the Chat Completions API, of OpenAI or a compatible server  OPENAI_API_KEY, OPENAI_BASE_URL
scripted/NAME        a script registered in this process                         none
scripted:FILE        the rules in a file                                         none
===================  ==========================================================  ==========================

A base URL may be given with or without the version at its end, or as the whole address of the endpoint: for Anthropic
``/v1`` is added unless the path ends with it, for OpenAI it is added where there is no path at all, since compatible
servers have paths of their own. With a base URL of one's own no key is needed; if there is one it is sent.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit, urlunsplit

import msgspec

from ..errors import ModelError, UnknownModelError, UsageError
from .anthropic import ANTHROPIC_VERSION, AnthropicCodec
from .model import Codec, Model, Price
from .openai_chat import OpenAIChatCodec
from .prices import find_price, known_models
from .script_file import load_script
from .scripted import find_script, registered_scripts

if TYPE_CHECKING:
    from .http_model import HttpModel
    from .transport import Client

__all__ = ["names_like", "open_model"]


class _Provider(msgspec.Struct, frozen=True):
    """What tells one HTTP provider from another."""

    key_variable: str
    url_variable: str
    default_url: str
    endpoint: str
    """Below the version of the API."""


_PROVIDERS = {
    "anthropic": _Provider("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "https://api.anthropic.com", "/messages"),
    "openai-chat": _Provider("OPENAI_API_KEY", "OPENAI_BASE_URL", "https://api.openai.com/v1", "/chat/completions"),
}


def open_model(
    name: str,
    *,
    environment: Mapping[str, str],
    client: Client | None = None,
    price: Price | None = None,
) -> Model:
    """Return the model with this full name.

    Keys and addresses come from ``environment`` alone. ``client`` carries the requests of HTTP models. ``price``
    replaces the list price. Nothing is sent: whether the key is good and the model exists shows at the first attempt.

    Raises:
        UnknownModelError: no provider serves such a name.
        UsageError: a script, a base URL or a missing client.
        ModelError: (auth) there is no key, or the value cannot be one.
    """
    if name.startswith("scripted:"):
        if not (file := name.removeprefix("scripted:")):
            raise UnknownModelError("'scripted:' names no file; write scripted:FILE, as in scripted:script.json")
        return load_script(file)
    provider_name, _, model_name = name.partition("/")
    if provider_name == "scripted":
        model = find_script(model_name)
        if model is None:
            near = _near(name, [f"scripted/{known}" for known in registered_scripts()])
            raise UnknownModelError(f"no script is registered as {name!r}{near}")
        return model
    if provider_name == "openai":
        raise UnknownModelError(
            f"{name!r} would use OpenAI's Responses API, which this version does not speak; "
            f"use openai-chat/{model_name}"
        )
    provider = _PROVIDERS.get(provider_name)
    if provider is None or not model_name.strip() or not name.isprintable():
        raise UnknownModelError(_unknown(name, provider_name, model_name))
    if client is None:
        raise UsageError(f"{name} is called over HTTP: open_model needs a client, see open_client")
    return _http_model(name, provider_name, provider, environment, client, price)


def _http_model(
    name: str,
    provider_name: str,
    provider: _Provider,
    environment: Mapping[str, str],
    client: Client,
    price: Price | None,
) -> HttpModel:
    from .http_model import HttpModel

    own_url = environment.get(provider.url_variable, "").strip()
    url = _endpoint(provider_name, provider, own_url)
    key = environment.get(provider.key_variable, "").strip()
    if not key and not own_url:
        raise ModelError(f"{name} needs a key: set {provider.key_variable}", kind="auth")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ModelError(
            f"the value of {provider.key_variable} cannot be a key: it holds blanks or characters that no key has; "
            "copy it again",
            kind="auth",
        )
    codec: Codec
    if provider_name == "anthropic":
        headers = {"anthropic-version": ANTHROPIC_VERSION}
        if key:
            headers["x-api-key"] = key
        codec = AnthropicCodec()
    else:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        codec = OpenAIChatCodec(limit_field="max_tokens" if own_url else "max_completion_tokens")
    near = _near(name, [known for known in _served() if known.startswith(f"{provider_name}/")])
    advice = {
        "auth": f"check {provider.key_variable}" if key else f"set {provider.key_variable}",
        "quota": f"the account behind {provider.key_variable} has nothing left to spend",
        "not_found": f"check the model's name{near}" + (f" and {provider.url_variable}" if own_url else ""),
        "unreachable": f"it comes from {provider.url_variable}" if own_url else "",
    }
    return HttpModel(
        name,
        codec=codec,
        client=client,
        url=url,
        headers=headers,
        price=find_price(name) if price is None else price,
        secrets={key: provider.key_variable} if key else {},
        advice=advice,
    )


def _endpoint(provider_name: str, provider: _Provider, own_url: str) -> str:
    """The whole address of the endpoint."""
    split = _checked(own_url or provider.default_url, provider.url_variable)
    path = split.path.rstrip("/")
    if not path.endswith(provider.endpoint):
        if not path.endswith("/v1") and (provider_name == "anthropic" or not path):
            path += "/v1"
        path += provider.endpoint
    return urlunsplit((split.scheme, split.netloc, path, split.query, ""))


def _checked(url: str, variable: str) -> SplitResult:
    # The value itself stays out of these messages: a password may stand in it.
    try:
        split = urlsplit(url)
        usable = split.scheme in ("http", "https") and bool(split.hostname) and url.isprintable() and " " not in url
        _ = split.port  # raises where it is no port
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"{variable} is not an address like https://host:port/path")
    if "@" in split.netloc:
        raise UsageError(f"{variable} holds a user name or password; leave it out and set the key in its own variable")
    return split


def _unknown(name: str, provider_name: str, model_name: str) -> str:
    if not model_name:
        names = [known for known in _served() if known.partition("/")[2] == name]
        hint = f"; did you mean {names[0]}?" if names else _near(name, [*_served(), "scripted/echo"])
        return f"the model name {name!r} lacks its provider, as in anthropic/claude-sonnet-4-5{hint}"
    providers = [*_PROVIDERS, "scripted"]
    return f"no provider {provider_name!r} is known (of model {name!r}); there are {', '.join(providers)}" + _near(
        name, _served()
    )


def names_like(name: str) -> str:
    """Return the end of a message about a model whose price nobody knows: priced names like it, or nothing."""
    return _near(name, _served())


def _served() -> list[str]:
    """Names of priced models that this version can call."""
    return [known for known in known_models() if known.partition("/")[0] in _PROVIDERS]


def _near(name: str, known: list[str]) -> str:
    """The end of a message: names like ``name``, or nothing."""
    if name in known:
        return ""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(close)}?" if close else ""

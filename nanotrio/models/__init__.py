"""Models: pure codecs, one transport, scripted models, prices, and the rules of trying again."""

from .anthropic import AnthropicCodec, AnthropicDecoder
from .catalog import open_model
from .http_model import HttpModel
from .model import Codec, Decoder, Delta, Model, Price, Reply
from .openai_chat import OpenAIChatCodec, OpenAIChatDecoder
from .prices import ModelFacts, find_facts, find_price, known_models, price_date
from .retry import RateGate, classify, delay_seconds, retry_after_seconds
from .script_file import load_script
from .scripted import (
    FREE,
    Conversation,
    Late,
    Script,
    ScriptedCodec,
    ScriptedModel,
    find_script,
    register_script,
    registered_scripts,
    reply_calls,
    reply_text,
)
from .sse import EventParser
from .transport import Client, TrioTransport, open_client

__all__ = [
    "FREE",
    "AnthropicCodec",
    "AnthropicDecoder",
    "Client",
    "Codec",
    "Conversation",
    "Decoder",
    "Delta",
    "EventParser",
    "HttpModel",
    "Late",
    "Model",
    "ModelFacts",
    "OpenAIChatCodec",
    "OpenAIChatDecoder",
    "Price",
    "RateGate",
    "Reply",
    "Script",
    "ScriptedCodec",
    "ScriptedModel",
    "TrioTransport",
    "classify",
    "delay_seconds",
    "find_facts",
    "find_price",
    "find_script",
    "known_models",
    "load_script",
    "open_client",
    "open_model",
    "price_date",
    "register_script",
    "registered_scripts",
    "reply_calls",
    "reply_text",
    "retry_after_seconds",
]

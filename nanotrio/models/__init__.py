"""Models: pure codecs, one transport, scripted models, prices, and the rules of trying again.

What needs httpx, which takes 80 ms to import, is left to ``models.transport`` (``open_client``) and
``models.http_model``; ``open_model`` imports these when a model behind HTTP is first asked for.
"""

from .anthropic import AnthropicCodec, AnthropicDecoder
from .catalog import open_model
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
    split_request,
)
from .sse import EventParser

__all__ = [
    "FREE",
    "AnthropicCodec",
    "AnthropicDecoder",
    "Codec",
    "Conversation",
    "Decoder",
    "Delta",
    "EventParser",
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
    "classify",
    "delay_seconds",
    "find_facts",
    "find_price",
    "find_script",
    "known_models",
    "load_script",
    "open_model",
    "price_date",
    "register_script",
    "registered_scripts",
    "reply_calls",
    "reply_text",
    "retry_after_seconds",
    "split_request",
]

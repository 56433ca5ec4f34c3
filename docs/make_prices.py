"""Write nanotrio/models/prices.json from the data of the package ``genai-prices``.

A development script: run it with a Python that has genai-prices, when prices have changed::

    python docs/make_prices.py nanotrio/models/prices.json

A model's entry is ``[input, output, cache_read, cache_write, window]``: nano-USD per token, rounded up, and the
context window in tokens, 0 where it is unknown. Where a price is higher for long prompts the base price is taken. A
class without a price of its own costs what input costs.
"""

from __future__ import annotations

import json
import math
import re
import sys
from datetime import date
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

from genai_prices.data import providers

PROVIDERS = ("anthropic", "openai")
DATED = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest)$")
UNUSED = re.compile(
    r"embedding|whisper|tts|dall-e|image|moderation|realtime|transcribe|audio|sora|davinci|babbage|ada|curie|ft:|:"
)


def nano(amount: Any) -> int | None:
    """Turn USD per million tokens into nano-USD per token; of a tiered price the base."""
    if amount is None:
        return None
    base = getattr(amount, "base", amount)
    return math.ceil(Decimal(base) * 1000)


def current(prices: Any, today: date) -> Any:
    """The prices that hold today, where they change with the date."""
    if not isinstance(prices, list):
        return prices
    chosen = None
    for conditional in prices:
        constraint = conditional.constraint
        if constraint is None or (hasattr(constraint, "start_date") and constraint.start_date <= today):
            chosen = conditional.prices
    return chosen


def names_of(model: Any) -> set[str]:
    """Every plain name in the rules by which the package matches a model."""
    names = {model.id}
    todo = [model.match]
    while todo:
        clause = todo.pop()
        todo.extend(getattr(clause, "or_", ()))
        for field in ("equals", "starts_with"):
            name = getattr(clause, field, None)
            if name and re.fullmatch(r"[a-z0-9.-]*[a-z0-9]", name) and not re.search(r"ft-|-20\d\d$", name):
                names.add(name)
    return names


def main() -> None:
    """Write the file named on the command line."""
    today = date.today()  # noqa: DTZ011 - the date of the developer
    models: dict[str, dict[str, list[int]]] = {}
    for provider in providers:
        if provider.id not in PROVIDERS:
            continue
        table: dict[str, list[int]] = {}
        for model in provider.models:
            prices = current(model.prices, today)
            cost_in, cost_out = (nano(getattr(prices, f"{side}_mtok", None)) for side in ("input", "output"))
            if cost_in is None or cost_out is None or UNUSED.search(model.id):
                continue
            read, write = (nano(getattr(prices, f"cache_{verb}_mtok", None)) for verb in ("read", "write"))
            row = [cost_in, cost_out, cost_in if read is None else read, cost_in if write is None else write]
            row.append(model.context_window or 0)
            for name in names_of(model):
                table.setdefault(name, row)
        for name in list(table):
            base = DATED.sub("", name)
            if base != name:
                table.setdefault(base, table[name])
                if table[base] == table[name]:
                    del table[name]
        models[provider.id] = dict(sorted(table.items()))
    document = {"date": today.isoformat(), "source": f"genai-prices {version('genai-prices')}", "models": models}
    lines = json.dumps(document, indent=1)
    compact = re.sub(r"\[\s+([\d,\s]+?)\s+\]", lambda match: "[" + " ".join(match[1].split()) + "]", lines)
    Path(sys.argv[1]).write_text(compact + "\n")


if __name__ == "__main__":
    main()

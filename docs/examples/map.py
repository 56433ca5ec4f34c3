import os

import msgspec
import trio

import nanotrio

MODEL = os.environ.get("NANOTRIO_MODEL", "anthropic/claude-sonnet-4-5")
REVIEWS = [
    {"product": "lamp", "text": "It shines."},
    {"product": "kettle", "text": "It leaks."},
    {"product": "rug", "text": "???"},
]
PROMPT = "Rate this review of a {product} from 1 to 5, and say why in a word: {text}"


class Rating(msgspec.Struct):
    stars: int
    why: str


async def main() -> None:
    async with (
        nanotrio.open_swarm(store="sqlite:reviews.db", model=MODEL) as swarm,
        swarm.map(PROMPT, REVIEWS, job="reviews", result_type=Rating, retries=1, budget_usd=5.00) as results,
    ):
        async for found in results:
            print(found.item["product"], found.status, found.result or found.reason)
        done = results.statistics()
        print(f"{done.completed} completed, {done.failed} failed, {done.restored} from the store")


trio.run(main)

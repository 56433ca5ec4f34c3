import os

import msgspec
import trio

import nanotrio
from nanotrio.errors import ToolError

MODEL = os.environ.get("NANOTRIO_MODEL", "anthropic/claude-sonnet-4-5")


@nanotrio.tool(effect=False)
def stock(item: str) -> int:
    """Say how many pieces of an item lie in the store.

    Args:
        item: the item's name, in the singular.
    """
    shelves = {"bolt": 12, "nut": 0}
    if item not in shelves:
        raise ToolError(f"there is no item {item!r}; there are {', '.join(shelves)}")
    return shelves[item]


@nanotrio.tool
async def order(item: str, pieces: int, context: nanotrio.ToolContext) -> str:
    """Order pieces of an item. pieces: at least 1."""
    async with await trio.open_file(context.directory / "orders.txt", "a") as file:
        await file.write(f"{pieces} {item}\n")
    return "ordered"


class Report(msgspec.Struct):
    ordered: dict[str, int]
    remark: str


async def main() -> None:
    async with nanotrio.open_swarm(store="sqlite:stock.db", model=MODEL, tools=[stock, order]) as swarm:
        agent = await swarm.spawn("Order 50 pieces of whatever has run out.", result_type=Report)
        outcome = await agent.wait()
        report = msgspec.convert(outcome.result, Report)
        print(report.ordered, report.remark)


trio.run(main)

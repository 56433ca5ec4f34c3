import os
from dataclasses import dataclass

import trio

import nanotrio

MODEL = os.environ.get("NANOTRIO_MODEL", "anthropic/claude-sonnet-4-5")


@dataclass
class Leak:
    path: str
    line: int


@dataclass
class Report:
    title: str
    leaks: list[Leak]


async def main() -> None:
    async with nanotrio.open_swarm(store="sqlite:typed.db", model=MODEL) as swarm:
        for prompt in ("Find leaks in pump.py.", "Find leaks in pipe.py."):
            agent = await swarm.spawn(prompt, result_type=Report)
            outcome = await agent.wait()
            if outcome.status == "completed":
                report = outcome.result_as(Report)
                print(report.title, report.leaks[0].line)
            else:
                print(outcome.reason)
                print("it said:", outcome.last_text)


trio.run(main)

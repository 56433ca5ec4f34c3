import os

import trio

import nanotrio

MODEL = os.environ.get("NANOTRIO_MODEL", "anthropic/claude-sonnet-4-5")


async def main() -> None:
    async with nanotrio.open_swarm(store="sqlite:family.db", model=MODEL) as swarm:
        chief = await swarm.spawn("You are told what your reporters find.", name="chief")
        rain, snow, hail = await chief.spawn_many(
            ["Report on rain.", "Report on snow.", "Report on hail."], name="reporter", timeout_seconds=600
        )
        await rain.steer("Keep it short.")
        print((await hail.cancel()).status)
        for reporter in (rain, snow):
            outcome = await reporter.wait()
            print(outcome.name, outcome.status, outcome.result)
        print((await chief.wait()).result)


trio.run(main)

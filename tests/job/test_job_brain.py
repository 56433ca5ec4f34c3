"""The job's model gets to the end, whatever it is told about calls that were cut off."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import httpx
import pytest
import trio

from tests.job.brain import SUMMARY, think
from tests.job.harness import JsonWire, TinyHarness
from tests.job.repository import PROMPT, JobRepository, make_repository
from tests.servers.model_server import KEY, open_model_server
from tests.servers.request_log import changed_results, prefix_breaks

Wire = Literal["anthropic", "openai-chat"]


def _play(parent: Path, wire: Wire, *, seed: int = 0, doubt: float = 0.0) -> tuple[str, JobRepository, int]:
    async def main() -> tuple[str, int]:
        headers = {"x-api-key": KEY, "authorization": f"Bearer {KEY}", "anthropic-version": "2023-06-01"}
        async with (
            open_model_server(think) as server,
            httpx.AsyncClient(base_url=server.url, headers=headers) as client,
        ):
            harness = TinyHarness(partial(JsonWire, client, wire), repository.path, seed=seed, doubt=doubt)
            text = await harness.run(PROMPT)
            assert not server.refusals, server.refusals[0].problem
            assert not prefix_breaks(server.requests)
            assert not changed_results(server.requests)
            return text, harness.doubts

    repository = make_repository(parent)
    assert not repository.tests_pass()
    text, doubts = trio.run(main)
    return text, repository, doubts


@pytest.mark.parametrize("wire", ["anthropic", "openai-chat"])
def test_the_job_ends_as_intended(tmp_path: Path, wire: Wire) -> None:
    text, repository, _ = _play(tmp_path, wire)

    assert text == SUMMARY
    assert repository.problems() == []


@pytest.mark.parametrize("seed", range(6))
def test_the_job_ends_as_intended_when_outcomes_are_unknown(tmp_path: Path, seed: int) -> None:
    wire: Wire = "anthropic" if seed % 2 else "openai-chat"
    text, repository, doubts = _play(tmp_path, wire, seed=seed, doubt=0.3)

    assert text == SUMMARY
    assert repository.problems() == []
    assert doubts


def test_a_silent_second_run_shows(tmp_path: Path) -> None:
    _, repository, _ = _play(tmp_path, "anthropic")
    with repository.effects.open("a") as log:
        log.write("begin fixed.1\n")

    assert repository.problems() == ["ran twice without the model being told: begin fixed.1"]


def test_an_unintended_change_shows(tmp_path: Path) -> None:
    _, repository, _ = _play(tmp_path, "anthropic")
    (repository.path / "shop/stock.py").write_text("# gone\n")

    assert any("not only shop/prices.py" in problem for problem in repository.problems())

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nanotrio_cli.data_folder import DataFolder
from nanotrio_cli.exits import CommandError


def folder(path: Path) -> DataFolder:
    return DataFolder({"NANOTRIO_DATA": str(path)})


def test_looking_makes_nothing(tmp_path: Path) -> None:
    assert folder(tmp_path / "data").stores() == []
    assert not (tmp_path / "data").exists()


def test_the_store_last_written_comes_first_and_a_reader_is_no_writer(tmp_path: Path) -> None:
    data = folder(tmp_path)
    paths = [data.new_run(name) for name in ("a", "b", "c")]
    for age, path in enumerate(paths):
        path.write_bytes(b"x")
        os.utime(path, (1_000 - age, 1_000 - age))
    Path(f"{paths[1]}-wal").write_bytes(b"")
    written = Path(f"{paths[2]}-wal")
    written.write_bytes(b"newest")

    assert data.stores() == [f"sqlite:{path}" for path in (paths[2], paths[0], paths[1])]


@pytest.mark.parametrize("environment", [{"NANOTRIO_DATA": "relative"}, {"HOME": ""}], ids=["relative", "no home"])
def test_a_place_that_is_none_is_refused_with_advice(environment: dict[str, str]) -> None:
    with pytest.raises(CommandError, match="NANOTRIO_DATA"):
        DataFolder(environment)


def test_a_folder_that_cannot_be_made_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(CommandError, match="--no-session"):
        folder(tmp_path / "file" / "data").new_run("a")

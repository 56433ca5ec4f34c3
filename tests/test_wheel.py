"""What people install."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.source import PACKAGES, ROOT, tracked_files


def test_the_wheel_holds_both_packages_their_data_and_the_commands(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("nanotrio-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (commands,) = (archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    expected = {
        path.relative_to(folder.parent).as_posix()
        for folder in PACKAGES.values()
        for path in tracked_files()
        if path.is_relative_to(folder)
    }
    assert "nanotrio/py.typed" in expected
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert commands.split() == [
        *("[console_scripts]", "nanotrio", "=", "nanotrio_cli.main:main", "nt", "=", "nanotrio_cli.main:main"),
        *("[pytest11]", "nanotrio", "=", "nanotrio.testing.pytest_plugin"),
    ]
    assert any(name.endswith("licenses/LICENSE") for name in names)

"""Which file system a store lies on."""

from __future__ import annotations

import os
from pathlib import Path

from nanotrio.stores.place import mounted_type, network_file_system

_MOUNTS = """\
22 28 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw
28 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 28 0:44 / /home/with\\040space rw,relatime shared:21 master:3 - nfs4 server:/home rw,vers=4.2
bad line
"""


def test_the_type_is_read_from_the_table_of_mounts() -> None:
    lines = _MOUNTS.splitlines()
    assert mounted_type(lines, os.makedev(0, 44)) == "nfs4"
    assert mounted_type(lines, os.makedev(254, 1)) == "ext4"
    assert mounted_type(lines, os.makedev(9, 9)) == ""


def test_a_folder_for_tests_is_on_a_local_disk_even_where_it_is_still_to_be_made(tmp_path: Path) -> None:
    assert network_file_system(tmp_path / "a" / "b") == ""

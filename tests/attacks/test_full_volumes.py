"""A flood beside a full volume: polite reads and deletions go on.

``tests/server/test_full_devices.py`` has a store on a full volume without a flood, and
``tests/cluster/test_full_disks.py`` three nodes whose volumes fill at the same time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.attacks import large_flood
from tests.cluster.disks import SmallDisk, small_disks_work
from tests.cluster.harness import cluster, eventually
from tests.cluster.test_full_disks import is_taken, reasons

MIB = 1 << 20
KEYS = 50
SESSIONS = 4
VALUE = bytes(20_000)


@contextmanager
def flooded(address: str) -> Iterator[None]:
    """Have a program commit large transactions, one after the other, in some sessions."""
    command = [sys.executable, str(large_flood.__file__), address, "large commits", str(SESSIONS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "began\n"
            yield
            assert process.poll() is None, "the node has ended a stream"
        finally:
            process.kill()


def test_reads_and_deletions_go_on_beside_a_flood_on_a_full_volume(tmp_path: Path) -> None:
    if not small_disks_work():
        pytest.skip("needs root, to mount a tmpfs")
    with cluster(tmp_path, 1, disk_bytes=64 * MIB) as one, one.connect() as db:
        for number in range(KEYS):
            db.put(b"%02d" % number, VALUE)
        (node,) = one.nodes
        assert isinstance(node.disk, SmallDisk)
        node.disk.fill(0)
        eventually(lambda: any(reasons(one)))
        with flooded(node.address):
            for number in range(KEYS - 1):
                assert db.get(b"%02d" % number) == VALUE
                db.delete(b"%02d" % number)
            assert [key for key, _ in db.scan()] == [b"%02d" % (KEYS - 1)], "the flood is refused"
            assert any(reasons(one))
        assert node.runs
        node.disk.free()
        eventually(lambda: is_taken(one, b"again"))
        assert db.get(b"%02d" % (KEYS - 1)) == VALUE

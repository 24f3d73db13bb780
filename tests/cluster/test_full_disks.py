"""Three nodes on small disks of their own that fill at the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random  # noqa: TID251 - seeded

import pytest

from postroom.cli import health
from postroom.client.remote.nodes import survey
from postroom.errors import Unavailable
from postroom.kv.engine_folder import EngineName
from tests.cli.test_status_checks import asked
from tests.cluster.disks import SmallDisk, small_disks_work
from tests.cluster.harness import INSECURE, ClusterProcesses, cluster, eventually
from tests.kv.on_disk import INSTALLED

MIB = 1 << 20
REFUSED_SECONDS = 2.0
"""A client that is refused is told so after this time."""


def reasons(processes: ClusterProcesses) -> list[str]:
    """Return why each node refuses writes, as its status says; empty: it does not."""
    addresses = [node.address for node in processes.nodes]
    found = asyncio.run(survey(addresses, None, None, Random(1)))
    return [report.status.refused for report in found.nodes if report.status is not None]


def is_taken(processes: ClusterProcesses, key: bytes) -> bool:
    """Return whether a write is taken. It is not done if it is refused."""
    with processes.connect(timeout=REFUSED_SECONDS) as db:
        try:
            db.put(key, b"value")
        except Unavailable:
            return False
        return True


@pytest.mark.parametrize("engine", INSTALLED[:1])
def test_three_nodes_whose_disks_fill_at_the_same_time_serve_reads_and_deletions(
    tmp_path: Path, engine: EngineName
) -> None:
    if not small_disks_work():
        pytest.skip("needs root, to mount a tmpfs")
    options = (*INSECURE, "--engine", engine)
    with cluster(tmp_path, disk_bytes=64 * MIB, options=options) as three, three.connect() as db:
        for number in range(50):
            db.put(b"%02d" % number, bytes(20_000))
        for left in (3 * MIB, 0):
            for node in three.nodes:
                assert isinstance(node.disk, SmallDisk)
                node.disk.fill(left)
            eventually(lambda: len([each for each in reasons(three) if each]) == 3)
            assert not is_taken(three, b"refused")
            assert asked("--check", "--connect", three.addresses).exit_code == health.REFUSES
            assert asked("--connect", three.addresses).stdout.count("refuses writes") == 3
            before = len(list(db.scan()))
            assert db.get(b"49") == bytes(20_000)
            deleted = [b"%02d" % number for number in range(50 - before, 60 - before)]
            for key in deleted:
                db.delete(key)
            assert len(list(db.scan())) == before - len(deleted)
            assert all(node.runs for node in three.nodes)
        for node in three.nodes:
            assert isinstance(node.disk, SmallDisk)
            node.disk.free()
        eventually(lambda: is_taken(three, b"again"))
        eventually(lambda: not any(reasons(three)))
        assert len(list(db.scan())) == 31

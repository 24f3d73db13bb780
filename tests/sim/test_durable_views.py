"""Durable views that are read again in part equal a copy that is read as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.kv.log_device import MemoryFile
from postroom.kv.memory import MemoryDisk
from tests.sim import disks
from tests.sim.cluster.simulation import ClusterSimulation
from tests.sim.durable_views import _View


def left_of(disk: MemoryDisk) -> MemoryDisk:
    """Return the disk after a loss of power that takes everything unsynced."""
    left = MemoryDisk()
    left.append(disk.durable, sync=True)
    for name, file in disk.log.files.items():
        left.log.files[name] = made = MemoryFile(left.log, file.size)
        made.durable[:] = file.durable
    return left


def sectors_of(disk: MemoryDisk) -> Any:
    files = {name: bytes(file.durable) for name, file in disk.log.files.items()}
    return id(disk.durable), files


SEED = 41


def test_views_of_durable_state_miss_no_change_and_invent_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While machines crash, and lose what they have not synced."""
    read, ask = _View.logged, _View.has_changed
    seen: dict[_View, Any] = {}
    changes = []

    def logged(view: _View, disk: MemoryDisk) -> Any:
        content = read(view, disk)
        known = {key: value for key, value in content.items() if value is not None}
        assert known == disks.logged(left_of(disk))
        return content

    def has_changed(view: _View, disk: MemoryDisk) -> bool:
        changed, sectors = ask(view, disk), sectors_of(disk)
        assert changed or seen[view] == sectors
        seen[view] = sectors
        changes.append(changed)
        return changed

    monkeypatch.setattr(_View, "logged", logged)
    monkeypatch.setattr(_View, "has_changed", has_changed)
    ClusterSimulation(SEED, 1000).run()
    assert changes.count(True) > 100
    assert changes.count(False) > 100

"""A folder that cannot be opened leaves nothing open."""

from __future__ import annotations

import gc
from pathlib import Path
from random import Random  # noqa: TID251 - seeded

import pytest

from postroom.collector import without_collections
from postroom.errors import StoreCorrupted
from postroom.kv import keys
from postroom.kv.log_device import FolderDevice
from postroom.kv.log_reader import BLOCK_BYTES
from postroom.server.opening import LOG_FOLDER, open_storage


def test_a_failed_opening_of_a_damaged_log_closes_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(tmp_path, Random(1), segment_bytes=1024 * 1024)
    storage.write_turn({keys.store_key("note"): b"1"}, sync=True)
    storage.close()
    for segment in (tmp_path / LOG_FOLDER).glob("segment-*"):
        data = bytearray(segment.read_bytes())
        for at in range(0, len(data), BLOCK_BYTES):
            data[at + 30] ^= 1
        segment.write_bytes(data)
    opened, closed = list[FolderDevice](), list[FolderDevice]()
    begin, end = FolderDevice.__init__, FolderDevice.close

    def note(device: FolderDevice, folder: Path) -> None:
        begin(device, folder)
        opened.append(device)

    def let_go(device: FolderDevice) -> None:
        end(device)
        closed.append(device)

    monkeypatch.setattr(FolderDevice, "__init__", note)
    monkeypatch.setattr(FolderDevice, "close", let_go)
    for tries in (1, 2):
        with pytest.raises(StoreCorrupted, match="log"):
            open_storage(tmp_path, Random(1))
        assert len(opened) == tries
        assert closed == opened


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_not_looked_for_while_many_objects_are_made(*, is_enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        with without_collections():
            assert not gc.isenabled()
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if before else gc.disable)()

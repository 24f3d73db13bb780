"""Backups and restores that are killed at each step: they go on, or are refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.backup import restore, restoring, taking, verify
from postroom.backup.folder import BackupFolder, PartFile
from postroom.client.sync_parts import Restore
from postroom.errors import Invalid, Unavailable
from tests.backup.places import busy, entries, is_sound, restored


class Killed(BaseException):
    """The end of a process, as the code under test meets it."""


def killed_after(whole: Callable[..., Any], times: int) -> Callable[..., Any]:
    """Return a function that ends the process when it is called once more than so often."""
    left = [times]

    def call(*given: Any, **named: Any) -> Any:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return whole(*given, **named)

    return call


STEPS = [
    (PartFile, "__init__", 2), (PartFile, "_write", 4), (PartFile, "end", 2),
    (BackupFolder, "commit", 1), (Path, "replace", 1), (os, "fsync", 3),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "name", "times"), STEPS, ids=[step[1] for step in STEPS])
@pytest.mark.parametrize("is_increment", [False, True])
def test_a_killed_backup_is_refused_and_the_next_run_makes_it(
    owner: Any, name: str, times: int, is_increment: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    db, work = busy(2)
    since = None
    with db:
        if is_increment:
            since = tmp_path / "full"
            db.backup(since)
            work.step()
            work.step()
        for number in range(times):
            with monkeypatch.context() as patched:
                patched.setattr(owner, name, killed_after(getattr(owner, name), number))
                with pytest.raises(Killed):
                    db.backup(tmp_path / "next", since=since)
            for refuse in (verify, restored):
                with pytest.raises(Invalid, match="no complete backup"):
                    refuse(tmp_path / "next")  # type: ignore[operator]  # two functions
        db.backup(tmp_path / "next", since=since)
        assert restored(tmp_path / "next")[0] == entries(db)


KILLED = """
import os, sys, postroom
from postroom.backup.folder import PartFile
write, left = PartFile._write, [int(sys.argv[2])]
def dying(self, content):
    if not left[0]:
        os.kill(os.getpid(), 9)
    left[0] -= 1
    write(self, content)
PartFile._write = dying
with postroom.open(":memory:") as db:
    db.put(b"a", b"1")
    db.backup(sys.argv[1])
"""


def test_files_of_a_killed_process_are_removed_by_the_next_backup(tmp_path: Path) -> None:
    for number in range(3):
        run = subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path / "full"), str(number)], check=False
        )
        assert run.returncode == -9
    assert not is_sound(tmp_path / "full")
    with postroom.open(":memory:") as db:
        db.backup(tmp_path / "full")
    assert is_sound(tmp_path / "full")


@pytest.mark.parametrize("name", ["send", "end_part", "end"])
def test_a_killed_restore_goes_on_and_serves_nobody_before_it_is_complete(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "PART_BYTES", 1024)
    monkeypatch.setattr(restoring, "_CHUNK_ROWS", 16)
    db, _ = busy(4)
    with db:
        db.backup(tmp_path / "full")
        found = entries(db)
    with postroom.open(tmp_path / "store") as other:
        for times in range(1 if name == "end" else 2):
            with monkeypatch.context() as patched:
                patched.setattr(Restore, name, killed_after(getattr(Restore, name), times))
                with pytest.raises(Killed):
                    restore(other, tmp_path / "full")
            with pytest.raises(Unavailable, match="being restored"):
                other.get(b"a")
    with postroom.open(tmp_path / "store") as other:
        assert not restore(other, tmp_path / "full").done_before
        assert entries(other) == found
        assert restore(other, tmp_path / "full").done_before

"""Folders: which may hold a store, who may look into it, and what is never touched."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from postroom.errors import Invalid
from postroom.kv.folder import FolderLock

pytest.importorskip("plyvel", reason="LevelDB is not installed")
from postroom.kv.leveldb import LevelDBEngine

FOREIGN: dict[str, dict[str, str]] = {
    "a text": {"notes.txt": "mine"},
    "a log of that very name": {"LOG": "mine"},
    "an owner of something else": {"owner": "Ada Lovelace\n"},
    "numbers": {"000003.log": "mine"},
    "another database on LevelDB": {"CURRENT": "MANIFEST-000002\n", "MANIFEST-000002": "x"},
    "a start that was cut short, and a text": {"owner": "", "LOCK": "", "notes.txt": "mine"},
}
BEGUN: dict[str, dict[str, str]] = {
    "nothing": {},
    "a lock": {"owner": "123 host\n"},
    "all but the last step": {
        "owner": "123 host\n", "LOCK": "", "LOG": "", "LOG.old": "", "MANIFEST-000001": "x",
        "000001.dbtmp": "MANIFEST-000001\n",
    },
}  # fmt: skip


def fill(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("held", FOREIGN.values(), ids=FOREIGN)
def test_a_folder_of_somebody_else_is_left_alone(
    tmp_path: Path, held: dict[str, str], create: bool
) -> None:
    fill(tmp_path / "other", held)
    with pytest.raises(Invalid, match="nothing was changed"):
        LevelDBEngine.open(tmp_path / "other", create=create)
    assert files(tmp_path / "other") == held


@pytest.mark.parametrize("held", BEGUN.values(), ids=BEGUN)
def test_the_remains_of_a_first_start_become_a_store(tmp_path: Path, held: dict[str, str]) -> None:
    fill(tmp_path / "store", held)
    with pytest.raises(Invalid, match="there is no store"):
        LevelDBEngine.open(tmp_path / "store", create=False)
    assert files(tmp_path / "store") == held
    LevelDBEngine.open(tmp_path / "store").close()
    LevelDBEngine.open(tmp_path / "store", create=False).close()


def test_a_new_store_is_unreadable_for_other_users(tmp_path: Path) -> None:
    """Neither into files that LevelDB makes at once, nor into those that it makes later."""
    before = os.umask(0o022)
    try:
        engine = LevelDBEngine.open(tmp_path / "store", write_buffer_bytes=100_000)
        for number in range(300):
            engine.write({b"%d" % number: os.urandom(1000)}, sync=False)
        engine.compact(b"", b"\xff")
        engine.close()
    finally:
        os.umask(before)
    made = list((tmp_path / "store").iterdir())
    assert any(path.suffix == ".ldb" for path in made)
    assert mode(tmp_path / "store") == 0o700
    if hasattr(os, "getxattr") and has_access_control_lists(tmp_path):
        assert {path.name: mode(path) for path in made} == {path.name: 0o600 for path in made}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def has_access_control_lists(folder: Path) -> bool:
    try:
        os.getxattr(folder / "store", "system.posix_acl_default")
    except OSError:
        return False
    return True


def test_an_empty_folder_that_becomes_a_store_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o755)
    LevelDBEngine.open(tmp_path / "store").close()
    assert mode(tmp_path / "store") == 0o700


def test_a_folder_that_was_opened_to_others_stays_so(tmp_path: Path) -> None:
    LevelDBEngine.open(tmp_path / "store").close()
    (tmp_path / "store").chmod(0o750)
    LevelDBEngine.open(tmp_path / "store").close()
    assert mode(tmp_path / "store") == 0o750


@pytest.mark.parametrize("content", ["mine", "", "12 host\n"])
def test_a_link_in_place_of_the_owner_file_is_refused(tmp_path: Path, content: str) -> None:
    LevelDBEngine.open(tmp_path / "store").close()
    (tmp_path / "target").write_text(content)
    owner = tmp_path / "store" / "owner"
    owner.unlink()
    owner.symlink_to(tmp_path / "target")
    with pytest.raises(Invalid, match=r"owner is a link.*nothing was changed"):
        LevelDBEngine.open(tmp_path / "store")
    assert (tmp_path / "target").read_text() == content


def test_a_dangling_link_in_place_of_the_owner_file_is_refused(tmp_path: Path) -> None:
    LevelDBEngine.open(tmp_path / "store").close()
    owner = tmp_path / "store" / "owner"
    owner.unlink()
    owner.symlink_to(tmp_path / "target")
    with pytest.raises(Invalid, match="owner is a link"):
        LevelDBEngine.open(tmp_path / "store")
    assert not (tmp_path / "target").exists()


def test_a_file_with_two_names_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    LevelDBEngine.open(tmp_path / "store").close()
    owner = tmp_path / "store" / "owner"
    owner.unlink()
    owner.hardlink_to(tmp_path / "mine")
    with pytest.raises(Invalid, match="has something else"):
        LevelDBEngine.open(tmp_path / "store")
    assert (tmp_path / "mine").read_text() == "mine"


_FORKS = """
import os, sys
from pathlib import Path
from postroom.errors import StoreLocked
from postroom.kv.folder import FolderLock

folder = Path(sys.argv[1])
lock = FolderLock(folder)
here, there = os.pipe(), os.pipe()
child = os.fork()
if child == 0:  # it says that it lives, and lives on until it is told to end
    try:
        lock.release()
        os.write(here[1], b"x")
        os.read(there[0], 1)
    finally:
        os._exit(0)
os.read(here[0], 1)
try:
    FolderLock(folder)
except StoreLocked as error:
    assert "in this process" in str(error), error
else:
    raise SystemExit("the child has freed it")
lock.release()
FolderLock(folder).release()
os.write(there[1], b"x")
os.waitpid(child, 0)
"""


def test_a_child_neither_frees_the_lock_nor_keeps_it(tmp_path: Path) -> None:
    """In a program of its own: a process with the threads of other tests is not to be forked."""
    command = [sys.executable, "-c", _FORKS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stderr, done.returncode) == ("", 0)


def test_another_process_is_told_apart_from_this_one(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    script = (
        "import sys, pathlib; from postroom.kv.folder import FolderLock; "
        "FolderLock(pathlib.Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert f"is open in process {os.getpid()} on host" in told
    lock.release()


def test_a_child_does_not_close_what_was_opened_after_a_folder_was_released(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.release()
    with (tmp_path / "another").open("w") as another:  # which has the number of the lock's file
        lock.forked()
        lock.release()
        another.write("still open")
    assert (tmp_path / "another").read_text() == "still open"

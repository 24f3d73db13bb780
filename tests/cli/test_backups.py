"""The commands backup, verify and restore, of folders and of nodes."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import postroom
from postroom.server.loopback import LoopbackServer
from tests.cli.commands import failed_with, invoke, lines, records


def filled(path: Path) -> str:
    with postroom.open(path) as db:
        db.put(b"a", b"1")
        with db.begin() as tx:
            tx.enqueue_message(b"b", b"hello")
        db.drain()
    return str(path)


def test_a_store_is_backed_up_verified_and_restored(tmp_path: Path) -> None:
    store, full, one = filled(tmp_path / "store"), str(tmp_path / "full"), str(tmp_path / "one")
    (told,) = lines("backup", full, "--path", store)
    assert told.startswith(f"{full}: 4 entries of 20")
    (told,) = lines("backup", full, "--path", store)
    assert "already; nothing was done: give a new folder" in told
    lines("put", "a", "2", "--path", store)
    (record,) = records("backup", one, "--path", store, "--since", full, "--rate", "10MiB")
    assert (record["written"], record["done_before"]) == (1, False)
    first, second = lines("verify", one)
    assert first.split("\t")[1:3] == ["full", "4 entries"]
    assert second.split("\t")[1:3] == ["changes", "4 entries"]
    chain = records("verify", one)
    assert [each["since"] for each in chain] == ["", chain[0]["backup"]]
    restored = str(tmp_path / "restored")
    (told,) = lines("restore", one, "--path", restored)
    assert told.endswith("with 4 entries is restored")
    (record,) = records("restore", one, "--path", restored)
    assert record["done_before"]
    assert lines("get", "a", "--path", restored) == ["2"]


def test_a_node_is_backed_up_and_restored_over_the_network(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    full = str(tmp_path / "full")
    for path in (tmp_path / "store", tmp_path / "other"):
        server = LoopbackServer(path, create=True)
        try:
            reached = ("--connect", server.address, "--insecure")
            command = "backup" if path.name == "store" else "restore"
            (told,) = lines(command, full, *reached)
            assert "4 entries" in told
            assert lines("get", "a", *reached) == ["1"]
        finally:
            server.close()


def test_refusals_of_backups_say_what_to_do(tmp_path: Path) -> None:
    store, full = filled(tmp_path / "store"), str(tmp_path / "full")
    lines("backup", full, "--path", store)
    assert failed_with(invoke("verify", store), 1, "no complete backup", "killed again")
    assert failed_with(invoke("restore", full, "--path", store), 1, "restore into a new store")
    new = str(tmp_path / "new")
    assert failed_with(invoke("restore", full, "--path", new, "--at", "noon"), 2, "is no time")
    refused = invoke("restore", full, "--path", new, "--at", "2020-01-01")
    assert failed_with(refused, 1, "has the time 2020-01-01", "no trail leads")
    assert failed_with(invoke("backup", full, "--path", str(tmp_path / "none")), 1, "no store")
    assert failed_with(invoke("backup", full, "--path", store, "--rate", "x"), 2, "is no size")
    assert failed_with(invoke("restore", full, "--path", new, "--abandon"), 1, "no store")
    assert failed_with(invoke("restore", new, "--path", new), 1, "no complete backup")
    assert not Path(new).exists(), "no store is made for a backup that is not there"
    lines("put", "a", "1", "--path", new)
    refused = invoke("restore", full, "--path", new, "--abandon")
    assert failed_with(refused, 1, "nothing is being restored")
    inside = invoke("backup", f"{store}/inside", "--path", store)
    assert failed_with(inside, 1, "lies in the folder of the store", "give a folder elsewhere")
    assert not (Path(store) / "inside").exists()
    nowhere = invoke("backup", "/proc/none/full", "--path", store)
    assert failed_with(nowhere, 1, "/proc/none", "no backup in", "give another folder")


def test_a_restore_is_abandoned(tmp_path: Path) -> None:
    store, full, new = filled(tmp_path / "store"), tmp_path / "full", str(tmp_path / "new")
    lines("backup", str(full), "--path", store)
    with postroom.open(new) as db:
        db.images.begin(b"1" * 16, b"image", 1)
    assert failed_with(invoke("get", "a", "--path", new), 1, "being restored")
    (told,) = lines("restore", str(full), "--path", new, "--abandon")
    assert told == "the restore is abandoned: the store is empty, and serves"
    lines("put", "a", "1", "--path", new)


def test_a_store_is_restored_to_a_time_to_which_a_trail_leads(tmp_path: Path) -> None:
    store, full, one = filled(tmp_path / "store"), str(tmp_path / "full"), str(tmp_path / "one")
    both = invoke("backup", full, "--path", store, "--trail", "--no-trail")
    assert failed_with(both, 2, "give one of --trail and --no-trail")
    lines("backup", full, "--path", store, "--trail")
    lines("backup", str(tmp_path / "beside"), "--path", store)
    with postroom.open(store) as db:
        at = committed(db, b"2")
        while at.microsecond == 0:  # a backup may have been taken in this second
            at = committed(db, b"2")
    lines("put", "a", "3", "--path", store)
    (record,) = records("backup", one, "--path", store, "--trail", "--since", full)
    kinds = [each.split("\t")[1] for each in lines("verify", one)]
    assert kinds == ["full", "changes, trail"]
    full_told, one_told = records("verify", one)
    assert full_told["trail_until"] == 0
    assert one_told["trail_until"] == record["timestamp"]
    restored = str(tmp_path / "restored")
    (told,) = lines("restore", one, "--path", restored, "--at", at.isoformat())
    assert told.startswith(f"the store of {at:%Y-%m-%dT%H:%M:%S}")
    assert lines("get", "a", "--path", restored) == ["2"]
    beside = str(tmp_path / "beside")
    (told,) = lines("backup", str(tmp_path / "late"), "--path", store, "--trail", "--since", beside)
    assert told.endswith(
        "no trail leads to it, since it was begun after the backup before: the next has one"
    )
    lines("backup", str(tmp_path / "two"), "--path", store, "--since", one, "--no-trail")
    assert lines("verify", str(tmp_path / "two"))[-1].split("\t")[1] == "changes"


def committed(db: postroom.Database, value: bytes) -> datetime:
    """Write a value, and return the time of the commit."""
    with db.begin() as tx:
        tx.put(b"a", value)
    return tx.commit_timestamp.datetime

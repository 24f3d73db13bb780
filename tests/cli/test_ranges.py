"""The commands about ranges."""

from __future__ import annotations

from pathlib import Path

import postroom
from tests.cli.commands import failed_with, invoke, lines, records


def test_a_store_that_was_never_split_is_listed_as_one_range(tmp_path: Path) -> None:
    with postroom.open(tmp_path / "store") as db:
        db.put(b"key", b"value")
    store = ("--path", str(tmp_path / "store"))
    (listed,) = records("range", "list", *store)
    assert listed.pop("size_bytes") > 0
    assert listed == {
        "id": 1, "start": "", "end": None, "generation": 1, "leader": 1, "copies": [1],
        "splitting": False,
    }  # fmt: skip
    (line,) = lines("range", "list", *store)
    assert line.split("\t")[:4] == ["1", "", "", "1"]
    assert lines("range", "show", "1", *store) == [line]


def test_a_range_that_does_not_exist_is_named_in_the_error(tmp_path: Path) -> None:
    postroom.open(tmp_path / "store").close()
    told = invoke("range", "show", "7", "--path", str(tmp_path / "store"))
    assert failed_with(told, 1, "there is no range 7", "postroom range list")


def test_the_lease_of_a_range_is_moved_to_a_node(tmp_path: Path) -> None:
    postroom.open(tmp_path / "store").close()
    store = ("--path", str(tmp_path / "store"))
    (moved,) = records("range", "move-lease", "1", "1", *store)
    assert (moved["id"], moved["leader"]) == (1, 1)
    assert lines("range", "move-lease", "1", "1", *store) == lines("range", "show", "1", *store)
    told = invoke("range", "move-lease", "1", "2", *store)
    assert failed_with(told, 1, "node 2 has no copy", "nodes 1 vote")
    told = invoke("range", "move-lease", "7", "1", *store)
    assert failed_with(told, 1, "there is no range 7", "postroom range list")


def test_a_range_is_split_at_a_key(tmp_path: Path) -> None:
    with postroom.open(tmp_path / "store") as db:
        db.put(b"a", b"1")
        db.put(b"n", b"2")
    store = ("--path", str(tmp_path / "store"))
    (made,) = records("range", "split", "m", *store)
    assert (made["id"], made["start"], made["end"], made["generation"]) == (2, "m", None, 2)
    assert [line.split("\t")[:4] for line in lines("range", "list", *store)] == [
        ["1", "", "m", "2"], ["2", "m", "", "2"],
    ]  # fmt: skip
    told = invoke("range", "split", "m", *store)
    assert failed_with(told, 1, "range 2 begins at", "within it")
    with postroom.open(tmp_path / "store") as db:
        assert (db.get(b"a"), db.get(b"n")) == (b"1", b"2")
    with postroom.open(tmp_path / "other") as db:
        db.create_queue("orders")
    told = invoke("range", "split", "c", "--path", str(tmp_path / "other"))
    assert failed_with(told, 1, "the queue 'orders'")


def test_ranges_are_told_at_which_size_they_split(tmp_path: Path) -> None:
    postroom.open(tmp_path / "store").close()
    store = ("--path", str(tmp_path / "store"))
    assert lines("range", "configure", *store) == ["split bytes: 0 (never)"]
    assert lines("range", "configure", "--split-bytes", "512MiB", *store) == [
        "split bytes: 536,870,912"
    ]
    assert records("range", "configure", *store) == [{"split_bytes": 512 << 20}]
    told = invoke("range", "configure", "--split-bytes", "5", *store)
    assert failed_with(told, 2, "the least is 1,048,576 (1MiB)")
    assert records("range", "configure", "--split-bytes", "0", *store) == [{"split_bytes": 0}]

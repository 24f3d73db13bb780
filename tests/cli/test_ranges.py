"""The commands about ranges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

import postroom
from tests.cli.commands import Facts, failed_with, invoke, lines, records, status_once
from tests.cluster.harness import INSECURE, ClusterProcesses, cluster, eventually


def test_a_store_that_was_never_split_is_listed_as_one_range(tmp_path: Path) -> None:
    with postroom.open(tmp_path / "store") as db:
        db.put(b"key", b"value")
    store = ("--path", str(tmp_path / "store"))
    (listed,) = records("range", "list", *store)
    assert listed.pop("size_bytes") > 0
    assert listed.pop("applied_index") > 0
    assert listed == {
        "id": 1, "start": "", "end": None, "generation": 1, "leader": 1, "copies": [1],
        "splitting": False, "load": None,
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
    assert failed_with(told, 1, "node 2 has no copy", "voter of this range (1)")
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


# --- a cluster whose ranges split by themselves

VALUE_BYTES = 100_000


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Return three nodes that split ranges of more than a mebibyte, and have several."""
    options = (*INSECURE, "--split-bytes", "1MiB")
    with cluster(tmp_path_factory.mktemp("cluster"), options=options) as processes:
        with processes.connect() as db:
            for number in range(48):
                db.put(b"key/%02d" % number, Random(number).randbytes(VALUE_BYTES))
        yield processes


def test_ranges_of_a_cluster_split_by_size_and_several_nodes_lead_them(
    three: ClusterProcesses,
) -> None:
    there = ("--connect", three.addresses, "--insecure")
    assert records("range", "configure", *there) == [{"split_bytes": 1 << 20}]

    def listed() -> Facts:
        found = records("range", "list", *there)
        is_spread = len({each["leader"] for each in found}) > 1
        return found if len(found) > 2 and is_spread else []

    ranges = eventually(listed, 120.0)  # a lease moves at most every 10 s
    assert [each["end"] for each in ranges[:-1]] == [each["start"] for each in ranges[1:]]
    assert all(each["copies"] == [1, 2, 3] for each in ranges)


def test_status_of_several_ranges_tells_their_leaders_and_the_sums_of_their_counters(
    three: ClusterProcesses,
) -> None:
    with three.connect() as db:
        ranges = db.ranges()
        for each in ranges:
            with db.begin() as tx:
                tx.enqueue_message(each.start + b"inbox", b"message")
        db.drain()

    def is_counted(_: Facts, totals: dict[str, Any]) -> bool:
        counters, sent = totals["counters"] or {}, len(ranges)
        is_sent = counters.get("enqueued") == counters.get("delivered") == sent
        return is_sent and totals["ranges"] >= sent

    assert status_once(three.addresses, is_counted)

    def told() -> str:
        shown = invoke("status", "--connect", three.addresses, "--insecure").stdout
        return next((line for line in shown.splitlines() if " ranges: " in line), "")

    assert "by node" in eventually(told)


def test_a_reset_gives_a_cluster_the_splits_of_a_new_one(three: ClusterProcesses) -> None:
    there = ("--connect", three.addresses, "--insecure")
    (told,) = records("settings", "reset", "split-bytes", *there)
    assert (told["name"], told["value"]) == ("split-bytes", 512 << 20)
    assert records("range", "configure", *there) == [{"split_bytes": 512 << 20}]

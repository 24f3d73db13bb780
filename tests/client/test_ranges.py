"""The ranges of a store, as its operator sees them."""

from __future__ import annotations

import pytest

import postroom
from postroom.errors import KeyTooLarge
from tests.client.stores import Store


@pytest.mark.parametrize("remote", [False, True], ids=["embedded", "remote"])
def test_a_store_that_was_never_split_is_one_range(remote: bool) -> None:
    store = Store(remote=remote)
    (found,) = store.db.ranges()
    assert (found.id, found.start, found.end, found.generation) == (1, b"", None, 1)
    assert (found.leader, found.copies, found.splitting) == (1, (1,), False)
    store.db.close()


def test_a_range_is_told_for_any_part_of_its_keys() -> None:
    with postroom.open(":memory:") as db:
        assert [each.id for each in db.ranges(b"a", b"b")] == [1]
        assert [each.id for each in db.ranges(b"\xff" * 8192)] == [1]


def test_the_size_of_a_range_grows_with_its_data() -> None:
    with postroom.open(":memory:") as db:
        before = db.ranges()[0].size_bytes
        with db.begin() as tx:
            for number in range(1000):
                tx.put(b"%d" % number, b"x" * 1000)
        assert before + 900_000 < db.ranges()[0].size_bytes < before + 1_200_000


@pytest.mark.parametrize(("start", "end"), [("a", b"b"), (b"a", 3), (b"x" * 8193, None)])
def test_a_wrong_span_is_refused(start: object, end: object) -> None:
    with postroom.open(":memory:") as db, pytest.raises((TypeError, KeyTooLarge)):
        db.ranges(start, end)  # type: ignore[arg-type]


def test_a_store_of_several_ranges_is_protected_as_a_whole() -> None:
    with postroom.open(":memory:") as db:
        db.split(b"m")
        with db.hold(whole=True) as at:
            assert at

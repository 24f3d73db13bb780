"""Calls that go through spans of several ranges, beside a model, and conflicts between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom import limits
from postroom.client import database, pages
from postroom.client.commits import Lost, commit_one
from postroom.errors import TransactionConflict
from postroom.ranges.replica import Replica
from postroom.ranges.requests import DeleteRange, ReverseScan, Scan
from postroom.ranges.transactions.requests import Refresh
from tests.client.stores import Store
from tests.server.hosting import cut

KEYS = (b"", b"k", b"l", b"l\xff", b"m", b"m\x00", b"m\x00a", b"m\xff", b"n", b"z")
CUTS = (b"l", b"l\xff", b"m", b"m\x00", b"n")
"""A key, its successor, its prefix, and others."""

keys = st.sampled_from(KEYS)
ends = st.one_of(st.none(), keys)
acts = st.one_of(
    st.tuples(st.just("put"), keys),
    st.tuples(st.just("delete"), keys, ends),
    st.tuples(st.just("delete all"), keys, ends),
    st.tuples(st.just("scan"), keys, ends, st.one_of(st.none(), st.integers(0, 4)), st.booleans()),
    st.tuples(st.just("get"), st.lists(keys, min_size=1, max_size=6)),
)


class Model:
    """A store that is a dictionary."""

    def __init__(self) -> None:
        self.pairs: dict[bytes, bytes] = {}

    def within(self, start: bytes, end: bytes | None) -> list[bytes]:
        return [key for key in sorted(self.pairs) if start <= key and (end is None or key < end)]

    def act(self, number: int, act: tuple[Any, ...]) -> Any:
        match act:
            case ("put", key):
                self.pairs[key] = b"%d" % number
                return None
            case ("delete" | "delete all", start, end):
                found = self.within(start, end)
                for key in found:
                    del self.pairs[key]
                return len(found)
            case ("scan", start, end, limit, reverse):
                found = self.within(start, end)
                return [(key, self.pairs[key]) for key in found[:: -1 if reverse else 1][:limit]]
            case ("get", wanted):
                return [self.pairs.get(key) for key in wanted]


def act_on(target: Any, number: int, act: tuple[Any, ...]) -> Any:
    """Do an act in a database, or in a transaction."""
    match act:
        case ("put", key):
            return target.put(key, b"%d" % number)
        case ("delete" | "delete all", start, end):
            return target.delete_range(start, end)
        case ("scan", start, end, limit, reverse):
            return list(target.scan(start, end, limit=limit, reverse=reverse))
        case ("get", wanted):
            return target.get_many(wanted)


def store_of(cuts: tuple[bytes, ...], *, remote: bool) -> Store:
    store = Store(remote=remote)
    store.db.put(b"k", b"before")
    if cuts:
        cut(store.node, *cuts)
    store.driver.settle()
    return store


@pytest.mark.parametrize("remote", [False, True])
@given(
    st.sets(st.sampled_from(CUTS)), st.lists(st.tuples(st.booleans(), st.lists(acts, max_size=6)))
)
@settings(max_examples=60, deadline=None)
def test_calls_over_several_ranges_do_what_those_of_one_range_do(
    remote: bool, cuts: set[bytes], rounds: list[tuple[bool, list[tuple[Any, ...]]]]
) -> None:
    store, model = store_of(tuple(sorted(cuts)), remote=remote), Model()
    model.pairs[b"k"] = b"before"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "PAIRS_PER_PAGE", 2)
        patch.setattr(pages, "KEYS_PER_PAGE", 2)
        patch.setattr(limits, "DELETED_AT_ONCE_MAX", 2)
        for is_transaction, each in rounds:
            if not is_transaction:
                for number, act in enumerate(each):
                    assert act_on(store.db, number, act) == model.act(number, act), act
                continue
            with store.db.begin() as tx:
                for number, act in enumerate(each):
                    assert act_on(tx, number, act) == model.act(number, act), act
        assert list(store.db.scan()) == sorted(model.pairs.items())
    store.db.close()


@pytest.fixture(params=[False, True], ids=["embedded", "remote"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return a store of three ranges."""
    made = store_of((b"m", b"z"), remote=request.param)
    for key in (b"a", b"n", b"z"):
        made.db.put(key, key)
    yield made
    made.db.close()


def test_one_of_two_transactions_whose_scans_see_what_the_other_writes_is_refused(
    store: Store,
) -> None:
    one, other = store.db.begin(), store.db.begin()
    assert len(list(one.scan(b"", b"o"))) == 3
    assert len(list(other.scan(b"l", None))) == 2
    one.put(b"z", b"1")
    other.put(b"b", b"1")
    one.commit()
    with pytest.raises(TransactionConflict):
        other.commit()


@pytest.mark.parametrize("phantom", [b"aa", b"o", b"zz"])
def test_a_key_that_comes_into_a_scanned_span_is_a_conflict_in_each_range(
    store: Store, phantom: bytes
) -> None:
    tx = store.db.begin()
    assert len(list(tx.scan(b"a", None))) == 4
    tx.put(b"count", b"4")
    store.db.put(phantom, b"new")
    with pytest.raises(TransactionConflict):
        tx.commit()


def test_a_key_beyond_what_a_scan_with_a_limit_has_read_is_no_conflict(store: Store) -> None:
    tx = store.db.begin()
    assert [key for key, _ in tx.scan(limit=2)] == [b"a", b"k"]
    tx.put(b"count", b"2")
    store.db.put(b"zz", b"new")
    tx.commit()


def test_a_snapshot_sees_all_ranges_at_one_timestamp(store: Store) -> None:
    before = list(store.db.scan())
    with store.db.snapshot() as snapshot:
        for key, _ in before:
            store.db.put(key, b"later")
        assert list(snapshot.scan()) == before
        assert list(snapshot.scan(reverse=True)) == before[::-1]
        assert snapshot.get_many([b"z", b"a"]) == [b"z", b"a"]


def test_values_of_several_ranges_come_with_their_types(store: Store) -> None:
    client = store.with_codec("msgpack")
    for key in (b"i/a", b"t/a", b"z/a"):
        client.increment(key, 7)
        client.put(key + b"b", "text")
    wanted = [b"z/a", b"i/ab", b"i/a", b"t/a", b"z/a", b"none"]
    assert client.get_many(wanted) == [7, "text", 7, 7, 7, None]


def test_a_limit_ends_a_scan_in_the_range_where_it_is_reached(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, submit = list[tuple[int, type]](), Replica.submit

    def noted(replica: Replica, call: Any) -> None:
        asked.append((replica.range_id, type(call.request)))
        submit(replica, call)

    monkeypatch.setattr(Replica, "submit", noted)
    assert [key for key, _ in store.db.scan(limit=3)] == [b"a", b"k", b"n"]
    with store.db.begin() as tx:
        assert [key for key, _ in tx.scan(limit=2, reverse=True)] == [b"z", b"n"]
    scans = [each for each in asked if each[1] in {Scan, ReverseScan}]
    assert scans == [(1, Scan), (2, Scan), (3, ReverseScan), (2, ReverseScan)]
    assert Refresh not in {kind for _, kind in asked}, "no span is gone through twice"


def test_a_circle_of_transactions_that_lock_in_three_ranges_ends(store: Store) -> None:
    names = b"c", b"o", b"zz"

    async def add_one_to_both(tx: Any, first: bytes, second: bytes) -> None:
        for key in (first, second):
            before = await tx.get_for_update(key) or b"0"
            await store.driver.sleep(0.1)
            tx.put(key, b"%d" % (int(before) + 1))

    assert store.db.get_many(names) == [None] * 3
    began = store.driver.monotonic()
    circle = [
        store.start(store.core.run(add_one_to_both, names[number], names[(number + 1) % 3]))
        for number in range(3)
    ]
    while not all(each.done for each in circle):
        store.advance(0.1)
        assert store.driver.monotonic() < began + 5.0, "they wait for each other"
    assert store.db.get_many(names) == [b"2"] * 3


def test_a_key_that_is_written_after_a_deletion_has_begun_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_one, steps = database.commit_one, list[Any]()

    async def then_another_is_written(*commit: Any) -> Any:
        answer = await commit_one(*commit)
        if not steps:
            await store.core.put(b"zz", b"later")
        steps.append(answer)
        return answer

    monkeypatch.setattr(database, "commit_one", then_another_is_written)
    assert store.db.delete_range(b"", None) == 4
    assert list(store.db.scan()) == [(b"zz", b"later")]
    assert [following for _, following, _ in steps] == [b"m", b"z", None]
    assert len({began for _, _, began in steps}) == 1


def test_a_part_of_a_deletion_ends_with_its_range(store: Store) -> None:
    """The range does not tell the next one, whose clock may be ahead, when the first began."""
    request = DeleteRange(b"a", None, 0)
    answer = store.driver.run(commit_one(store.driver, b"a", request))
    assert tuple(answer) == (2, b"m", 0)


def test_keys_of_several_ranges_are_locked_before_the_next_try(store: Store) -> None:
    """The one that has lost on all of them waits for another one, and then commits."""
    names = [b"zz", b"c", b"o"]
    other = store.db.begin()
    tries = list[int]()

    async def write(tx: Any) -> None:
        tries.append(len(tries))
        found = await tx.get_many(names)
        if len(tries) == 1:
            for key in names:
                other.get_for_update(key)
                other.put(key, b"1")
            other.commit()
        for key, value in zip(names, found, strict=True):
            tx.put(key, b"%d" % (int(value or b"0") + 1))

    store.driver.run(store.core.run(write))
    assert store.db.get_many(names) == [b"2"] * 3
    assert len(tries) == 2


def test_a_lock_that_is_given_up_is_not_got_later(store: Store) -> None:
    holder, other = store.db.begin(), store.db.begin(timeout=1.0)
    holder.get_for_update(b"o")
    lost = Lost()
    lost.keys = dict.fromkeys((b"c", b"o", b"zz"))
    waits = store.start(other._core.lock_again(lost))
    store.advance(2.0)
    with pytest.raises(TransactionConflict):
        waits.result()
    other.rollback()
    holder.commit()
    store.driver.settle()
    store.advance(2.0)
    assert not any(
        len(each.replica.commit_waits.locks) for each in store.node.replicas.hosted.values()
    )

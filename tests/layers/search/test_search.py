"""Search indexes on real stores."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.layers.search import changes
from postroom.layers.search.definition import define
from postroom.layers.search.index import packed
from postroom.layers.search.layout import DATA, ROOT, Posting
from postroom.layers.search.limits import DOCUMENT_WORDS_MAX, INDEXED_KEY_BYTES_MAX
from postroom.layers.search.sync_index import Building
from tests.layers.search.looking import differences
from tests.remote.servers import Server

WINES = {
    b"wine/1": "Red wine from an old cellar, the wine of wines",
    b"wine/2": "White wine",
    b"wine/3": "The cellar is old and red",
}


SPLITS = (
    postroom.key(ROOT, "data"), b"d/4", postroom.key(ROOT, "data", "1", "sums"),
    postroom.key(ROOT, "data", "1", "live", "word"), b"later",
    *(postroom.key(ROOT, "data", "1", "live", "word", each) for each in "hbdf"), b"d/2",
)  # fmt: skip
CUTS = (b"wine/2", postroom.key(ROOT, "data"), postroom.key(ROOT, "data", "1", "live", "word"))
"""The first keys of ranges: one is among the documents, and two are among the data of the index."""


@pytest.fixture(params=["memory", "remote", "memory of ranges", "remote of ranges"])
def db(request: pytest.FixtureRequest) -> Iterator[postroom.Database]:
    cuts = CUTS if "of ranges" in request.param else ()
    with ExitStack() as stack:
        if "remote" in request.param:
            server = stack.enter_context(Server())
            db = stack.enter_context(postroom.connect(server.address, insecure=True))
        else:
            db = stack.enter_context(postroom.open(":memory:"))
        for cut in cuts:
            db.split(cut)
        yield db


@pytest.fixture
def index(db: postroom.Database) -> postroom.SearchIndex:
    index = db.create_search_index("wines", b"wine/")
    for key, text in WINES.items():
        with db.begin() as tx:
            index.put(tx, key, text.encode())
    return index


def keys(hits: list[postroom.SearchHit]) -> list[bytes]:
    return [hit.key for hit in hits]


def test_search_finds_documents_with_all_words(index: postroom.SearchIndex) -> None:
    assert keys(index.search("wine", consistent=True)) == [b"wine/2", b"wine/1"]
    assert keys(index.search("Cellar RED")) == [b"wine/3", b"wine/1"]
    assert keys(index.search("cel* wine*")) == [b"wine/1"]
    assert keys(index.search('"old cellar"')) == [b"wine/1"]
    assert keys(index.search("nothing wine")) == []
    assert keys(index.search("red", limit=1)) == [b"wine/3"]


def test_a_document_that_changes_is_found_as_it_is(
    db: postroom.Database, index: postroom.SearchIndex
) -> None:
    before = db.now()
    with db.begin() as tx:
        index.put(tx, b"wine/1", b"beer")
        index.delete(tx, b"wine/2")
        index.put(tx, b"wine/4", b"more wine")
        index.put(tx, b"wine/4", b"even more wine wine")
    assert db.get(b"wine/1") == b"beer"
    assert db.get(b"wine/2") is None
    assert keys(index.search("wine", consistent=True)) == [b"wine/4"]
    assert keys(index.search("beer")) == [b"wine/1"]
    assert sorted(keys(index.search("wine", at=before))) == [b"wine/1", b"wine/2"]
    assert differences(db, "wines") == []


def test_a_document_that_is_rolled_back_is_not_indexed(
    db: postroom.Database, index: postroom.SearchIndex
) -> None:
    tx = db.begin()
    index.put(tx, b"wine/9", b"champagne")
    tx.rollback()
    assert index.search("champagne", consistent=True) == []
    assert differences(db, "wines") == []


def test_transactions_that_change_one_document_conflict(
    db: postroom.Database, index: postroom.SearchIndex
) -> None:
    one, other = db.begin(), db.begin()
    index.put(one, b"wine/1", b"port")
    index.put(other, b"wine/1", b"sherry")
    one.commit()
    with pytest.raises(postroom.TransactionConflict):
        other.commit()
    assert differences(db, "wines") == []


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_objects_are_searched_by_field(codec: str) -> None:
    with postroom.open(":memory:", codec=codec) as db:
        db.put(b"a/0", {"title": "Zeroth"})
        index = db.create_search_index("titles", b"a/", fields=["title", "by.name", "tags"])
        with db.begin() as tx:
            index.put(tx, b"a/1", {"title": "One", "by": {"name": "Eve"}, "text": "hidden"})
            index.put(tx, b"a/2", {"title": ["Two", 2, True], "tags": {"x": "eve"}, "by": 3})
        assert keys(index.search("eve", consistent=True)) == [b"a/1", b"a/2"]
        assert keys(index.search("2")) == [b"a/2"]
        assert keys(index.search("zeroth")) == [b"a/0"]
        assert index.search("hidden") == []
        assert len(list(db.scan())) > 15  # rows of the index can be unpacked, too
        assert differences(db, "titles") == []


def test_an_index_over_documents_that_are_there(db: postroom.Database) -> None:
    for number in range(40):
        db.put(b"d/%02d" % number, b"same words %d" % number)
    db.put(b"d/long", b" ".join(b"w%d" % n for n in range(DOCUMENT_WORDS_MAX + 1)))
    index = db.create_search_index("d", b"d/")
    assert len(index.search("same", limit=100, consistent=True)) == 40
    assert keys(index.search("17")) == [b"d/17"]
    assert index.definition().state == "ready"
    assert [each.kind for each in differences(db, "d")] == ["unindexable"]
    before = index.definition()
    assert db.create_search_index("d", b"d/", anew=True).definition().id != before.id
    assert len(index.search("same", limit=100, consistent=True)) == 40
    assert [each.kind for each in differences(db, "d")] == ["unindexable"]


def test_a_dropped_index_leaves_nothing(db: postroom.Database, index: postroom.SearchIndex) -> None:
    assert [each.name for each in db.search_indexes()] == ["wines"]
    assert db.drop_search_index("wines")
    assert not db.drop_search_index("wines")
    db.drain()
    assert list(db.scan(*DATA)) == []
    with pytest.raises(postroom.Invalid, match="no search index 'wines'"):
        index.search("wine")
    with db.begin() as tx, pytest.raises(postroom.Invalid, match="no search index"):
        index.put(tx, b"wine/1", b"x")


def test_data_left_by_late_tasks_is_swept(
    db: postroom.Database, index: postroom.SearchIndex
) -> None:
    for id_ in ("7", "8"):
        db.put(
            postroom.key("postroom.search", "data", id_, "built", "word", "x", b"k"), b"\x92\1\1"
        )
    assert db.sweep_search_indexes() == 2
    db.drain()
    assert db.sweep_search_indexes() == 0
    assert differences(db, "wines") == []
    assert keys(index.search("white")) == [b"wine/2"]


def test_an_index_is_not_searched_before_it_is_built(db: postroom.Database) -> None:
    from postroom.layers.search.definition import define  # noqa: PLC0415

    db.put(b"d/1", b"word")
    building = Building(db, define("d", b"d/"))
    definition = building.begin()
    index = db.search_index("d")
    with pytest.raises(postroom.Invalid, match="being built"):
        index.search("word")
    with db.begin() as tx:
        index.put(tx, b"d/2", b"word")
        index.delete(tx, b"d/1")
    building.loaded(definition, 0, 0)
    assert building.settle(definition) == 1
    assert keys(index.search("word")) == [b"d/2"]
    assert differences(db, "d") == []


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda ix, tx: ix.put(tx, b"beer/1", b"x"), ValueError, "begin with"),
        (lambda ix, tx: ix.put(tx, b"wine/1", "text"), TypeError, "bytes"),
        (
            lambda ix, tx: ix.put(tx, b"wine/".ljust(INDEXED_KEY_BYTES_MAX + 1, b"x"), b""),
            postroom.KeyTooLarge,
            "2048",
        ),
        (
            lambda ix, tx: ix.put(tx, b"wine/1", b" ".join(b"%d" % n for n in range(10_001))),
            postroom.ValueTooLarge,
            "10001 different words, the limit",
        ),
    ],
)
def test_a_document_that_cannot_be_indexed_is_refused(
    db: postroom.Database,
    index: postroom.SearchIndex,
    change: Any,
    error: type[Exception],
    words: str,
) -> None:
    with db.begin() as tx, pytest.raises(error, match=words):
        change(index, tx)
    assert db.get(b"wine/1") == WINES[b"wine/1"].encode()
    assert differences(db, "wines") == []


def test_a_document_of_many_words_fits_into_a_transaction(db: postroom.Database) -> None:
    index = db.create_search_index("d", b"d/")
    text = " ".join(f"word{n}" for n in range(DOCUMENT_WORDS_MAX))
    for key in (b"d/1", b"d/1"):
        with db.begin() as tx:
            index.put(tx, key, text.encode())
        text = text.replace("word", "other")
    assert keys(index.search("other7", consistent=True)) == [b"d/1"]
    assert index.search("word7") == []
    assert differences(db, "d") == []


@pytest.mark.parametrize("part", [b"k", b"\x00"])  # which keys of tuples have twice
def test_a_document_that_can_be_put_can_be_deleted(part: bytes) -> None:
    with postroom.open(":memory:") as db:
        index = db.create_search_index("d", b"d/")
        key = b"d/" + part * (INDEXED_KEY_BYTES_MAX - 2)
        for count in (500, 1900, 2500, 3900, 5000):
            text = " ".join(f"word{n:060d}" for n in range(count)).encode()
            try:
                with db.begin() as tx:
                    index.put(tx, key, text)
            except postroom.ValueTooLarge:
                assert count > 500
                break
            with db.begin() as tx:
                index.delete(tx, key)
        else:
            pytest.fail("nothing is too large")
        db.put(key, text)
        assert db.search_index("d").search("word", consistent=True) == []
        db.create_search_index("d", b"d/", anew=True)  # it is passed over


def test_documents_may_be_nested_as_deep_as_they_can_be_read(db: postroom.Database) -> None:
    db.put(b"d/1", b'{"a":1,"b":' + b"[" * 600 + b'"wine"' + b"]" * 600 + b',"c":"red"}')
    db.put(b"d/2", b"[" * 100_000 + b"]" * 100_000)
    db.put(b"d/3", b'"cellar"')
    index = db.create_search_index("d", b"d/", format="json")
    assert keys(index.search("wine red", consistent=True)) == [b"d/1"]
    assert keys(index.search("cellar")) == [b"d/3"]


def test_a_document_that_cannot_be_read_any_more_is_no_hit(db: postroom.Database) -> None:
    index = db.create_search_index("d", b"d/", format="json")
    for key in (b"d/1", b"d/2"):
        with db.begin() as tx:
            index.put(tx, key, b'"red wine"')
    db.put(b"d/1", b"{")  # without the index
    assert keys(index.search('"red wine"', consistent=True)) == [b"d/2"]


def test_long_documents_that_were_changed_during_a_build_are_settled() -> None:
    with postroom.open(":memory:") as db:
        documents = {b"d/%02d" % n: " ".join(f"w{n}x{i}" for i in range(10_000)) for n in range(16)}
        for key in documents:
            db.put(key, b"")
        building = Building(db, define("d", b"d/"))
        made = building.begin()
        index, layout = db.search_index("d"), made.layout
        for key, text in documents.items():
            record = changes.built(made.words(text.encode(), key))
            with db.begin() as tx:  # the build does so
                tx.put(layout.built_record(key), packed(layout, key, record))
            with db.begin() as tx:
                index.put(tx, key, b"wine")
        building.loaded(made, 16, 160_000)
        assert building.settle(made) == 16
        assert index.definition().state == "ready"
        assert len(index.search("wine", limit=20, consistent=True)) == 16


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("", b"d/"), ValueError),
        (("d", b""), ValueError),
        (("d", "d/"), TypeError),
        (("x" * 129, b"d/"), ValueError),
    ],
)
def test_an_impossible_index_is_refused(arguments: Any, error: type[Exception]) -> None:
    with postroom.open(":memory:") as db:
        with pytest.raises(error):
            db.create_search_index(*arguments)
        with pytest.raises(ValueError, match="fields"):
            db.create_search_index("d", b"d/", fields=["a"])
        db.create_search_index("d", b"d/")
        with pytest.raises(postroom.Invalid, match="is about"):
            db.create_search_index("d", b"e/")
        assert list(db.scan(*DATA)) == []


def test_the_asyncio_form(tmp_path: Path) -> None:
    async def use() -> list[postroom.SearchHit]:
        async with await postroom.aio.open(str(tmp_path / "store")) as db:
            index = await db.create_search_index("d", b"d/")
            async with db.begin() as tx:
                await index.put(tx, b"d/1", b"one word")
                await index.put(tx, b"d/2", b"two words")
                await index.delete(tx, b"d/2")
            return await index.search("word*", consistent=True)

    assert keys(asyncio.run(use())) == [b"d/1"]


@pytest.mark.parametrize("splits", [(), SPLITS], ids=["one range", "ranges that split"])
def test_checks_never_accuse_an_index_that_changes(
    splits: tuple[bytes, ...], tmp_path: Path
) -> None:
    """Writers change documents all the time; whoever compares finds nothing."""
    with postroom.open(str(tmp_path / "store")) as db:
        index = db.create_search_index("d", b"d/")
        end = threading.Event()

        def write(seed: int) -> None:
            randomness = Random(seed)
            while not end.is_set():
                db.run(change, randomness)

        def change(tx: postroom.Transaction, randomness: Random) -> None:
            key = b"d/%d" % randomness.randrange(8)
            text = " ".join(randomness.choices("abcdefghij", k=30))
            # Scheduled updates fill the outbox, so that others wait there for a turn.
            tx.enqueue_update(postroom.Put(b"later", b""), execute_at=60)
            if randomness.random() < 0.2:
                index.delete(tx, key)
            else:
                index.put(tx, key, text.encode())

        writers = [threading.Thread(target=write, args=[seed]) for seed in range(2)]
        for each in writers:
            each.start()
        try:
            for split in (*splits, *[None] * 20)[:20]:
                if split is not None:
                    db.split(split)
                assert differences(db, "d") == []
        finally:
            end.set()
            for each in writers:
                each.join()
        assert differences(db, "d") == []


@pytest.mark.parametrize("kind", ["missing", "frequency", "left over"])
def test_damaged_postings_are_found(
    db: postroom.Database, index: postroom.SearchIndex, kind: str
) -> None:
    db.drain()
    layout = index.definition().layout
    (live, end), _ = layout.postings("cellar")
    posting = next(key for key, _ in db.scan(live, end))
    if kind == "missing":
        db.delete(posting)
    elif kind == "frequency":
        db.put(posting, layout.pack_posting(17, 3))
    else:
        db.put(layout.posting(Posting("cellar", b"wine/2", 5)), layout.pack_posting(1, 1))
    assert b"wine/2" not in keys(index.search("cellar"))  # the record does not know it
    (found,) = differences(db, "wines")
    assert (found.kind, found.word) == (kind, "cellar")
    strays = [layout.posting(Posting("cellar", b"wine/2", 5))] if kind == "left over" else []
    with db.begin() as tx:
        index.repair(tx, found.key, strays)
    assert differences(db, "wines") == []
    assert keys(index.search("cellar")) == [b"wine/3", b"wine/1"]


@pytest.mark.parametrize(
    ("damage", "kinds"),
    [
        (lambda db, _: db.put(b"wine/7", b"new"), ["unindexed"]),
        (lambda db, _: db.delete(b"wine/2"), ["deleted"]),
        (lambda db, _: db.put(b"wine/2", b"white vine"), ["words", "words"]),
        (lambda db, layout: db.put(layout.live(b"wine/2"), b"\xc1"), ["record"]),
        (lambda db, layout: db.put(layout.built_record(b"wine/2"), b"\x93\0\0\x80"), ["record"]),
    ],
)
def test_documents_that_changed_without_the_index_are_found(
    db: postroom.Database, index: postroom.SearchIndex, damage: Any, kinds: list[str]
) -> None:
    damage(db, index.definition().layout)
    found = differences(db, "wines")
    assert [each.kind for each in found] == kinds
    if kinds != ["record"]:
        with db.begin() as tx:
            index.refresh(tx, found[0].key)
        assert differences(db, "wines") == []

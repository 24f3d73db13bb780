"""The job ``index``: what tasks do without Spark, and all of it with."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import postroom
from postroom.cli.application import app
from postroom.cli.spark import Spark
from postroom.errors import Invalid
from postroom.layers.search.definition import Definition, define
from postroom.layers.search.layout import BUILT_GENERATION, DATA, Posting
from postroom.layers.search.limits import DOCUMENT_WORDS_MAX
from postroom.layers.search.sync_index import Building
from postroom.pipeline import jobs
from postroom.pipeline.jobs.index_tasks import compared, document_trace, index_trace, pairs
from tests.layers.search.looking import differences

DOCUMENTS = {b"d/%03d" % n: b"red wine %d %d" % (n, n) for n in range(50)}
TOO_MANY = b" ".join(b"w%d" % n for n in range(DOCUMENT_WORDS_MAX + 1))


@pytest.fixture
def definition() -> Definition:
    return define("d", b"d/")


def traces(definition: Definition, documents: dict[bytes, bytes], data: dict[bytes, bytes]) -> Any:
    document_traces = [document_trace(definition, *each) for each in documents.items()]
    index_traces = [index_trace(definition, *each) for each in data.items()]
    return sorted(each for each in (*document_traces, *index_traces) if each is not None)


def suspected(
    definition: Definition, documents: dict[bytes, bytes], data: dict[bytes, bytes]
) -> Any:
    found = compared(definition, traces(definition, documents, data))
    return [each.suspect for each in found if each.suspect is not None]


def test_rows_of_a_build_are_what_the_check_wants(definition: Definition) -> None:
    documents = DOCUMENTS | {b"d/long": TOO_MANY}
    data = dict(pairs(definition, documents.items()))
    assert [each.key for each in suspected(definition, documents, data)] == [b"d/long"]
    layout = definition.layout
    assert data[layout.built_sum(b"d/000")] == layout.pack([50, 200, 150, 1])
    assert list(pairs(definition, [])) == []


def test_each_kind_of_damage_makes_a_suspect(definition: Definition) -> None:
    layout = definition.layout
    data = dict(pairs(definition, DOCUMENTS.items()))
    wine, red = (
        layout.posting(Posting(word, b"d/00%d" % n, 0)) for n, word in ((1, "wine"), (2, "red"))
    )
    stray = layout.posting(Posting("gone", b"d/003", 9))
    del data[wine], data[layout.built_record(b"d/004")]
    data |= {red: layout.pack_posting(2, 4), stray: layout.pack_posting(1, 1)}
    data[layout.live(b"d/005")] = b"\xc1"
    documents = DOCUMENTS | {b"d/999": b"new"}
    del documents[b"d/006"]
    found = {each.key: each.strays for each in suspected(definition, documents, data)}
    assert set(found) == {b"d/001", b"d/002", b"d/003", b"d/004", b"d/005", b"d/006", b"d/999"}
    assert found[b"d/003"] == (stray,)
    assert len(found[b"d/004"]) == 3


# --- with Spark -----------------------------------------------------------------------------------


@pytest.fixture
def store(served: str) -> dict[str, str]:
    return {"connect": served, "insecure": "true"}


def test_an_index_is_built_checked_and_repaired(
    spark: Any, db: postroom.Database, store: dict[str, str]
) -> None:
    for key, text in DOCUMENTS.items():
        db.put(key, text)
    db.put(b"d/long", TOO_MANY)
    stages: list[str] = []
    built = jobs.index(
        spark, store, "d", prefix=b"d/", verify=True,
        progress=lambda stage, done, total: stages.append(stage),
    )  # fmt: skip
    assert (built.built, built.documents, built.words, built.postings) == (True, 50, 200, 150)
    assert (built.unindexable, built.settled, built.different) == (1, 0, 1)
    assert [each.kind for each in built.differences] == ["unindexable"]
    assert set(stages) == {"load", "check"}
    index = db.search_index("d")
    assert len(index.search("wine", limit=100)) == 50
    with db.begin() as tx:
        index.put(tx, b"d/001", b"beer")
        index.delete(tx, b"d/long")
    assert [hit.key for hit in index.search("beer", consistent=True)] == [b"d/001"]
    assert len(index.search("wine", limit=100)) == 49

    layout = index.definition().layout
    db.delete(layout.posting(Posting("wine", b"d/002", BUILT_GENERATION)))
    db.put(layout.posting(Posting("wine", b"d/003", 5)), layout.pack_posting(1, 1))
    db.put(layout.posting(Posting("red", b"d/004", BUILT_GENERATION)), layout.pack_posting(7, 4))
    db.put(b"d/005", b"changed")
    db.increment(layout.documents, 3)
    damaged = jobs.index(spark, store, "d", verify=True)
    assert [each.kind for each in damaged.differences if each.kind != "words"] == [
        "missing", "left over", "frequency", "sums",
    ]  # fmt: skip
    assert (damaged.built, damaged.different, damaged.suspects) == (
        False,
        len(damaged.differences),
        4,
    )
    repaired = jobs.index(spark, store, "d", repair=True)
    assert repaired.repaired == 4
    assert repaired.different == damaged.different
    assert differences(db, "d") == []
    assert [hit.key for hit in index.search("changed", consistent=True)] == [b"d/005"]


def split_at_the_next(cuts: Iterator[bytes], db: postroom.Database) -> None:
    """Split a store; an empty key stands for one within the index."""
    for cut in islice(cuts, 1):
        db.split(cut or db.search_index("d").definition().layout.span[0] + b"m")


@pytest.mark.parametrize("are_split", [False, True], ids=["one range", "several"])
def test_documents_that_change_during_the_build_are_not_lost(
    are_split: bool, spark: Any, db: postroom.Database, store: dict[str, str]
) -> None:
    """Transactions change documents before, during and after the build and the comparison.

    No document is lost, and no difference is found.
    """
    for key, text in DOCUMENTS.items():
        db.put(key, text)
    building, end = threading.Event(), threading.Event()
    own = Random(6)
    cuts = iter([b"d/020", b"", b"d/040", b"d/010"] if are_split else [])
    left_alone = b"d/049"  # by the writer: whoever changes a document of a loaded index settles it

    def progress(stage: str, done: int, total: int | None) -> None:
        for _ in range(5):
            db.run(change, own)
        split_at_the_next(cuts, db)
        if stage == "load" and done:
            db.run(lambda tx: index.put(tx, left_alone, b"changed during the build"))
        building.set()

    def write() -> None:
        randomness = Random(5)
        assert building.wait(200)
        while not end.is_set():
            db.run(change, randomness)

    def change(tx: postroom.Transaction, randomness: Random) -> None:
        key = b"d/%03d" % randomness.randrange(60)
        if key == left_alone:
            return
        if randomness.random() < 0.3:
            index.delete(tx, key)
        else:
            index.put(tx, key, " ".join(randomness.choices("abcdefgh", k=8)).encode())

    index = db.search_index("d")
    writer = threading.Thread(target=write)
    writer.start()
    try:
        built = jobs.index(spark, store, "d", prefix=b"d/", verify=True, progress=progress)
    finally:
        end.set()
        writer.join()
    assert len(db.ranges()) == (5 if are_split else 1)
    assert built.settled > 0
    assert built.differences == ()
    assert differences(db, "d") == []


def test_a_build_that_was_killed_begins_anew(
    spark: Any, db: postroom.Database, store: dict[str, str]
) -> None:
    for key, text in DOCUMENTS.items():
        db.put(key, text)
    left = Building(db, define("d", b"d/")).begin()
    with db.begin() as tx:
        db.search_index("d").put(tx, b"d/000", b"beer")
    for key, value in pairs(left, [(b"d/001", b"half loaded")]):
        db.put(key, value)
    assert jobs.index(spark, store, "d", prefix=b"d/", verify=True).different == 0
    now = db.search_index("d").definition()
    assert (now.state, now.id != left.id) == ("ready", True)
    db.drain()
    assert all(key.startswith(now.layout.span[0]) for key, _ in db.scan(*DATA))
    # One that was killed when everything was loaded goes on.
    again = Building(db, define("d", b"d/"))
    begun = again.begin(anew=True)
    for key, value in pairs(begun, sorted((key, db.get(key)) for key in DOCUMENTS)):
        db.put(key, value)
    with db.begin() as tx:
        db.search_index("d").put(tx, b"d/001", b"ale")
    again.loaded(begun, 50, 50 * 4 - 3)
    ended = jobs.index(spark, store, "d", verify=True)
    assert (ended.built, ended.settled, ended.different) == (False, 1, 0)


def test_an_index_without_a_prefix_or_with_another_one_is_refused(
    spark: Any, db: postroom.Database, store: dict[str, str]
) -> None:
    with pytest.raises(Invalid, match="give the prefix"):
        jobs.index(spark, store, "d")
    assert jobs.index(spark, store, "d", prefix=b"d/", verify=True).built is False
    with pytest.raises(Invalid, match="is about"):
        jobs.index(spark, store, "d", prefix=b"e/")
    assert db.search_index("d").definition().state == "ready"


def test_the_command(
    spark: Any,
    db: postroom.Database,
    served: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Spark, "session", lambda *_: nullcontext(spark))
    for key, text in DOCUMENTS.items():
        db.put(key, text)

    def run(*arguments: str) -> Result:
        store = ["--connect", served, "--insecure"]
        return CliRunner().invoke(app, ["pipeline", "run", "index", *store, *arguments])

    built = run("d", "--prefix", "d/", "--verify")
    assert built.exit_code == 0, built.output
    assert "50 documents with 200 words indexed by 150 postings" in built.stdout
    assert "0 differences" in built.stdout
    db.put(b"d/007", b"ale")
    db.put(b"d/100", TOO_MANY)
    differs = run("d", "--verify")
    assert differs.exit_code == 1
    assert "words\td/007\tale\t0 instead of 1" in differs.stdout
    assert "unindexable\td/100\tthe document" in differs.stdout
    assert "differs from its documents in 5 places: --repair writes" in differs.stderr
    (line,) = run("d", "--repair", "--json").stdout.splitlines()
    told = json.loads(line)
    assert (told["repaired"], told["different"], told["verified"]) == (1, 5, True)
    assert run("e").exit_code == 1

"""The job ``index``: builds a search index in bulk, and compares one with its documents.

::

    build:  begin ── documents at T ─▶ records, postings ─ sorted ─▶ bulk load ── settle ── ready
    check:  documents, records, postings at T ── by document ─▶ suspects ── looked at once more

An index follows changes meanwhile as :mod:`postroom.layers.search` describes. A build that was
killed begins anew with another id, and its loaded data is deleted. Once all is loaded, only the
rest is done.

To compare, Spark finds suspects, and the store is asked about each. The work of Spark's tasks is in
:mod:`.index_tasks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Final

import msgpack
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

from postroom import Database
from postroom.errors import Invalid, SnapshotTooOld
from postroom.kv.clock import Timestamp
from postroom.layers.search.changes import Difference, Suspect
from postroom.layers.search.definition import Definition, define, read
from postroom.layers.search.layout import unpack
from postroom.layers.search.sync_index import Building, Checking
from postroom.pipeline.jobs import index_tasks as tasks
from postroom.pipeline.jobs.job import SILENT, JobFailed, JobProgress, database

DIFFERENCES_MAX: Final = 10_000
_ROWS: Final = "key binary, value binary"
_AT_ONCE: Final = 256
_TRIES: Final = 5


@dataclass(frozen=True)
class IndexResult:
    """The result of the job.

    Attributes:
        name: of the index.
        built: whether documents were indexed in bulk; otherwise it was there, or there were none.
        documents, words: how many the build has indexed; words count as often as they occur.
        postings: how many of them there are: a word of a document counts once.
        unindexable: documents that the build could not index; ``verify`` names them.
        settled: documents that were changed during the build.
        verified: whether it was compared with the documents.
        suspects: documents that were looked at once more.
        different: how many differences there are.
        differences: the first 10,000 of them.
        repaired: documents of which the index was written anew.
    """

    name: str
    built: bool = False
    documents: int = 0
    words: int = 0
    postings: int = 0
    unindexable: int = 0
    settled: int = 0
    verified: bool = False
    suspects: int = 0
    different: int = 0
    differences: tuple[Difference, ...] = ()
    repaired: int = 0


def index(  # noqa: PLR0913 - each argument is an option
    spark: SparkSession,
    store: Mapping[str, str],
    name: str,
    *,
    prefix: bytes | None = None,
    fields: Sequence[str] = (),
    format: str = "text",  # noqa: A002 - as the option of Spark
    anew: bool = False,
    verify: bool = False,
    repair: bool = False,
    progress: JobProgress = SILENT,
) -> IndexResult:
    """Build a search index, unless it is built; compare it with the documents, if wanted.

    Documents may be changed meanwhile, by transactions that tell the index.

    Args:
        spark: a session on which ``pipeline.register`` was called.
        store: options of the source that say which store.
        name: of the index.
        prefix: of the keys of its documents; ``None``: there is such an index.
        fields, format: of a new index, as ``create_search_index`` takes them.
        anew: built anew, even if it is built.
        verify: compared with the documents.
        repair: that, and what differs is written anew.
        progress: is told how far it is.

    Raises:
        Invalid: there is no such index and no prefix, or one for other documents. Nothing was
            changed.
        JobFailed: Spark could not do it; run it again.
    """
    with database(spark, store) as db:
        building = Building(db, _wanted(db, name, prefix, fields, format))
        db.sweep_search_indexes()
        definition = building.begin(anew=anew)
        try:
            result = _build(spark, store, db, building, definition, progress)
            if not verify and not repair:
                return result
            check = Check(spark, store, db, definition, progress)
            return check.into(result, repair=repair)
        except PySparkException as error:
            raise JobFailed(
                f"Spark could not finish with the search index {name!r}: {_first_line(error)}; run "
                "the job again"
            ) from error


def _wanted(
    db: Database, name: str, prefix: bytes | None, fields: Sequence[str], format_: str
) -> Definition:
    if prefix is not None:
        return define(name, prefix, fields, format_)
    known = [each for each in db.search_indexes() if each.name == name]
    if not known:
        raise Invalid(
            f"there is no search index {name!r}; nothing was changed: give the prefix of its "
            "documents, and it is made"
        )
    return known[0]


def _build(
    spark: SparkSession,
    store: Mapping[str, str],
    db: Database,
    building: Building,
    definition: Definition,
    progress: JobProgress,
) -> IndexResult:
    """Do everything that is left until the index is ready."""
    built = definition.state == "building"
    counted = [0, 0, 0, 0]
    if built:
        counted = _load(spark, store, db, definition, progress)
        building.loaded(definition, counted[0], counted[1])
    settled = 0
    if definition.state != "ready":
        settled = building.settle(definition, lambda done: progress("settle", done, None))
    documents, words, postings, unindexable = counted
    return IndexResult(definition.name, built, documents, words, postings, unindexable, settled)


def _load(
    spark: SparkSession,
    store: Mapping[str, str],
    db: Database,
    definition: Definition,
    progress: JobProgress,
) -> list[int]:
    """Load records and postings of all documents.

    Returns:
        How many documents, words and postings these are, and how many documents could not be
        indexed.
    """
    progress("load", 0, None)
    layout = definition.layout
    with db.hold() as at:
        made = _read(spark, store, definition.span, at).mapInArrow(
            partial(tasks.built, definition), _ROWS
        )
        (
            made.repartitionByRange("key")
            .sortWithinPartitions("key")
            .write.format("postroom")
            .options(**store, mode="load", prefix=layout.built.decode())
            .mode("append")
            .save()
        )
    sums = [unpack(stored) for _, stored in db.scan(*layout.built_sums)]
    counted = [sum(each) for each in zip([0, 0, 0, 0], *sums, strict=True)]
    progress("load", counted[0], counted[0])
    return counted


def _read(
    spark: SparkSession, store: Mapping[str, str], span: tuple[bytes, bytes | None], at: int
) -> DataFrame:
    """Return the keys and values of a span at a timestamp."""
    start, end = span
    frame = (
        spark.read.format("postroom")
        .options(**store, table="data", at=str(int(at)))
        .schema(_ROWS)
        .load()
        .where(F.col("key") >= F.lit(start))
    )
    return frame if end is None else frame.where(F.col("key") < F.lit(end))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# --- the comparison with documents ----------------------------------------------------------------


@dataclass(eq=False)
class Check:
    """The comparison of one index with its documents.

    Attributes:
        spark, store: of the job.
        db: the job's own connection.
        definition: of the index.
        progress: is told.
    """

    spark: SparkSession
    store: Mapping[str, str]
    db: Database
    definition: Definition
    progress: JobProgress
    _counted: list[int] = field(default_factory=lambda: [0, 0], init=False)

    def into(self, result: IndexResult, *, repair: bool) -> IndexResult:
        """Return the result with the differences, and what was repaired.

        Raises:
            JobFailed: the index was built anew meanwhile, or leaders change all the time.
        """
        found: list[Difference] = []
        different = looked_at = repaired = 0
        with ExitStack() as stack:
            at, sums = self._begin(stack)
            suspects = self._suspects(at)
            while some := list(islice(suspects, _AT_ONCE)):
                looked_at += len(some)
                self.progress("check", looked_at, None)
                differences = self._confirmed(some)
                different += len(differences)
                found += differences[: DIFFERENCES_MAX - len(found)]
                if repair:
                    repaired += self._repair(some, differences)
        wrong = list(self._wrong_sums(sums))
        if repair:
            self._repair_sums(wrong)
        return replace(
            result, verified=True, suspects=looked_at, different=different + len(wrong),
            differences=tuple(found + wrong), repaired=repaired,
        )  # fmt: skip

    def _begin(self, stack: ExitStack) -> tuple[Timestamp, tuple[int, int]]:
        """Return the timestamp of the comparison, and the sums at it, with what waits for them."""
        checking = Checking(self.db, self.definition)
        with self.db.hold(whole=True) as at:
            sums = checking.sums(at)
            stored = self.db.get(self.definition.key, at=at)
            now = None if stored is None else read(stored)
            if now is None or now.id != self.definition.id or now.state != "ready":
                raise JobFailed(
                    f"the search index {self.definition.name!r} is being built anew, or was "
                    "dropped; nothing was compared: run the job again"
                )
            self.definition = now
            return stack.enter_context(self.db.hold(at)), sums

    # --- suspects

    def _suspects(self, at: Timestamp) -> Iterator[Suspect]:
        """Yield the suspects at a timestamp, found by Spark; count the records by the way."""
        definition = self.definition
        document_traces = _read(self.spark, self.store, definition.span, at).mapInArrow(
            partial(tasks.document_traces, definition), tasks.TRACES
        )
        index_traces = _read(self.spark, self.store, definition.layout.span, at).mapInArrow(
            partial(tasks.index_traces, definition), tasks.TRACES
        )
        found = (
            document_traces.union(index_traces)
            .repartition("document")
            .sortWithinPartitions("document")
            .mapInArrow(partial(tasks.suspects, definition), tasks.SUSPECTS)
        )
        for row in found.toLocalIterator():
            self._counted[0] += row.documents
            self._counted[1] += row.words
            if row.document is not None:
                strays = tuple(msgpack.unpackb(bytes(row.strays)))
                yield Suspect(bytes(row.document), strays)

    def _confirmed(self, some: list[Suspect]) -> list[Difference]:
        for _ in range(_TRIES):
            try:
                return Checking(self.db, self.definition).confirm(some)
            except SnapshotTooOld:  # another node leads: its engine has no snapshot of that time
                continue
            except Invalid as error:
                raise JobFailed(str(error)) from error
        raise JobFailed("the leader has changed again and again; run the job again")

    def _wrong_sums(self, sums: tuple[int, int]) -> Iterator[Difference]:
        for name, expected, found in zip(("documents", "words"), self._counted, sums, strict=True):
            if expected != found:
                yield Difference("sums", b"", name, expected, found)

    # --- repairs

    def _repair(self, some: list[Suspect], differences: list[Difference]) -> int:
        index = self.db.search_index(self.definition.name)
        wrong = {each.key for each in differences if each.kind != "unindexable"}
        for suspect in some:
            if suspect.key in wrong:
                self.db.run(index.repair, suspect.key, suspect.strays)
        return len(wrong)

    def _repair_sums(self, wrong: list[Difference]) -> None:
        layout = self.definition.layout
        counters = {"documents": layout.documents, "words": layout.words}
        for each in wrong:
            self.db.increment(counters[each.word], each.expected - each.found)

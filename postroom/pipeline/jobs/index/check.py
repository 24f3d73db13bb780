"""Comparing an index with its documents: Spark finds suspects, the store is asked about each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import msgpack
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

from postroom import Database, SearchIndex, Transaction
from postroom.errors import Invalid, SnapshotTooOld
from postroom.kv.clock import Timestamp
from postroom.layers.search.checking import Difference, Suspect
from postroom.layers.search.definition import Definition, read
from postroom.layers.search.sync_index import Checking
from postroom.pipeline.jobs.index import suspects
from postroom.pipeline.jobs.index.result import IndexResult
from postroom.pipeline.jobs.job import JobFailed, JobProgress

T = TypeVar("T")

DIFFERENCES_MAX: Final = 10_000
_AT_ONCE: Final = 256
_TRIES: Final = 5


class Check:
    """The comparison of one index with its documents.

    Args:
        spark, store: of the job.
        db: the job's own connection.
        definition: of the index.
        progress: is told.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: Mapping[str, str],
        db: Database,
        definition: Definition,
        progress: JobProgress,
    ) -> None:
        self._spark = spark
        self._store = store
        self._db = db
        self._definition = definition
        self._progress = progress
        self._counted = [0, 0]

    def into(self, result: IndexResult, *, repair: bool) -> IndexResult:
        """Return the result with the differences, and what was repaired.

        Raises:
            JobFailed: the index was built anew meanwhile, or leaders change all the time.
        """
        found: list[Difference] = []
        different = looked_at = repaired = 0
        with ExitStack() as stack:
            at, sums = self._begin(stack)
            for some in _in_parts(self._suspects(at)):
                looked_at += len(some)
                self._progress("check", looked_at, None)
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
        checking = Checking(self._db, self._definition)
        with self._db.hold(whole=True) as at:
            sums = checking.sums(at)
            stored = self._db.get(self._definition.key, at=at)
            now = None if stored is None else read(stored)
            if now is None or now.id != self._definition.id or now.state != "ready":
                raise JobFailed(
                    f"the search index {self._definition.name!r} is being built anew, or was "
                    "dropped; nothing was compared: run the job again"
                )
            self._definition = now
            return stack.enter_context(self._db.hold(at)), sums

    # --- suspects

    def _suspects(self, at: Timestamp) -> Iterator[Suspect]:
        """Yield the suspects at a timestamp, found by Spark; count the records by the way."""
        definition = self._definition
        document_traces = self._read(definition.span, at).mapInArrow(
            partial(suspects.document_traces, definition), suspects.TRACES
        )
        index_traces = self._read(definition.layout.span, at).mapInArrow(
            partial(suspects.index_traces, definition), suspects.TRACES
        )
        found = (
            document_traces.union(index_traces)
            .repartition("document")
            .sortWithinPartitions("document")
            .mapInArrow(partial(suspects.suspects, definition), suspects.SUSPECTS)
        )
        for row in found.toLocalIterator():
            self._counted[0] += row.documents
            self._counted[1] += row.words
            if row.document is not None:
                strays = tuple(msgpack.unpackb(bytes(row.strays)))
                yield Suspect(bytes(row.document), strays)

    def _read(self, span: tuple[bytes, bytes | None], at: Timestamp) -> DataFrame:
        start, end = span
        frame = (
            self._spark.read.format("postroom")
            .options(**self._store, table="data", at=str(int(at)))
            .schema("key binary, value binary")
            .load()
        )
        key = F.col("key")
        frame = frame.where(key >= F.lit(start))
        return frame if end is None else frame.where(key < F.lit(end))

    def _confirmed(self, some: list[Suspect]) -> list[Difference]:
        for _ in range(_TRIES):
            try:
                return Checking(self._db, self._definition).confirm(some)
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
        index = self._db.search_index(self._definition.name)
        wrong = {each.key for each in differences if each.kind != "unindexable"}
        for suspect in some:
            if suspect.key in wrong:
                self._db.run(_repair_one, index, suspect)
        return len(wrong)

    def _repair_sums(self, wrong: list[Difference]) -> None:
        layout = self._definition.layout
        counters = {"documents": layout.documents, "words": layout.words}
        for each in wrong:
            self._db.increment(counters[each.word], each.expected - each.found)


def _repair_one(tx: Transaction, index: SearchIndex, suspect: Suspect) -> None:
    index.repair(tx, suspect.key, suspect.strays)


def _in_parts(items: Iterable[T]) -> Iterator[list[T]]:
    some: list[T] = []
    for item in items:
        some.append(item)
        if len(some) == _AT_ONCE:
            yield some
            some = []
    if some:
        yield some


__all__ = ["Check"]

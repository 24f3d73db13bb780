"""The job ``index``: builds a search index in bulk, and compares one with its documents.

::

    build:  begin ── documents at T ─▶ records, postings ─ sorted ─▶ bulk load ── settle ── ready
    check:  documents, records, postings at T ── by document ─▶ suspects ── looked at once more

An index follows changes meanwhile as :mod:`postroom.layers.search` describes. A build that was
killed begins anew with another id, and its loaded data is deleted. Once all is loaded, only the
rest is done.

Files: `rows` and `suspects` are the work of tasks, plain functions; `check` asks Spark for suspects
and looks at them; `result` is what the job tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from postroom import Database, pipeline
from postroom.errors import Invalid
from postroom.layers.search.definition import Definition, define
from postroom.layers.search.layout import unpack
from postroom.layers.search.sync_index import Building
from postroom.pipeline.jobs.index import rows
from postroom.pipeline.jobs.index.check import Check
from postroom.pipeline.jobs.index.result import IndexResult
from postroom.pipeline.jobs.job import SILENT, JobFailed, JobProgress, database

_ROWS = "key binary, value binary"


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
        made = documents_of(spark, store, definition, at).mapInArrow(
            partial(rows.built, definition), _ROWS
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


def documents_of(
    spark: SparkSession, store: Mapping[str, str], definition: Definition, at: int
) -> DataFrame:
    """Return the documents of an index at a timestamp: keys and values."""
    return (
        spark.read.format("postroom")
        .options(**store, table="data", at=str(int(at)))
        .schema(_ROWS)
        .load()
        .where(pipeline.starts_with("key", definition.prefix))
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


__all__ = ["IndexResult", "index"]

"""``audit``: one timestamp, one aggregation, and examples of what differs, if anything does.

The store keeps a snapshot of its engine meanwhile. It is gone if another node becomes the leader;
then all is counted again, at another timestamp. Nothing is written, so there is nothing to resume.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

from postroom.client.sync import CoreDatabase
from postroom.errors import Error, SnapshotTooOld
from postroom.pipeline.jobs.audit.facts import compared, facts
from postroom.pipeline.jobs.audit.findings import EXAMPLES_MAX, AuditResult, findings
from postroom.pipeline.jobs.job import SILENT, JobFailed, JobProgress, database
from postroom.pipeline.reading import counted_queues

TRIES: Final = 3
_TABLES: Final = ("counters", "inbox_index", "places", "beside")


def audit(
    spark: SparkSession, store: Mapping[str, str], *, progress: JobProgress = SILENT
) -> AuditResult:
    """Recount at one timestamp what the store claims.

    It claims conservation of messages by range and in total, sums of every prefix, the index of
    inboxes, and the statistics of queues.

    Args:
        spark: a session on which :func:`postroom.pipeline.register` was called.
        store: options of the source that say which store.
        progress: a function that is told how far it is.

    Raises:
        JobFailed: the leader changed each time while it was counting. Nothing was changed.
        Unavailable: too many timestamps are held as a whole; or nobody leads.
    """
    with database(spark, store) as db:
        for _ in range(TRIES):
            with db.hold(whole=True) as at:
                try:
                    return _audit(spark, store, db, int(at), progress)
                except Exception as error:  # any type: the store tells whether it was this
                    if _is_held(db, int(at)):
                        raise _explained(error) from error
    raise JobFailed(
        f"another node became the leader during each of {TRIES} audits, and what was held for them "
        "is gone; nothing was changed: run it again once the cluster is at rest"
    )


def _is_held(db: CoreDatabase, at: int) -> bool:
    try:
        next(db.bulk.scan("counters", at=at))
    except SnapshotTooOld:
        return False
    return True


def _explained(error: Exception) -> Exception:
    """Return an error that tells in one line what Spark says in many."""
    if isinstance(error, Error):
        return error
    first = str(error).partition("\n")[0]
    return JobFailed(f"Spark could not count ({first}); nothing was changed: run it again")


def _audit(
    spark: SparkSession, store: Mapping[str, str], db: CoreDatabase, at: int, progress: JobProgress
) -> AuditResult:
    progress("recounting", 0, 1)
    found = counted_queues(db, at)
    dropped = [each.number for each in found if each.dropped]
    ranges = len({each.range_id for each in db.partitions()})
    tables = {table: _table(spark, store, table, at) for table in _TABLES}
    groups = compared(facts(spark, tables, dropped, ranges))
    totals = {name: each for name, *each in _totals(groups)}
    progress("recounting", 1, 1)
    examples: list[Any] = []
    if any(wrong or other for _, wrong, other in totals.values()):
        progress("looking for examples", 0, 1)
        examples = _examples(groups)
        progress("looking for examples", 1, 1)
    names = {each.number: each.queue for each in found}
    by_check = {name: (each[0], each[1], each[2]) for name, each in totals.items()}
    return AuditResult(at, findings(by_check, examples, names))


def _table(spark: SparkSession, store: Mapping[str, str], table: str, at: int) -> DataFrame:
    reader = spark.read.format("postroom").options(**store)
    return reader.option("table", table).option("at", str(at)).option("protect_for", "1").load()


def _totals(groups: DataFrame) -> Iterator[tuple[str, int, int, int]]:
    """Return for each check the numbers of its groups, and of those that differ."""
    counted = groups.groupBy("check").agg(
        F.count(F.lit(1)).alias("compared"),
        F.count_if("wrong").alias("wrong"),
        F.count_if("other").alias("other"),
    )
    for row in counted.collect():
        yield row.check, row.compared, row.wrong, row.other


def _examples(groups: DataFrame) -> list[Any]:
    """Return the first groups of each check that differ, in the order of their keys."""
    first = Window.partitionBy("check", "wrong").orderBy("place", "key", "kind", "id", "seq")
    differing = groups.where(F.col("wrong") | F.col("other"))
    numbered = differing.withColumn("number", F.row_number().over(first))
    return list(numbered.where(F.col("number") <= EXAMPLES_MAX).collect())


__all__ = ["audit"]

"""The job ``report``: how long messages took, how many came and went, what waits and what is dead.

::

    manifest of the archive ─┐
    store, at one timestamp ─┴─▶ messages, each once ─▶ measures ─▶ FOLDER/measures (Parquet)
                                                          │ the busiest, the last hours
                                                          ▼
                                                    FOLDER/report.html

If there is a newer manifest when all is read, the store may have been trimmed before it was read.
All is then read again. The page is written last: with it the report is whole.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

from postroom import Database, Timestamp
from postroom.errors import Invalid, SnapshotTooOld
from postroom.layers.report import measures as made
from postroom.layers.report.measures import (
    COUNTER_BITS,
    ReportBounds,
    messages,
    report_bounds,
)
from postroom.layers.report.page import (
    PERIODS_MAX,
    QUEUES_DRAWN,
    ROWS_MAX,
    Content,
    Flow,
    Letters,
    MessageTimes,
    living,
    page,
)
from postroom.pipeline.jobs.archive.files import Archived, read_archive
from postroom.pipeline.jobs.archive.folders import ArchiveFolder, literal_pattern, open_folder
from postroom.pipeline.jobs.archive.manifest import ArchiveManifest
from postroom.pipeline.jobs.archive.newest import latest_of_store, newest_number
from postroom.pipeline.jobs.job import SILENT, JobFailed, JobProgress, database

PAGE: Final = "report.html"
MEASURES: Final = "measures"
_TRIES: Final = 3
_REASONS_MAX: Final = 1000
_SECOND: Final = 1000 << COUNTER_BITS


@dataclass(frozen=True)
class ReportResult:
    """The result of a report.

    Attributes:
        at: the timestamp at which the store was read.
        page: the URI of the page; ``measures``: of the table.
        done, waiting, dead: how many messages are done (archived included, of those that are known
            yet), live, and are dead.
        rows: of the table of measures.
    """

    at: int
    page: str
    measures: str
    done: int
    waiting: int
    dead: int
    rows: int


def report(  # noqa: PLR0913 - each argument is an option
    spark: SparkSession,
    store: Mapping[str, str],
    folder: str,
    *,
    archive: str | None = None,
    hours: float | None = None,
    separator: str = "/",
    title: str = "",
    progress: JobProgress = SILENT,
) -> ReportResult:
    """Report on the messages of a store: a Parquet table, and a page for a browser.

    Args:
        spark: a session on which :func:`postroom.pipeline.register` was called.
        store: options of the source that say which store.
        folder: where to: a path, or a URI of a file system that Spark can write. What an earlier
            report has left there is replaced.
        archive: the folder of the store's archive, if there is one.
        hours: only what ended in the last hours, and what has not ended; ``None``: everything.
        separator: of keys: their prefix is what comes before the first one.
        title: what the page calls the store.
        progress: is told how far it is.

    Raises:
        Invalid: an option says nothing that could be done.
        JobFailed: archives are made faster than they can be read; or the folder is not that of the
            store's archive.
    """
    if hours is not None and not 0 <= hours < math.inf:
        raise Invalid(f"hours is a number from 0 on, not {hours}; no report was made")
    target = open_folder(spark, folder)
    read = _measured(_Wanted(spark, store, archive, hours, separator, target, progress))
    table = spark.read.parquet(literal_pattern(target.uri(MEASURES)))
    name = title or store.get("path") or store.get("connect", "")
    content = _content(table, read, name, archive)
    progress("the page", 0, 1)
    target.delete(PAGE)
    target.put_new(PAGE, page(content).encode())
    progress("the page", 1, 1)
    return ReportResult(
        read.what.at, target.uri(PAGE), target.uri(MEASURES),
        sum(each.messages for each in content.overall if each.measure == made.RETRIES),
        sum(map(living, content.totals.values())), content.dead, table.count(),
    )  # fmt: skip


@dataclass(frozen=True)
class _Wanted:
    """The arguments of a report."""

    spark: SparkSession
    store: Mapping[str, str]
    archive: str | None
    hours: float | None
    separator: str
    target: ArchiveFolder
    progress: JobProgress


@dataclass(frozen=True)
class _Read:
    """The data read from the store and its archive at one timestamp; the table is written."""

    what: ReportBounds
    archived: Archived | None
    letters: list[Letters]
    outbox: int
    period: int


def _measured(wanted: _Wanted) -> _Read:
    """Write the table of measures; begin again if an archive is made meanwhile."""
    spark, store, archive, progress = wanted.spark, wanted.store, wanted.archive, wanted.progress
    with database(spark, store) as db:
        for _ in range(_TRIES):
            archived = None if archive is None else _archived(spark, db, archive)
            with db.hold(whole=True) as protected:
                at = int(protected)
                hours = wanted.hours
                since = 0 if hours is None else max(at - int(hours * 3600) * _SECOND, 0)
                with _protected(db, archived, at, since, wanted.separator) as what:
                    letters, outbox = _unread(db, at, progress)
                    period = _write(spark, store, archived, what, wanted.target, progress)
            if archived is None or archive is None or _is_newest(spark, archive, archived):
                return _Read(what, archived, letters, outbox, period)
    raise JobFailed(
        f"there was a new manifest in {archive} each time that all was read; no report was made: "
        "report when no archive is being made"
    )


def _archived(spark: SparkSession, db: Database, archive: str) -> Archived:
    """Return the archive of the store.

    Raises:
        JobFailed: it is another store's, or an old copy, or nothing.
    """
    found = latest_of_store(db, open_folder(spark, archive))
    if not found.number:
        raise JobFailed(
            f"there is no archive in {archive}; no report was made: give the folder that this "
            "store was archived into, or no archive if it never was"
        )
    return read_archive(spark, archive)


@contextmanager
def _protected(
    db: Database, archived: Archived | None, at: int, since: int, separator: str
) -> Iterator[ReportBounds]:
    """Hold what is to be read, to keep it meanwhile."""
    with ExitStack() as stack:
        left = _TRIES
        while True:
            what = report_bounds(db, archived, at, since, separator)
            try:
                stack.enter_context(db.hold(max(what.after_inboxes, 1)))
            except SnapshotTooOld:  # history was collected just now
                left -= 1
                if not left:
                    raise
            else:
                break
        yield what


def _is_newest(spark: SparkSession, archive: str, archived: Archived) -> bool:
    return newest_number(open_folder(spark, archive)) == archived.manifest.number


def _write(
    spark: SparkSession,
    store: Mapping[str, str],
    archived: Archived | None,
    what: ReportBounds,
    target: ArchiveFolder,
    progress: JobProgress,
) -> int:
    """Write the table of measures. Return how many seconds a period of it has."""
    progress("reading messages", 0, 2)
    found = messages(spark, store, archived, what).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        seconds = _period(found, what)
        measured = made.measures(found, seconds, -(-what.since // (seconds * _SECOND)))
        begins = F.timestamp_seconds(F.col("period") * seconds).alias("period")
        columns = [begins if name == "period" else F.col(name) for name in made.COLUMNS]
        (
            measured.select(*columns)
            .repartition(1)
            .sortWithinPartitions("level", "source", "measure", "period", "queue", "kind", "prefix")
            .write.mode("overwrite")
            .parquet(target.uri(MEASURES))
        )
    finally:
        found.unpersist()
    progress("reading messages", 2, 2)
    return seconds


def _period(found: DataFrame, what: ReportBounds) -> int:
    """Return how many seconds a period has, to divide the messages into enough periods."""
    (first,) = found.agg(F.min("sent")).collect()
    begun = max(first[0] or what.at, what.since)
    return made.fitting_period((what.at - begun) / _SECOND, PERIODS_MAX)


def _unread(db: Database, at: int, progress: JobProgress) -> tuple[list[Letters], int]:
    """Return dead letters outside queues and the size of outboxes, read page by page."""
    reasons: Counter[str] = Counter()
    for number, letters in enumerate(db.bulk.records("dead_letters", at=at)):
        progress("dead letters", number, None)
        for each in letters:
            reason = each.record.reason
            is_known = reason in reasons or len(reasons) < _REASONS_MAX
            reasons[reason if is_known else "(others)"] += 1
    waiting = 0
    for number, entries in enumerate(db.bulk.scan("outbox", at=at, columns=("id",))):
        progress("outboxes", number, None)
        waiting += entries.rows
    return [Letters(None, reason, count) for reason, count in reasons.most_common()], waiting


# --- the contents of the page ---------------------------------------------------------------------


def _content(table: DataFrame, read: _Read, store: str, archive: str | None) -> Content:
    """Return the rows of the table that the page shows, however large the table is."""
    what, archived, letters = read.what, read.archived, read.letters
    last = what.at // (read.period * _SECOND)
    table = table.withColumn("period", F.expr(f"unix_seconds(period) div {read.period}"))
    recent = table.where(F.col("period") > last - PERIODS_MAX)
    flows = recent.where(F.col("level") == "queue and period").where(
        F.col("measure").isin(*made.FLOWS)
    )
    busiest = [
        row["queue"]
        for row in flows.where(F.col("source") == "queue")
        .groupBy("queue").agg(F.sum("messages").alias("messages"))
        .orderBy(F.col("messages").desc(), "queue").limit(QUEUES_DRAWN).collect()
    ]  # fmt: skip
    dead = [
        Letters(row["queue"], row["kind"], row["messages"])
        for row in table.where(F.col("measure") == made.REASON)
        .orderBy(F.col("messages").desc()).limit(ROWS_MAX).collect()
    ]  # fmt: skip
    manifest, totals = None if archived is None else archived.manifest, _totals(table)
    return Content(
        store=store, archive=archive, outbox=read.outbox, period=read.period,
        at=_seconds(what.at),
        since=_seconds(what.since),
        archived_until=0.0 if manifest is None else _seconds(manifest.at),
        gaps=[*_left_out(what), *_gaps(manifest)],
        overall=_taken(table.where(F.col("level") == "all")),
        by_period=_taken(recent.where(F.col("level") == "period").orderBy("period")),
        queues=_top(table, "queue"),
        kinds=_top(table.where(F.col("source") == "queue"), "kind"),
        prefixes=_top(table, "prefix"),
        flows=_flows(flows.groupBy("source", "period", "measure"), "source"),
        queue_flows={} if not busiest else _flows(
            flows.where((F.col("source") == "queue") & F.col("queue").isin(busiest))
            .groupBy("queue", "period", "measure"), "queue",
        ),
        totals=totals,
        now=_now(table, busiest),
        dead=totals.get("queue", {}).get("dead", 0) + sum(each.messages for each in letters),
        letters=sorted([*dead, *letters], key=lambda each: -each.messages)[:ROWS_MAX],
    )  # fmt: skip


def _left_out(what: ReportBounds) -> list[str]:
    return [f"Not in this report: {why}." for why in what.damaged[:ROWS_MAX]]


def _gaps(manifest: ArchiveManifest | None) -> list[str]:
    return [
        f"Messages that ended in {each.place} between {_text(each.after)} and {_text(each.until)} "
        f"may be missing: {each.reason}."
        for each in ([] if manifest is None else manifest.gaps[-ROWS_MAX:])
    ]


def _taken(found: DataFrame) -> list[MessageTimes]:
    """Return rows with percentiles; the caller bounds how many."""
    rows = found.where(F.col("mean").isNotNull()).collect()
    return [
        MessageTimes(
            row["source"], row["measure"], row["period"], row["queue"], row["kind"], row["prefix"],
            row["messages"], row["mean"], row["p50"], row["p90"], row["p99"], row["max"],
        )
        for row in rows
    ]  # fmt: skip


def _top(table: DataFrame, level: str) -> list[MessageTimes]:
    """Return the rows of a level with the most messages."""
    by = {"queue": ["queue"], "kind": ["queue", "kind"], "prefix": ["prefix"]}[level]
    found = table.where((F.col("level") == level) & F.col("mean").isNotNull())
    busiest = (
        found.where(F.col("measure") == made.RETRIES)
        .select("source", *by, F.col("messages").alias("of"))
        .orderBy(F.col("of").desc(), *by).limit(ROWS_MAX)
    )  # fmt: skip
    return _taken(
        found.join(F.broadcast(busiest), ["source", *by]).orderBy(
            F.col("of").desc(), *by, "measure"
        )
    )


def _flows(grouped: Any, name: str) -> dict[str, list[Flow]]:
    """Return what came and went, by the column ``name`` and by period."""
    found: dict[str, dict[int, Counter[str]]] = {}
    for row in grouped.agg(F.sum("messages").alias("messages")).collect():
        periods = found.setdefault(row[name], {})
        periods.setdefault(row["period"], Counter())[row["measure"]] += row["messages"]
    return {
        each: [
            Flow(period, counted["enqueued"], counted["done"], counted["dead"])
            for period, counted in sorted(periods.items())
        ]
        for each, periods in sorted(found.items())
    }


def _totals(table: DataFrame) -> dict[str, dict[str, int]]:
    """Return how many messages are in which state, by source."""
    found: dict[str, dict[str, int]] = {}
    counted = table.where(F.col("measure") == made.NOW).groupBy("source", "kind")
    for row in counted.agg(F.sum("messages").alias("messages")).collect():
        found.setdefault(row["source"], {})[row["kind"]] = row["messages"]
    return found


def _now(table: DataFrame, busiest: list[str]) -> dict[tuple[str, str], dict[str, int]]:
    """Return how many messages are in which state, of the queues that have most.

    The busiest queues are included, since their backlog is counted back from these numbers.
    """
    here = table.where(F.col("measure") == made.NOW)
    rows: list[Any] = here.orderBy(F.col("messages").desc()).limit(10 * ROWS_MAX).collect()
    if busiest:
        drawn = (F.col("source") == "queue") & F.col("queue").isin(busiest)
        rows += here.where(drawn).collect()
    found: dict[tuple[str, str], dict[str, int]] = {}
    for row in rows:
        found.setdefault((row["source"], row["queue"]), {})[row["kind"]] = row["messages"]
    return found


def _seconds(timestamp: int) -> float:
    return (timestamp >> COUNTER_BITS) / 1000


def _text(timestamp: int) -> str:
    return Timestamp(timestamp).datetime.strftime("%Y-%m-%d %H:%M:%S")

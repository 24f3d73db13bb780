"""The files of an archive: history out of the store into files, files into fewer ones, and reading.

Each file is of one queue, or of the inboxes, and of the day (UTC) on which its messages ended.
Written files are read back, and counted, before they are relied on. A reader finds each message
once, whatever runs were killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it
from pyspark.sql.types import LongType, StructField, StructType

from postroom.counted import counted
from postroom.errors import Invalid
from postroom.kv.clock import LOGICAL_BITS
from postroom.pipeline.jobs.archive.folders import ArchiveFolder, literal_pattern, open_folder
from postroom.pipeline.jobs.archive.manifest import FILES, ArchiveManifest, Kept
from postroom.pipeline.jobs.archive.newest import latest
from postroom.pipeline.jobs.job import JobFailed
from postroom.pipeline.tables import schema_of

QUEUES: Final = "queues"
INBOXES: Final = "inboxes"
ENDED: Final = {QUEUES: "done_at", INBOXES: "reaped_at"}
"""The column of each table that says when a message ended."""
QUEUES_AT_ONCE: Final = 200
"""The number of queues that one query of Spark's writes."""
_DAY: Final = 86_400_000 << LOGICAL_BITS
_NAME_CHARACTERS: Final = 60


def schema(table: str) -> StructType:
    """Return the columns of the files of a table."""
    if table == INBOXES:
        return schema_of("reaped")
    return schema_of("archive").add(StructField("queue_created_at", LongType()))


@dataclass(frozen=True)
class HistorySpan:
    """The history of some queues that is to be written.

    Attributes:
        created_at: of each queue, by its name.
        after, until: timestamps; what ended after the one and up to the other.
    """

    created_at: Mapping[str, int]
    after: int
    until: int


class Writer:
    """The writer of the files of one run.

    Args:
        spark: the session.
        store: options of the source that say which store.
        folder: of the archive.
        run: the name of the run.
    """

    def __init__(
        self, spark: SparkSession, store: Mapping[str, str], folder: ArchiveFolder, run: str
    ) -> None:
        self._spark = spark
        self._store = store
        self._folder = folder
        self._run = run
        self._number = 0

    # --- out of the store

    def write_queues(self, span: HistorySpan) -> list[Kept]:
        """Write the messages of queues that were done, or archived."""
        names, until = list(span.created_at), span.until
        frame = (
            self._spark.read.format("postroom")
            .options(**self._store, table="queue", at=str(until))
            .load()
            .where(F.col("queue").isin(names))
            .where(F.col("state").isin("done", "archived"))
            .where((F.col("done_at") > F.lit(span.after)) & (F.col("done_at") <= F.lit(until)))
        )
        pairs = [F.lit(each) for pair in span.created_at.items() for each in pair]
        known = F.create_map(*pairs)
        return self._write(frame.withColumn("queue_created_at", known[F.col("queue")]), QUEUES)

    def write_inboxes(self, after: int, until: int) -> list[Kept]:
        """Write the messages that were consumed from inboxes."""
        frame = (
            self._spark.read.format("postroom")
            .options(**self._store, table="reaped", since=str(after), at=str(until))
            .load()
            .where(F.col("consumed"))
        )
        return self._write(frame, INBOXES)

    # --- into fewer files

    def compact(self, table: str, files: list[Kept]) -> list[Kept]:
        """Write the messages of some files into fewer files.

        Raises:
            JobFailed: they would not be the same number.
        """
        new = self._write(read_files(self._spark, self._folder, table, files), table)
        before, after = sum(each.rows for each in files), sum(each.rows for each in new)
        if before != after:
            raise JobFailed(
                f"{len(files)} files of the archive say that they have {before} messages, and "
                f"{after} were read from them; nothing was changed: see whether the folder is whole"
            )
        return new

    # --- files

    def _write(self, frame: DataFrame, table: str) -> list[Kept]:
        """Write rows into files, sync them, and read them back."""
        self._number += 1
        folder = f"{FILES}/{self._run}/{table}/{self._number}"
        placed = frame.select(frame["*"], *_places(table))
        folders = [name for name in ("q", "day") if name in placed.columns]
        seen = Observation()
        (
            placed.observe(seen, F.count(F.lit(1)).alias("rows"))
            .repartition(*folders)
            .sortWithinPartitions(*folders, ENDED[table])
            .write.partitionBy(*folders)
            .mode("overwrite")
            .parquet(self._folder.uri(folder))
        )
        sizes = {
            each.path: each.size
            for each in self._folder.files(folder)
            if each.path.endswith(".parquet")
        }
        self._folder.sync(list(sizes))
        rows = self._count(folder, table) if sizes else {}
        if set(rows) - set(sizes):
            raise JobFailed(
                f"Spark finds files in {self._folder.uri(folder)} that the folder does not list; "
                "nothing was deleted: try again"
            )
        written = _rows(seen)
        # A task that ran twice is counted twice. Then the rows are counted anew, at the same
        # timestamp.
        if sum(rows.values()) != written and sum(rows.values()) != (written := frame.count()):
            raise JobFailed(
                f"{counted(written or 0, 'message was', 'messages were')} written to "
                f"{self._folder.uri(folder)}, and "
                f"{sum(rows.values())} can be read there; nothing was deleted: archive into a "
                "folder that all of Spark's machines share"
            )
        # Spark writes one file without rows if there is nothing
        for path in set(sizes) - set(rows):
            self._folder.delete(path)
        return [
            Kept(path, table, path[len(folder) + 1 :].rpartition("/")[0], rows[path], sizes[path])
            for path in sorted(rows)
        ]

    def _count(self, folder: str, table: str) -> dict[str, int]:
        """Return how many messages each file has, as Spark reads them."""
        counted = (
            self._spark.read.schema(schema(table))
            .option("recursiveFileLookup", "true")
            .parquet(literal_pattern(self._folder.uri(folder)))
            .groupBy(F.col("_metadata.file_path").alias("path"))
            .count()
        )
        return {
            folder + unquote(row["path"]).partition(folder)[2]: row["count"]
            for row in counted.collect()  # a row a file
        }


def _rows(seen: Observation) -> int | None:
    """Return how many rows there were; ``None``: Spark does not say, as for an empty plan."""
    try:
        return int(seen.get["rows"])
    except (KeyError, TypeError, Py4JError):
        return None


def _places(table: str) -> list[Column]:
    """Return the columns that name the folders of a message's file."""
    day = F.expr(f"date_add(date'1970-01-01', cast({ENDED[table]} div {_DAY} as int))")
    columns = [F.date_format(day, "yyyy-MM-dd").alias("day")]
    if table == QUEUES:
        name = F.regexp_replace(F.substring("queue", 1, _NAME_CHARACTERS), "[^A-Za-z0-9._-]", "_")
        made = F.lower(F.hex("queue_created_at"))
        columns.insert(0, F.concat_ws("-", name, made).alias("q"))
    return columns


def day_of(timestamp: int) -> int:
    """Return the number of the day of a timestamp."""
    return timestamp // _DAY


def read_files(
    spark: SparkSession, folder: ArchiveFolder, table: str, files: list[Kept]
) -> DataFrame:
    """Return the messages of some files."""
    if not files:
        return spark.createDataFrame([], schema(table))
    return (
        spark.read.schema(schema(table))
        .option("recursiveFileLookup", "true")
        .parquet(*[literal_pattern(folder.uri(each.path)) for each in files])
    )


# --- reading an archive ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Archived:
    """An archive, as its newest manifest says.

    Attributes:
        queues: messages of queues that were done or archived: the columns of the table ``archive``,
            and ``queue_created_at``.
        inboxes: messages that were consumed from inboxes: the columns of the table ``reaped``.
        manifest: the manifest of the archive.
    """

    queues: DataFrame
    inboxes: DataFrame
    manifest: ArchiveManifest


def read_archive(spark: SparkSession, folder: str) -> Archived:
    """Return the messages of an archive.

    Args:
        spark: a session.
        folder: the folder that was given to :func:`.archive`.

    Raises:
        Invalid: there is no archive, or something else, or a later version has written it.
    """
    target = open_folder(spark, folder)
    manifest = latest(target)
    if not manifest.number:
        raise Invalid(f"there is no archive in {folder}: give the folder of one")

    def frame(table: str) -> DataFrame:
        files = [each for each in manifest.files if each.table == table]
        return read_files(spark, target, table, files)

    return Archived(frame(QUEUES), frame(INBOXES), manifest)

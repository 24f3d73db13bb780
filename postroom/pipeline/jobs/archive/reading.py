"""The reader of an archive: each message once, whatever runs were killed."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from postroom.errors import Invalid
from postroom.pipeline.jobs.archive.folders import open_folder
from postroom.pipeline.jobs.archive.manifest import ArchiveManifest
from postroom.pipeline.jobs.archive.run import latest
from postroom.pipeline.jobs.archive.writing import INBOXES, QUEUES, read_files


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


__all__ = ["Archived", "read_archive"]

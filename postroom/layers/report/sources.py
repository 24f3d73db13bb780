"""The messages that a report is about, of queues and of inboxes, each once, as one data frame.

Messages that ended up to the archive's manifest are read from its files. Those that ended later,
live or are dead are read from the store, at one timestamp. A message that is in both, since the
store was not trimmed yet, counts once.

::

    source    queue or inbox
    queue     its name; empty for inboxes
    kind      of a queue's message
    prefix    of the key: what comes before the first separator; empty if there is none
    state     of queues done (also archived ones), dead, scheduled, ready, leased; of inboxes done,
              waiting
    sent      when it was committed                           ┐
    due       when it was to be fired; when it was delivered  │ timestamps
    fired     when it was given to whoever ended it           │
    ended     when it was acknowledged, consumed, or died     ┘
    retries   how many attempts had failed
    error     why the last of them did
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

from postroom import Database
from postroom.pipeline.job_parts import LOGICAL_BITS, Archived

QUEUE: Final = "queue"
INBOX: Final = "inbox"
LIVING: Final = ("scheduled", "ready", "leased", "dead")
_ENDED: Final = ("done", "archived")
_QUEUE_COLUMNS: Final = (
    "queue string, key binary, kind string, created_at bigint, first_scheduled bigint, "
    "scheduled bigint, epoch int, last_error string, state string, done_at bigint, fired_at bigint"
)
_REAPED_COLUMNS: Final = (
    "key binary, sent_at bigint, delivered_at bigint, reaped_at bigint, consumed boolean, "
    "attempts int, last_error string"
)
_INBOX_COLUMNS: Final = "key binary, sent_at bigint, delivered_at bigint"


@dataclass(frozen=True)
class ReportBounds:
    """The bounds of what is read.

    Attributes:
        at: the timestamp at which the store is read.
        since: what ended up to this timestamp is left out; 0: nothing is.
        after_queues: by queue, up to when the archive has it.
        after_inboxes: up to when it has what was consumed from inboxes, or the store has nothing.
        separator: of keys.
        damaged: why queues are left out that cannot be read.
    """

    at: int
    since: int
    after_queues: Mapping[str, int]
    after_inboxes: int
    separator: str
    damaged: tuple[str, ...] = ()


def report_bounds(
    db: Database, archived: Archived | None, at: int, since: int, separator: str
) -> ReportBounds:
    """Return what is to be read of a store, beside its archive."""
    manifest, infos = None if archived is None else archived.manifest, db.queues()
    after = {
        info.name: max(
            since, 0 if manifest is None else manifest.until(info.name, int(info.created_at))
        )
        for info in infos
        if not info.damaged
    }
    readable = max(int(each.readable_from) for each in db.partitions(part_bytes=1 << 60))
    inboxes = max(since, readable, 0 if manifest is None else manifest.inboxes_until)
    damaged = tuple(info.damaged for info in infos if info.damaged)
    return ReportBounds(at, since, after, inboxes, separator, damaged)


def messages(
    spark: SparkSession, store: Mapping[str, str], archived: Archived | None, what: ReportBounds
) -> DataFrame:
    """Return the messages of archive and store: see the module."""
    made = _Frames(spark, store, what)
    frames = [made.inboxes(), made.reaped()]
    if what.after_queues:
        frames += [made.living(), made.ended()]
    if archived is not None:
        frames.append(_queue_rows(archived.queues, what).where(F.col("ended") > what.since))
        frames.append(_reaped_rows(archived.inboxes, what).where(F.col("ended") > what.since))
    found = frames[0]
    for each in frames[1:]:
        found = found.unionByName(each)
    return found


class _Frames:
    """The tables of the store."""

    def __init__(self, spark: SparkSession, store: Mapping[str, str], what: ReportBounds) -> None:
        self._spark, self._store, self._what = spark, store, what

    def _table(self, name: str, columns: str, **options: object) -> DataFrame:
        given = {key: str(value) for key, value in options.items()}
        return (
            self._spark.read.format("postroom")
            .schema(columns)
            .options(**self._store, table=name, at=str(self._what.at), **given)
            .load()
        )

    def _queues(self) -> DataFrame:
        found = self._table("queue", _QUEUE_COLUMNS)
        if not self._what.damaged:
            return found
        return found.where(F.col("queue").isin(list(self._what.after_queues)))

    def living(self) -> DataFrame:
        """Return messages of queues that live, or are dead."""
        found = self._queues().where(F.col("state").isin(*LIVING))
        return _queue_rows(found, self._what).where(
            (F.col("state") != "dead") | (F.col("ended") > self._what.since)
        )

    def ended(self) -> DataFrame:
        """Return messages of queues that ended after those in the archive."""
        after = self._what.after_queues
        known = F.create_map(*[F.lit(each) for pair in after.items() for each in pair])
        found = self._queues().where(
            F.col("state").isin(*_ENDED)
            & (F.col("done_at") > F.lit(min(after.values())))
            & (F.col("done_at") > known[F.col("queue")])
        )
        return _queue_rows(found, self._what)

    def reaped(self) -> DataFrame:
        """Return messages that were consumed from inboxes after those in the archive."""
        found = self._table("reaped", _REAPED_COLUMNS, since=self._what.after_inboxes)
        return _reaped_rows(found, self._what)

    def inboxes(self) -> DataFrame:
        """Return messages that wait in inboxes."""
        none = F.lit(None)
        return self._table("inbox", _INBOX_COLUMNS).select(
            F.lit(INBOX).alias("source"), F.lit("").alias("queue"), F.lit("").alias("kind"),
            _prefix(self._what.separator), F.lit("waiting").alias("state"),
            F.col("sent_at").alias("sent"), F.col("delivered_at").alias("due"),
            none.cast("bigint").alias("fired"), none.cast("bigint").alias("ended"),
            F.lit(0).alias("retries"), F.lit("").alias("error"),
        )  # fmt: skip


def _queue_rows(found: DataFrame, what: ReportBounds) -> DataFrame:
    ended = F.when(F.col("state").isin(*_ENDED, "dead"), F.col("done_at"))
    state = F.when(F.col("state") == "archived", F.lit("done")).otherwise(F.col("state"))
    return found.select(
        F.lit(QUEUE).alias("source"), F.col("queue"), F.col("kind"), _prefix(what.separator),
        state.alias("state"), F.col("created_at").alias("sent"), F.col("scheduled").alias("due"),
        F.col("fired_at").alias("fired"), ended.alias("ended"), F.col("epoch").alias("retries"),
        F.col("last_error").alias("error"),
    )  # fmt: skip


def _reaped_rows(found: DataFrame, what: ReportBounds) -> DataFrame:
    return found.where(F.col("consumed")).select(
        F.lit(INBOX).alias("source"), F.lit("").alias("queue"), F.lit("").alias("kind"),
        _prefix(what.separator), F.lit("done").alias("state"), F.col("sent_at").alias("sent"),
        F.col("delivered_at").alias("due"), F.lit(None).cast("bigint").alias("fired"),
        F.col("reaped_at").alias("ended"), F.col("attempts").alias("retries"),
        F.col("last_error").alias("error"),
    )  # fmt: skip


def _prefix(separator: str) -> Column:
    """Return the text before the first separator; bytes that are no text are replaced."""
    text = F.make_valid_utf8(F.col("key").cast("string"))
    first = F.substring_index(text, separator, 1)
    whole = F.when(F.instr(text, separator) > 0, first).otherwise(F.lit(""))
    return whole.alias("prefix")


def periods_of(column: str, seconds: int) -> Column:
    """Return the number of the period of so many seconds (since 1970, UTC) of a timestamp."""
    return F.expr(f"cast({column} div {1000 * seconds << LOGICAL_BITS} as bigint)")


def seconds_between(first: str, last: str) -> Column:
    """Return the seconds from one timestamp to another."""
    return F.expr(
        f"(shiftright({last}, {LOGICAL_BITS}) - shiftright({first}, {LOGICAL_BITS})) / 1000.0"
    ).cast("double")


__all__ = [
    "INBOX",
    "LIVING",
    "QUEUE",
    "ReportBounds",
    "messages",
    "periods_of",
    "report_bounds",
    "seconds_between",
]

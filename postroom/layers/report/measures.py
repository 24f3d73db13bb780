"""The messages that a report is about, and their measures, as one table of Spark's.

A row is a *measure* at a *level*. Levels are all messages of a source, a period, a queue, a queue
in a period, a kind of a queue, and a prefix of keys. Columns that a level does not divide by are
null.

==========================  ========================================================================
measure                     of whom
==========================  ========================================================================
commit to delivery          consumed from inboxes: seconds until it was in the inbox
delivery to reap            seconds from there
commit to reap              both
schedule to firing          done messages of queues: seconds from when it was due, at last
firing to acknowledgement   seconds from there
commit to acknowledgement   all of it, with what it waited for its schedule and for its retries
retries                     failed attempts a message
enqueued, done, dead        messages (of a queue in a period)
backlog                     messages that were there at the end of the period
now                         messages by state (column ``kind``) when the store was read
dead, by reason             dead messages of queues by their last error (column ``kind``)
==========================  ========================================================================

The first seven have ``messages``, ``mean``, ``p50``, ``p90``, ``p99`` and ``max``; the others have
``messages`` alone. Percentiles are Spark's ``percentile_approx``: off by a ten thousandth of the
ranks at most.

Periods are as long as fits the messages: an hour, ten minutes, a minute, ten seconds or a second.

The backlog is counted back from now: the messages there, plus those that ended since, less those
that came since. It is right for as long as history is whole, however far that goes back.

The messages are those of queues and of inboxes, each once, as one data frame. Messages that ended
up to the archive's manifest are read from its files. Those that ended later, live or are dead are
read from the store, at one timestamp. A message that is in both, since the store was not trimmed
yet, counts once.

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

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

from postroom import Database
from postroom.pipeline.jobs.archive.files import Archived

QUEUE: Final = "queue"
INBOX: Final = "inbox"
COUNTER_BITS: Final = 16
"""The low bits of a timestamp, which count; those above are milliseconds since 1970."""
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
    return F.expr(f"cast({column} div {1000 * seconds << COUNTER_BITS} as bigint)")


def seconds_between(first: str, last: str) -> Column:
    """Return the seconds from one timestamp to another."""
    return F.expr(
        f"(shiftright({last}, {COUNTER_BITS}) - shiftright({first}, {COUNTER_BITS})) / 1000.0"
    ).cast("double")


# --- measures -------------------------------------------------------------------------------------


STAGES: Final = {
    INBOX: ("commit to delivery", "delivery to reap", "commit to reap"),
    QUEUE: ("schedule to firing", "firing to acknowledgement", "commit to acknowledgement"),
}
RETRIES: Final = "retries"
FLOWS: Final = ("enqueued", "done", "dead")
BACKLOG: Final = "backlog"
NOW: Final = "now"
REASON: Final = "dead, by reason"
LEVELS: Final[dict[str, tuple[str, ...]]] = {
    "all": (),
    "period": ("period",),
    "queue": ("queue",),
    "queue and period": ("queue", "period"),
    "kind": ("queue", "kind"),
    "prefix": ("prefix",),
}
COLUMNS: Final = (
    "level", "source", "measure", "period", "queue", "kind", "prefix", "messages", "mean", "p50",
    "p90", "p99", "max",
)  # fmt: skip
_DIVIDED_BY: Final = ("period", "queue", "kind", "prefix")
_SHARES: Final = (0.5, 0.9, 0.99)


PERIODS: Final = (1, 10, 60, 600, 3600)
"""The seconds that a period may have."""


def fitting_period(span_seconds: float, periods_max: int) -> int:
    """Return the shortest period that divides ``span_seconds`` into at most so many."""
    fitting = (each for each in PERIODS if span_seconds <= each * periods_max)
    return next(fitting, PERIODS[-1])


def measures(found: DataFrame, seconds: int, since: int = 0) -> DataFrame:
    """Return all measures of messages, as :func:`.messages` finds them.

    Args:
        found: the messages.
        seconds: of a period.
        since: the number of the first period of which all is known.
    """
    flows = _flows(found, seconds).where(F.col("period") >= since)
    now = _states(found.where(F.col("state") != "done"), "state", NOW)
    dead = found.where((F.col("source") == QUEUE) & (F.col("state") == "dead"))
    return (
        _latencies(found, seconds)
        .unionByName(flows)
        .unionByName(now)
        .unionByName(_states(dead, "error", REASON))
    )


# --- measures of each message ---------------------------------------------------------------------


def _latencies(found: DataFrame, seconds: int) -> DataFrame:
    """Return, by levels, the times that each done message has taken."""
    taken = _time_rows(found, seconds)
    always, columns = ["source", "measure"], [F.col(name) for name in _DIVIDED_BY]
    sets = [[F.col(name) for name in (*always, *level)] for level in LEVELS.values()]
    grouped = taken.groupingSets(sets, F.col("source"), F.col("measure"), *columns).agg(
        F.grouping_id().alias("set"),
        F.count(F.lit(1)).alias("messages"),
        F.avg("value").alias("mean"),
        F.percentile_approx("value", list(_SHARES)).alias("shares"),
        F.max("value").alias("max"),
    )
    named = F.create_map(
        *[F.lit(each) for level, by in LEVELS.items() for each in (_grouping_id(by), level)]
    )
    quantiles = [
        F.col("shares")[number].alias(f"p{share * 100:g}") for number, share in enumerate(_SHARES)
    ]
    return grouped.select(
        named[F.col("set").cast("int")].alias("level"), *always, *_DIVIDED_BY, "messages", "mean",
        *quantiles, "max",
    ).select(*COLUMNS)  # fmt: skip


def _grouping_id(by: tuple[str, ...]) -> int:
    """Return the ``grouping_id`` of a level: a bit for each column that it does not divide by."""
    return sum(1 << bit for bit, name in enumerate(reversed(_DIVIDED_BY)) if name not in by)


def _time_rows(found: DataFrame, seconds: int) -> DataFrame:
    """Return a row for each message and measure."""
    ends = {
        INBOX: (("sent", "due"), ("due", "ended"), ("sent", "ended")),
        QUEUE: (("due", "fired"), ("fired", "ended"), ("sent", "ended")),
    }
    rows = [
        F.struct(
            F.lit(source).alias("of"), F.lit(stage).alias("measure"),
            seconds_between(first, last).alias("value"),
        )
        for source, stages in STAGES.items()
        for stage, (first, last) in zip(stages, ends[source], strict=True)
    ]  # fmt: skip
    retries = F.col("retries").cast("double").alias("value")
    rows.append(F.struct(F.col("source").alias("of"), F.lit(RETRIES).alias("measure"), retries))
    done = found.where(F.col("state") == "done")
    exploded = done.withColumn("period", periods_of("ended", seconds)).withColumn(
        "taken", F.explode(F.array(*rows))
    )
    mine = (F.col("taken.of") == F.col("source")) & F.col("taken.value").isNotNull()
    value = F.greatest(F.col("taken.value"), F.lit(0.0))  # a clock may have stood ahead
    return exploded.where(mine).select(
        "source", F.col("taken.measure").alias("measure"), *_DIVIDED_BY, value.alias("value")
    )


# --- measures of periods --------------------------------------------------------------------------


def _flows(found: DataFrame, seconds: int) -> DataFrame:
    """Return the messages that came and ended in each period, and those at its end."""
    came = found.select(
        "source",
        "queue",
        periods_of("sent", seconds).alias("period"),
        F.lit("enqueued").alias("measure"),
    )
    ended = found.where(F.col("ended").isNotNull()).select(
        "source",
        "queue",
        periods_of("ended", seconds).alias("period"),
        F.col("state").alias("measure"),
    )
    counted = (
        came.unionByName(ended)
        .groupBy("source", "queue", "period")
        .pivot("measure", list(FLOWS))
        .count()
        .na.fill(0)
    )
    here = (
        found.where(F.col("ended").isNull())
        .groupBy("source", "queue")
        .agg(F.count(F.lit(1)).alias("here"))
    )
    later = (
        Window.partitionBy("source", "queue").orderBy(F.col("period").desc())
        .rowsBetween(Window.unboundedPreceding, -1)
    )  # fmt: skip
    gone_since = F.coalesce(F.sum(F.expr("done + dead - enqueued")).over(later), F.lit(0))
    flows = counted.join(here, ["source", "queue"], "left").withColumn(
        BACKLOG, F.coalesce(F.col("here"), F.lit(0)) + gone_since
    )
    pairs = ", ".join(f"'{name}', {name}" for name in (*FLOWS, BACKLOG))
    return flows.select(
        F.lit("queue and period").alias("level"), "source", "period", "queue",
        F.expr(f"stack({len(FLOWS) + 1}, {pairs}) as (measure, messages)"),
    ).select(*_measure_columns("period", "queue"))  # fmt: skip


def _states(found: DataFrame, kind: str, measure: str) -> DataFrame:
    """Return how many messages of each queue there are, by the content of a column."""
    return (
        found.groupBy("source", "queue", F.col(kind).alias("kind"))
        .agg(F.count(F.lit(1)).alias("messages"))
        .withColumn("level", F.lit("queue"))
        .withColumn("measure", F.lit(measure))
        .select(*_measure_columns("queue", "kind"))
    )


def _measure_columns(*there: str) -> list[Column]:
    """Return all columns of the table, with null for the missing ones."""
    present = {"level", "source", "measure", "messages", *there}
    kinds = {"period": "bigint", "queue": "string", "kind": "string", "prefix": "string"}
    return [
        F.col(name) if name in present
        else F.lit(None).cast(kinds.get(name, "double")).alias(name)
        for name in COLUMNS
    ]  # fmt: skip

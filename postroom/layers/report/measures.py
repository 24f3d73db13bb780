"""The measures of a report: latencies, retries, throughput and backlog, as one table of Spark's.

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
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

from postroom.layers.report.sources import INBOX, QUEUE, periods_of, seconds_between

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
    now = _now(found).unionByName(_reasons(found))
    return _latencies(found, seconds).unionByName(flows).unionByName(now)


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
    parts = [F.col("shares")[number].alias(f"p{share * 100:g}")
             for number, share in enumerate(_SHARES)]  # fmt: skip
    return grouped.select(
        named[F.col("set").cast("int")].alias("level"), *always, *_DIVIDED_BY, "messages", "mean",
        *parts, "max",
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
        "source", "queue", periods_of("sent", seconds).alias("period"), _one("enqueued")
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


def _one(measure: str) -> Column:
    return F.lit(measure).alias("measure")


def _now(found: DataFrame) -> DataFrame:
    """Return the messages that are there when the store is read, by state."""
    return (
        found.where(F.col("state") != "done")
        .groupBy("source", "queue", F.col("state").alias("kind"))
        .agg(F.count(F.lit(1)).alias("messages"))
        .withColumn("level", F.lit("queue"))
        .withColumn("measure", F.lit(NOW))
        .select(*_measure_columns("queue", "kind"))
    )


def _reasons(found: DataFrame) -> DataFrame:
    """Return the reasons for which messages of queues are dead."""
    return (
        found.where((F.col("source") == QUEUE) & (F.col("state") == "dead"))
        .groupBy("source", "queue", F.col("error").alias("kind"))
        .agg(F.count(F.lit(1)).alias("messages"))
        .withColumn("level", F.lit("queue"))
        .withColumn("measure", F.lit(REASON))
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


__all__ = [
    "BACKLOG",
    "COLUMNS",
    "FLOWS",
    "LEVELS",
    "NOW",
    "PERIODS",
    "REASON",
    "RETRIES",
    "STAGES",
    "fitting_period",
    "measures",
]

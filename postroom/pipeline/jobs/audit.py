"""The job ``audit``: recounts what counters claim, and names every difference.

There is one timestamp, one aggregation (:mod:`.audit_facts`), and examples of what differs, if
anything does. The store keeps a snapshot of its engine meanwhile. It is gone if another node
becomes the leader; then all is counted again, at another timestamp. Nothing is written, so there is
nothing to resume.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

from postroom.client.sync import CoreDatabase
from postroom.errors import Error, SnapshotTooOld
from postroom.pipeline.jobs import audit_facts
from postroom.pipeline.jobs.audit_transit import read_transit
from postroom.pipeline.jobs.job import SILENT, JobFailed, JobProgress, database
from postroom.pipeline.table_reader import counted_queues

TRIES: Final = 3
_TABLES: Final = ("counters", "inbox_index", "places", "beside")
EXAMPLES_MAX: Final = 10
"""The number of differences of a counter that are told one by one."""

COUNTERS: Final[Mapping[str, str]] = {
    audit_facts.CONSERVATION: (
        "enqueued + received = delivered + executed + pending + dead + handed"
    ),
    audit_facts.PENDING_MESSAGES: "messages in outboxes",
    audit_facts.PENDING_UPDATES: "updates in outboxes",
    audit_facts.DEAD_LETTERS: "dead letters",
    audit_facts.IN_INBOXES: "messages in inboxes, delivered and not reaped",
    audit_facts.IN_TRANSIT: "messages and updates between ranges, received and not handed over",
    audit_facts.ON_ITS_WAY: "messages on their way, each in one place",
    audit_facts.INDEX: "index of inboxes: messages",
    audit_facts.INDEX_OLDEST: "index of inboxes: the oldest message",
    audit_facts.INDEX_HELD: "index of inboxes: messages that hold up others",
    audit_facts.ACCOUNTING: "sums of metrics of every prefix",
    audit_facts.QUEUE_ENQUEUED: "queues: enqueued = all states",
    **{f"queue.{state}": f"queues: {state}" for state in audit_facts.QUEUE_STATES},
    audit_facts.QUEUE_ENDED: "queues: ended, and not purged",
    audit_facts.QUEUE_GROUP: "queues: outstanding in a group",
    audit_facts.QUEUE_MESSAGE: "queues: each message where its record says",
    audit_facts.QUEUE_SLOTS: "queues: slots of limits, over all ranges",
}
"""The counters that an audit compares, in words, in the order in which they are told."""


@dataclass(frozen=True, slots=True)
class CountDifference:
    """A difference between a claim and a count.

    Attributes:
        counter: one of ``COUNTERS``.
        where: a range, or a queue; empty: in a span of keys.
        key: the key of an inbox or a message of a queue, a prefix, or a group.
        item: a metric, or kind and id of a message.
        claimed: the claim.
        counted: the count: a number, the id of a message (hexadecimal), or the place of a message
            of a queue; ``None``: nothing.
    """

    counter: str
    where: str
    key: bytes
    item: str
    claimed: int | str | None
    counted: int | str | None

    def __str__(self) -> str:
        about = [self.where, repr(self.key)[1:] if self.key else "", self.item]
        place = ", ".join(filter(None, about))
        return f"{self.counter} ({place}): claimed {self.claimed}, counted {self.counted}"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of comparing one counter.

    Attributes:
        counter: one of ``COUNTERS``.
        compared: the number of values: of ranges, keys, prefixes and metrics, queues, messages.
        differences: the number of those that are not what is claimed.
        examples: the first differences, ``EXAMPLES_MAX`` at most.
    """

    counter: str
    compared: int
    differences: int
    examples: tuple[CountDifference, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of an audit.

    Attributes:
        at: the timestamp at which everything was claimed and counted.
        findings: one for each counter.
    """

    at: int
    findings: tuple[Finding, ...]

    @property
    def compared(self) -> int:
        """Return the number of values that were compared."""
        return sum(each.compared for each in self.findings)

    @property
    def differences(self) -> int:
        """Return the number of values that are not what is claimed."""
        return sum(each.differences for each in self.findings)


def audit(
    spark: SparkSession, store: Mapping[str, str], *, progress: JobProgress = SILENT
) -> AuditResult:
    """Recount at one timestamp what the store claims.

    It claims conservation of messages by range, between ranges and in total, sums of every prefix,
    the index of inboxes, and the statistics of queues.

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
        f"another node became the leader during each of {TRIES} audits, and the snapshot of "
        "each is gone; nothing was changed: run it again once the cluster is at rest"
    )


def _is_held(db: CoreDatabase, at: int) -> bool:
    try:
        for _ in db.bulk.scan("counters", at=at):  # in each range
            pass
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
    transit = read_transit(db, at, {each.number for each in found if not each.dropped})
    wanted = (*_TABLES, "outbox") if transit.messages else _TABLES
    tables = {table: _table(spark, store, table, at) for table in wanted}
    groups = audit_facts.compared(audit_facts.facts(spark, tables, dropped, ranges, transit))
    totals = _totals(groups)
    progress("recounting", 1, 1)
    examples: list[Any] = []
    if any(wrong or other for _, wrong, other in totals.values()):
        progress("looking for examples", 0, 1)
        examples = _examples(groups)
        progress("looking for examples", 1, 1)
    names = {each.number: each.queue for each in found}
    return AuditResult(at, findings(totals, examples, names))


def _table(spark: SparkSession, store: Mapping[str, str], table: str, at: int) -> DataFrame:
    reader = spark.read.format("postroom").options(**store)
    return reader.option("table", table).option("at", str(at)).option("protect_for", "1").load()


def _totals(groups: DataFrame) -> dict[str, tuple[int, int, int]]:
    """Return for each check the numbers of its groups, and of those that differ."""
    counted = groups.groupBy("check").agg(
        F.count(F.lit(1)).alias("compared"),
        F.count_if("wrong").alias("wrong"),
        F.count_if("other").alias("other"),
    )
    return {row.check: (row.compared, row.wrong, row.other) for row in counted.collect()}


def _examples(groups: DataFrame) -> list[Any]:
    """Return the first groups of each check that differ, in the order of their keys."""
    first = Window.partitionBy("check", "wrong").orderBy("place", "key", "kind", "id", "seq")
    differing = groups.where(F.col("wrong") | F.col("other"))
    numbered = differing.withColumn("number", F.row_number().over(first))
    return list(numbered.where(F.col("number") <= EXAMPLES_MAX).collect())


# --- findings -------------------------------------------------------------------------------------


def findings(
    totals: Mapping[str, tuple[int, int, int]],
    examples: Iterable[Any],
    names: Mapping[int, str],
) -> tuple[Finding, ...]:
    """Return a finding for each counter.

    Args:
        totals: for each check the number of groups, of those that differ in number, and of those
            that differ in the id.
        examples: groups that differ.
        names: the names of queues, by number.
    """
    told: dict[str, list[CountDifference]] = {}
    for group in examples:
        for difference in _differences(group, names):
            told.setdefault(difference.counter, []).append(difference)
    found = []
    for counter in COUNTERS:
        if counter == audit_facts.INDEX_OLDEST:
            compared, _, differences = totals.get(audit_facts.INDEX, (0, 0, 0))
        else:
            compared, wrong, other = totals.get(counter, (0, 0, 0))
            differences = other if counter == audit_facts.INDEX_HELD else wrong
        few = tuple(told.get(counter, ())[:EXAMPLES_MAX])
        found.append(Finding(counter, compared, differences, few))
    return tuple(found)


def _differences(group: Any, names: Mapping[int, str]) -> Iterable[CountDifference]:
    """Iterate over the differences of a group: in number, in the id, or both."""
    about = (_where(group, names), bytes(group.key or b""), _item(group))
    if group.check == audit_facts.QUEUE_MESSAGE:
        yield CountDifference(group.check, *about, _said(group), _seen(group))
        return
    if group.wrong:
        yield CountDifference(group.check, *about, int(group.claimed), int(group.counted))
    if group.other:
        counter = audit_facts.INDEX_OLDEST if group.check == audit_facts.INDEX else group.check
        yield CountDifference(counter, *about, _hex(group.claimed_id), _hex(group.counted_id))


def _where(group: Any, names: Mapping[int, str]) -> str:
    if group.check.startswith("queue."):
        name = names.get(group.place)
        return f"queue {group.place}, which is not there" if name is None else f"queue {name!r}"
    if group.check in audit_facts.OF_RANGES and group.place:
        return f"range {group.place}"
    is_of_ranges = group.check in {*audit_facts.OF_RANGES, *audit_facts.IN_TOTAL}
    return "all ranges" if is_of_ranges else ""


def _item(group: Any) -> str:
    if group.check == audit_facts.ON_ITS_WAY:
        return f"id {bytes(group.id).hex()}"
    if group.check != audit_facts.QUEUE_MESSAGE:
        return group.kind or ""
    kind = f"kind {group.kind!r}, " if group.kind else ""
    return f"{kind}id {bytes(group.id)!r}"


def _said(group: Any) -> str | None:
    """Return the place that the record of a message tells."""
    return None if not group.claimed else _state(group.claimed_id)


def _seen(group: Any) -> str | None:
    """Return the place where a message is."""
    if group.counted > 1:
        return f"in {group.counted} places"
    return None if not group.counted else _state(group.counted_id)


def _state(of: Any) -> str:
    return bytes(of)[1:].decode()


def _hex(id_: Any) -> str | None:
    return None if id_ is None else bytes(id_).hex()

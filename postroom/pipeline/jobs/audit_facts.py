"""Claims and counts as one data frame, and the groups in which they differ.

::

    counters ────┐                                        ┌ sum(claimed)     differ? ─▶ findings
    inbox_index ─┤  facts: check, place, key, ...   group │ sum(counted)
    places ──────┤         claimed, counted,      ───────▶│ max(claimed_id)
    beside ──────┤         claimed_id, counted_id         └ min(counted_id)
    outbox ──────┤
    transit ─────┘

Each row of a table becomes a few *facts*. An entry of the index claims three messages, and each
message in the inbox counts as one. Both are facts of one *check* about one key. Each table is
read once, the comparison is one aggregation, and a hundred million messages take no more memory
than ten.

Several ranges are one store: what they claim of a queue is added up. An entry on its way between
two of them may be in both, and an accounting update may be carried out in a part of its ranges only
(:mod:`.audit_transit`). A message in an outbox that no receiver has taken, by its marks, is in no
inbox. One that is was doubled. It counts as an entry that two ranges have, so that it does not make
up for a message that was lost. An update, or a message that was reaped, leaves no such trace.

Sums count modulo 2 ** 64, as posted amounts do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

from postroom.kv import keys
from postroom.messaging.queues import records
from postroom.pipeline.jobs.audit_transit import NOTHING, StoreTransit

CONSERVATION: Final = "conservation"
PENDING_MESSAGES: Final = "pending_messages"
PENDING_UPDATES: Final = "pending_updates"
DEAD_LETTERS: Final = "dead_letters"
IN_INBOXES: Final = "messages_in_inboxes"
IN_TRANSIT: Final = "in_transit"
ON_ITS_WAY: Final = "in_transit.message"
INDEX: Final = "inbox_index.messages"
INDEX_OLDEST: Final = "inbox_index.oldest"
INDEX_HELD: Final = "inbox_index.held"
ACCOUNTING: Final = "accounting"
QUEUE_STATES: Final = ("scheduled", "ready", "leased", "done", "archived", "dead")
QUEUE_ENQUEUED: Final = "queue.enqueued"
QUEUE_ENDED: Final = "queue.ended"
QUEUE_GROUP: Final = "queue.group"
QUEUE_MESSAGE: Final = "queue.message"
QUEUE_SLOTS: Final = "queue.slots"

OF_RANGES: Final = (CONSERVATION, PENDING_MESSAGES, PENDING_UPDATES, DEAD_LETTERS)
IN_TOTAL: Final = (IN_INBOXES, IN_TRANSIT)
"""The checks of counters of ranges that hold in total only."""

CLAIMS_OF_RANGE: Final[Mapping[str, tuple[tuple[str, int, int], ...]]] = {
    "enqueued": ((CONSERVATION, 1, 0),),
    "delivered": ((CONSERVATION, 0, 1), (IN_INBOXES, 1, 0)),
    "executed": ((CONSERVATION, 0, 1),),
    "pending_messages": ((CONSERVATION, 0, 1), (PENDING_MESSAGES, 1, 0)),
    "pending_updates": ((CONSERVATION, 0, 1), (PENDING_UPDATES, 1, 0)),
    "outgoing_messages": ((CONSERVATION, 0, 1), (PENDING_MESSAGES, 1, 0)),
    "outgoing_updates": ((CONSERVATION, 0, 1), (PENDING_UPDATES, 1, 0)),
    "received": ((CONSERVATION, 1, 0), (IN_TRANSIT, 1, 0)),
    "handed": ((CONSERVATION, 0, 1), (IN_TRANSIT, -1, 0)),
    "dead": ((CONSERVATION, 0, 1), (DEAD_LETTERS, 1, 0)),
    "discarded": ((DEAD_LETTERS, -1, 0),),
    "reaped": ((IN_INBOXES, -1, 0),),
}
"""The checks for each counter of a range: how often it is claimed for each, and counted."""

CLAIMS_OF_QUEUE: Final[Mapping[str, tuple[tuple[str, int, int], ...]]] = {
    "enqueued": ((QUEUE_ENQUEUED, 1, 0),),
    **{
        state: ((f"queue.{state}", 1, 0), (QUEUE_ENQUEUED, 0, 1))
        for state in ("scheduled", "ready", "leased", "dead")
    },
    "done": (("queue.done", 1, 0),),
    "archived": (("queue.archived", 1, 0),),
    "acknowledged": ((QUEUE_ENQUEUED, 0, 1), (QUEUE_ENDED, 1, 0)),
    "cancelled": ((QUEUE_ENQUEUED, 0, 1), (QUEUE_ENDED, 1, 0)),
    "moved": ((QUEUE_ENQUEUED, 0, 1), (QUEUE_ENDED, 1, 0)),
    "purged": ((QUEUE_ENDED, -1, 0),),
}
"""The checks of each counter of a queue, in that form."""

_ENDED: Final = ("done", "archived", "cancelled", "moved", "unknown")
_OUTSTANDING: Final = ("scheduled", "ready", "leased", "dead")
_OUTSIDE: Final = {
    "message": PENDING_MESSAGES,
    "update": PENDING_UPDATES,
    "dead_letter": DEAD_LETTERS,
}

LIVE: Final = b"0live"
MAY_BE_ALONE: Final = b"2"
"""The first class of ends that may outlive the record of their message, and its id."""
_CLASS_OF_SUBSPACE: Final = {
    "scheduled": LIVE,
    "ready": LIVE,
    "leased": LIVE,
    "archived": b"1archived",
    "dead": b"1dead",
    "cancelled": b"2cancelled",
    "done": b"2done",
    "moved": b"2moved",
    "unknown": b"2unknown",
}
"""The classes of the subspaces of a queue; the record of a message tells in which one it is."""
_CLASS_OF_STATUS: Final = {
    records.DONE: b"2done",
    records.ARCHIVED: b"1archived",
    records.DEAD: b"1dead",
    records.CANCELLED: b"2cancelled",
    records.MOVED: b"2moved",
}

GROUPED: Final = ("check", "place", "key", "kind", "id", "seq")
_NUMBER: Final = "decimal(20,0)"
_TYPES: Final = {
    "check": "string",
    "place": "bigint",
    "key": "binary",
    "kind": "string",
    "id": "binary",
    "seq": "binary",
    "claimed": _NUMBER,
    "counted": _NUMBER,
    "claimed_id": "binary",
    "counted_id": "binary",
}


def facts(
    spark: SparkSession,
    tables: Mapping[str, DataFrame],
    dropped: Sequence[int],
    ranges: int,
    transit: StoreTransit = NOTHING,
) -> DataFrame:
    """Return all claims and all counts.

    Args:
        spark: a session.
        tables: ``counters``, ``inbox_index``, ``places``, ``beside``, and ``outbox`` if messages
            wait, as of one timestamp.
        dropped: the numbers of queues that are being emptied.
        ranges: the number of ranges: several are also compared in total.
        transit: what is on its way between them.
    """
    counters, beside = tables["counters"], tables["beside"]
    if dropped:
        is_dropped = F.col("number").isin(list(dropped))
        counters, beside = counters.where(~is_dropped), beside.where(~is_dropped)
    found = []
    sent_from = F.lit(None).cast("bigint")
    if transit.messages:
        sent = _messages_on_their_way(tables["outbox"])
        beside = beside.join(sent.drop("places"), ["key", "id"], "left")
        found, sent_from = [_exploded(sent, _sent_facts())], F.col("sent_from")
    found += [
        _counter_facts(spark, counters),
        _exploded(tables["inbox_index"], _index_facts()),
        _exploded(tables["places"], _place_facts()),
        _exploded(beside, _record_facts(sent_from)),
        _transit_facts(spark, transit),
    ]
    every = found[0]
    for more in found[1:]:
        every = every.unionByName(more)
    if ranges > 1:
        of_ranges = every.where(F.col("check").isin(list(OF_RANGES)))
        every = every.unionByName(of_ranges.withColumn("place", F.lit(0).cast("bigint")))
    return every


def compared(every: DataFrame) -> DataFrame:
    """Return what is claimed and counted in each group, and whether that differs.

    Groups differ in number (``wrong``), or in the id (``other``).
    """
    sums = every.groupBy(*GROUPED).agg(
        F.coalesce(F.sum("claimed"), F.lit(0)).alias("claimed"),
        F.coalesce(F.sum("counted"), F.lit(0)).alias("counted"),
        F.max("claimed_id").alias("claimed_id"),
        F.min("counted_id").alias("counted_id"),
    )
    is_message = F.col("check") == QUEUE_MESSAGE
    same_id = F.col("claimed_id").eqNullSafe(F.col("counted_id"))
    is_there = F.col("claimed") > 0
    misplaced = F.when(is_there, (F.col("counted") != 1) | ~same_id).otherwise(
        (F.col("counted") > 0) & (F.col("counted_id") < F.lit(MAY_BE_ALONE))
    )
    differ = F.expr("pmod(claimed - counted, 18446744073709551616BD) != 0")
    both = F.col("claimed_id").isNotNull() & F.col("counted_id").isNotNull()
    return sums.select(
        *sums.columns,
        F.when(is_message, misplaced).otherwise(differ).alias("wrong"),
        F.when(is_message, F.lit(False)).otherwise(~same_id & (both | ~differ)).alias("other"),
    )


# --- the facts in the rows of a table -------------------------------------------------------------


def _fact(check: Column | str, **known: Any) -> Column:
    """Return a fact with the values that are known."""
    values = {"check": F.lit(check) if isinstance(check, str) else check, **known}
    return F.struct(
        *(_value(values.get(name)).cast(kind).alias(name) for name, kind in _TYPES.items())
    )


def _value(known: Any) -> Column:
    return known if isinstance(known, Column) else F.lit(known)


def _exploded(table: DataFrame, each: Column) -> DataFrame:
    """Return the facts in an array of each row, without those that are null."""
    return table.select(F.explode(F.array_compact(each)).alias("fact")).select("fact.*")


def _counter_facts(spark: SparkSession, table: DataFrame) -> DataFrame:
    rows = [
        (of_queue, counter, *each)
        for of_queue, claims in ((False, CLAIMS_OF_RANGE), (True, CLAIMS_OF_QUEUE))
        for counter, checks in claims.items()
        for each in checks
    ]
    schema = "of_queue boolean, counter string, check string, claims int, counts int"
    claims = F.broadcast(spark.createDataFrame(rows, schema))
    of_queue, value = F.col("number") > 0, F.col("value").cast(_NUMBER)
    in_total = F.col("check").isin(list(IN_TOTAL))
    place = F.when(of_queue, F.col("number")).when(in_total, F.lit(0)).otherwise(F.col("range"))
    joined = table.withColumn("of_queue", of_queue).join(claims, ["of_queue", "counter"])
    fact = _fact(
        F.col("check"),
        place=place,
        claimed=value * F.col("claims"),
        counted=value * F.col("counts"),
    )
    return joined.select(fact.alias("fact")).select("fact.*")


def _transit_facts(spark: SparkSession, transit: StoreTransit) -> DataFrame:
    rows: list[Any] = [(IN_TRANSIT, 0, None, None, None, transit.taken)]
    rows += [(ACCOUNTING, None, *of, number, None) for of, number in transit.sums.items()]
    rows += [
        (QUEUE_SLOTS, number, None, limit, found.limit, found.pool + found.owned + found.moving)
        for (number, limit), found in transit.slots.items()
    ]
    known = ("place", "key", "kind", "claimed", "counted")
    schema = ", ".join(f"{name} {_TYPES[name]}" for name in ("check", *known[:3]))
    frame = spark.createDataFrame(rows, f"{schema}, claimed bigint, counted bigint")
    fact = _fact(F.col("check"), **{name: F.col(name) for name in known})
    return frame.select(fact.alias("fact")).select("fact.*")


def _index_facts() -> Column:
    key, messages, held = F.col("key"), F.col("messages"), F.col("held")
    is_held = F.length(held) > 0
    oldest = F.when((messages != 0) | ~is_held, F.col("oldest"))
    return F.array(
        _fact(INDEX, key=key, claimed=messages, claimed_id=oldest),
        F.when(is_held, _fact(INDEX_HELD, key=key, claimed_id=held)),
    )


def _place_facts() -> Column:
    subspace, number = F.col("part"), F.col("number")
    group = F.col("group").cast("binary")
    message = {name: F.col(name) for name in ("key", "kind", "id", "seq")}
    of_queue = number > 0
    is_message = of_queue & (subspace != "group")
    is_grouped = subspace.isin(list(_OUTSTANDING)) & (F.col("group") != "")
    counted = {"place": number, "counted": 1}
    return F.array(
        F.when(~of_queue, _fact(_chosen(subspace, _OUTSIDE), place=F.col("range"), counted=1)),
        F.when(
            of_queue & subspace.isin(list(QUEUE_STATES)),
            _fact(F.concat(F.lit("queue."), subspace), **counted),
        ),
        F.when(of_queue & subspace.isin(list(_ENDED)), _fact(QUEUE_ENDED, **counted)),
        F.when(of_queue & is_grouped, _fact(QUEUE_GROUP, key=group, **counted)),
        F.when(
            of_queue & (subspace == "group"),
            _fact(QUEUE_GROUP, place=number, key=group, claimed=F.col("outstanding")),
        ),
        F.when(
            is_message,
            _fact(
                QUEUE_MESSAGE,
                counted_id=_chosen(subspace, _CLASS_OF_SUBSPACE),
                **message,
                **counted,
            ),
        ),
    )


def _messages_on_their_way(outbox: DataFrame) -> DataFrame:
    """Return the messages in outboxes: key, id, the first range, the number of places."""
    name = F.unhex("id")  # range of an entry, when it goes, id of its message, kind
    sender = F.conv(F.hex(F.substring(name, 1, 8)), 16, 10).cast("bigint")
    messages = outbox.where(F.substring(name, 37, 1) == F.lit(keys.DELIVERABLE))
    found = messages.select("key", F.substring(name, 17, 20).alias("id"), sender.alias("sender"))
    return found.groupBy("key", "id").agg(
        F.min("sender").alias("sent_from"), F.count(F.lit(1)).alias("places")
    )


def _sent_facts() -> Column:
    places = F.col("places")
    named = {"key": F.col("key"), "id": F.col("id")}
    return F.array(
        _fact(ON_ITS_WAY, **named, claimed=1, counted=places),
        F.when(places > 1, _fact(IN_TRANSIT, place=0, counted=places - 1)),
    )


def _record_facts(sent_from: Column) -> Column:
    """Return the facts in a record; a message may be on its way from a range, too."""
    what, key, metric, value = (F.col(name) for name in ("what", "key", "metric", "value"))
    message = {name: F.col(name) for name in ("key", "kind", "id", "seq")}
    message["place"] = F.col("number")
    is_sum = (what == "sum") & metric.isNotNull()
    is_doubled = (what == "message") & sent_from.isNotNull()
    state = _chosen(F.col("status"), _CLASS_OF_STATUS)
    alone = F.array(
        F.when(what == "message", _fact(IN_INBOXES, place=0, counted=1)),
        F.when(what == "message", _fact(INDEX, key=key, counted=1, counted_id=F.col("id"))),
        F.when(is_doubled, _fact(ON_ITS_WAY, key=key, id=F.col("id"), counted=1)),
        F.when(is_doubled & (sent_from != F.col("range")), _fact(IN_TRANSIT, place=0, counted=1)),
        F.when(what == "hold", _fact(INDEX_HELD, key=key, counted_id=F.col("id"))),
        F.when(is_sum, _fact(ACCOUNTING, key=key, kind=metric, claimed=value)),
        F.when(what == "body", _fact(QUEUE_MESSAGE, claimed=1, claimed_id=LIVE, **message)),
        F.when(what == "state", _fact(QUEUE_MESSAGE, claimed_id=state, **message)),
    )
    is_posted = (what == "posted") & metric.isNotNull()
    posted = F.transform(
        prefixes(key), lambda prefix: _fact(ACCOUNTING, key=prefix, kind=metric, counted=value)
    )
    return F.when(is_posted, posted).otherwise(alone)


def prefixes(key: Column) -> Column:
    """Return ``key`` and its prefixes, like :func:`postroom.ranges.accounting.prefixes`."""
    text = F.decode(key, "ISO-8859-1")  # a character a byte
    length = F.length(text)

    def ends_one(place: Column) -> Column:
        following = F.substr(text, place + 1, F.lit(1))
        return (F.substr(text, place, F.lit(1)) != "/") & ((place == length) | (following == "/"))

    ends = F.filter(F.sequence(F.lit(1), length), ends_one)
    return F.transform(ends, lambda end: F.substring(key, 1, end))


def _chosen(column: Column, values: Mapping[Any, Any]) -> Column:
    """Return the value for the content of a column; null for any other content."""
    pairs = iter(values.items())
    key, value = next(pairs)
    chosen = F.when(column == key, F.lit(value))
    for key, value in pairs:
        chosen = chosen.when(column == key, F.lit(value))
    return chosen

"""Queues and their messages as lines, tables and JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

import postroom
from postroom.cli.output import Listing, Notation, field, print_json, print_line
from postroom.counted import counted
from postroom.errors import StoreCorrupted
from postroom.kv.clock import Timestamp
from postroom.limits import QUEUES_SHOWN_MAX

QUEUE_HEADERS: Final = ("queue", "ready", "scheduled", "leased", "dead", "state")


class QueuesSummary(msgspec.Struct, kw_only=True):
    """The queues of a store, for ``status`` and ``queue list``.

    Attributes:
        lines: a line for each queue shown.
        records: these lines as JSON.
        hidden: how many queues are not shown.
        error: why nothing is known of them; empty: it is known.
    """

    lines: list[tuple[str, ...]] = []
    records: list[dict[str, object]] = []
    hidden: int = 0
    error: str = ""

    def as_json(self) -> object:
        """Return the records, or the error."""
        return {"error": self.error} if self.error else self.records

    def print(self) -> None:
        """Print the queues, if there are any."""
        with Listing(*QUEUE_HEADERS) as listing:
            for line in self.lines:
                listing.add(*line)
        if self.hidden:
            print_line(f"{counted(self.hidden, 'more queue')}: 'postroom queue list' shows them")
        if self.error:
            print_line(f"queues: {self.error}")


def summarize_queues(db: postroom.Database, limit: int = QUEUES_SHOWN_MAX) -> QueuesSummary:
    """Return the depth of the first queues of a store, in the order of their names."""
    infos = db.queues()
    shown = [queue_depth(db, each) for each in infos[:limit]]
    return QueuesSummary(
        lines=[line for line, _ in shown],
        records=[record for _, record in shown],
        hidden=max(len(infos) - limit, 0),
    )


def queue_depth(
    db: postroom.Database, info: postroom.QueueInfo
) -> tuple[tuple[str, ...], dict[str, object]]:
    """Return the line and the record of a queue."""
    damaged = info.damaged
    try:
        stats = None if damaged else db.queue(info.name).stats()
    except StoreCorrupted as error:  # no call had asked for this queue until now
        stats, damaged = None, str(error)
    if stats is None:
        return (field(info.name), "damaged", damaged), {"name": info.name, "damaged": damaged}
    numbers = (stats.ready, stats.scheduled, stats.leased, stats.dead)
    states = ("paused" if info.paused else "", "failing" if stats.failures else "")
    line = (field(info.name), *map(str, numbers), ",".join(filter(None, states)))
    return line, {"name": info.name, "paused": info.paused, **json_stats(stats)}


def print_messages(notation: Notation, messages: Iterable[postroom.QueueMessage]) -> None:
    """Print messages, a line or a JSON object each."""
    headers = ("id", "kind", "state", "attempts", "due", "payload", "last error")
    with Listing(*headers, texts=("payload", "last error")) as listing:
        for each in messages:
            if notation.as_json:
                print_json_message(notation, each)
            else:
                listing.add(*message_fields(notation, each))


def message_fields(notation: Notation, message: postroom.QueueMessage) -> tuple[str, ...]:
    """Return the parts of the line of a message."""
    due = message.scheduled.datetime.isoformat()
    return (
        shown_id(message.id), field(message.kind), message.state, str(message.epoch), due,
        notation.value(message.payload), field(message.last_error),
    )  # fmt: skip


def print_json_message(notation: Notation, message: postroom.QueueMessage) -> None:
    """Print a message as JSON."""
    told = notation.record(
        message, "queue", "id", "kind", "key", "payload", "headers", "priority", "group", "state",
        "epoch", "created_at", "first_scheduled", "scheduled", "leased_until", "done_at",
        "last_error",
    )  # fmt: skip
    print_json({**told, "id": json_id(message.id)})


def print_queue(notation: Notation, queue: postroom.Queue) -> None:
    """Print the settings, numbers and schedules of a queue."""
    info, stats, schedules = queue.info(), queue.stats(), queue.schedules()
    if notation.as_json:
        told = [json_schedule(notation, each) for each in schedules]
        print_json({**json_definition(info), "stats": json_stats(stats), "schedules": told})
        return
    table = Table(box=box.SIMPLE, show_header=False)
    rows = {"queue": info.name, "paused": info.paused, **msgspec.structs.asdict(info.settings)}
    held = stats.longest_held
    told_held = None if held is None else f"{field(held.id)} by {held.consumer}, {held.seconds:g} s"
    for name, value in {**rows, **json_stats(stats), "longest_held": told_held}.items():
        table.add_row(name, "" if value is None else str(value))
    for each in schedules:
        table.add_row(f"schedule {each.name}", f"{each.cron} ({each.timezone})")
    Console().print(table)


def json_schedule(notation: Notation, each: postroom.QueueSchedule) -> dict[str, object]:
    """Return a periodic schedule as JSON."""
    return notation.record(
        each, "name", "cron", "timezone", "kind", "payload", "headers", "priority", "group"
    )


def json_definition(info: postroom.QueueInfo) -> dict[str, object]:
    """Return the definition of a queue as JSON."""
    return {
        "name": info.name,
        "paused": info.paused,
        "created_at": info.created_at.datetime.isoformat(),
        "settings": msgspec.structs.asdict(info.settings),
    }


def json_stats(stats: postroom.QueueStats) -> dict[str, object]:
    """Return the numbers of a queue as JSON."""
    oldest = _iso(Timestamp(stats.oldest)) if stats.oldest else None
    held = stats.longest_held
    told: dict[str, object] = {} if held is None else msgspec.structs.asdict(held)
    if held is not None:
        told["since"] = _iso(Timestamp(held.since))
    return {**msgspec.structs.asdict(stats), "oldest": oldest, "longest_held": told or None}


def _iso(timestamp: Timestamp | None) -> str | None:
    return None if timestamp is None else timestamp.datetime.isoformat()


def shown_id(id_: str | bytes) -> str:
    """Return the id of a message as a part of a line."""
    return field(id_ if isinstance(id_, str) else id_.decode("utf-8", "backslashreplace"))


def json_id(id_: str | bytes) -> object:
    """Return the id of a message as JSON."""
    return id_ if isinstance(id_, str) else {"hex": id_.hex()}

"""The commands about periodic schedules of a queue: schedule, unschedule, schedules."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.cli.listings import Listing
from postroom.cli.mail import read_headers
from postroom.cli.options import (
    Group,
    Header,
    Kind,
    Name,
    Priority,
    StoreOptions,
    as_usage_errors,
    on_a_store,
    on_a_store_with_values,
)
from postroom.cli.output import Notation, field, print_json
from postroom.cli.queue_output import json_schedule
from postroom.errors import Error

ScheduleName = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


@on_a_store_with_values
def schedule(
    store: StoreOptions,
    notation: Notation,
    name: Name,
    schedule_name: ScheduleName,
    cron: Annotated[
        str, typer.Argument(metavar="CRON", show_default=False, help="Five fields: '0 3 * * *'.")
    ],
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="- reads standard input.")] = "",
    timezone: Annotated[
        str, typer.Option(metavar="ZONE", help="Read CRON in ZONE, as Europe/Berlin.")
    ] = "UTC",
    kind: Kind = "",
    priority: Priority = 0,
    group: Group = None,
    header: Header = None,
) -> None:
    """Enqueue PAYLOAD into QUEUE at each tick of CRON; replace the schedule NAME if there is one.

    The fields of CRON are minute, hour, day, month and weekday. Each tick is one message, also when
    earlier ones failed.
    """
    with store.open_existing() as db, as_usage_errors():
        db.queue(name).schedule(
            schedule_name, cron=cron, payload=notation.read_payload(payload), timezone=timezone,
            kind=kind, headers=read_headers(header or []), priority=priority, group=group,
        )  # fmt: skip


@on_a_store
def unschedule(store: StoreOptions, name: Name, schedule_name: ScheduleName) -> None:
    """Remove the schedule NAME of QUEUE; messages that it has enqueued stay."""
    with store.open_existing() as db:
        queue = db.queue(name)
        if schedule_name not in {each.name for each in queue.schedules()}:
            raise Error(
                f"the queue {name!r} has no schedule {schedule_name!r}; nothing was changed: "
                "'postroom queue schedules' lists them"
            )
        queue.unschedule(schedule_name)


@on_a_store_with_values
def schedules(store: StoreOptions, notation: Notation, name: Name) -> None:
    """Print the schedules of QUEUE: name, cron, time zone, kind, payload."""
    headers = ("schedule", "cron", "time zone", "kind", "payload")
    with store.open_existing() as db, Listing(*headers, texts=("payload",)) as listing:
        for each in db.queue(name).schedules():
            if notation.as_json:
                print_json(json_schedule(notation, each))
            else:
                listing.add(
                    field(each.name), each.cron, each.timezone, field(each.kind),
                    notation.value(each.payload),
                )  # fmt: skip

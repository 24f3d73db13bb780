"""The commands about queues, their messages and their schedules: ``postroom queue ...``."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

import postroom
from postroom.cli.options import (
    AsJson,
    Delay,
    Group,
    Header,
    Kind,
    Limit,
    LimitIfGiven,
    Name,
    Priority,
    StoreOptions,
    as_usage_errors,
    headers_of,
    on_a_store,
    on_a_store_with_values,
    required_store,
    with_options,
)
from postroom.cli.output import Listing, Notation, confirmed, field, print_json, print_line
from postroom.cli.queue_output import (
    QUEUE_HEADERS,
    json_definition,
    json_id,
    json_schedule,
    message_fields,
    print_json_message,
    print_messages,
    print_queue,
    queue_depth,
    shown_id,
)
from postroom.client.queues.queue import STATES, State
from postroom.errors import Error, TaskFailed
from postroom.kv.clock import Timestamp
from postroom.log_once import shown
from postroom.messaging.queues.definition_requests import QueueSettings

_SETTINGS_TOLD: Final = {
    "ack_wait": ("SECONDS", "Fire a message again that is held for SECONDS."),
    "min_backoff": ("SECONDS", "Wait at least SECONDS after a failed attempt."),
    "max_backoff": ("SECONDS", "Wait at most SECONDS after a failed attempt."),
    "max_attempts": ("N", "Bury a message after N attempts; 0: never."),
    "purge_after": ("SECONDS", "Delete a done message after SECONDS."),
    "archive": ("", "Keep done messages for ever, in the archive."),
    "no_archive": ("", "Delete done messages after --purge-after."),
    "batch_size": ("N", "Hand at most N messages to a consumer at a time."),
    "cache_size": ("N", "Keep at most N messages in memory."),
    "poller_interval": ("SECONDS", "Look for due messages at least every SECONDS."),
    "max_rate": ("RATE", "Fire at most RATE messages a second; 0: any number."),
    "max_concurrency": ("N", "Let at most N messages be held; 0: any number."),
    "order": ("ORDER", "Keep no order (none), or that of each group (group)."),
    "on_duplicate": ("WAY", "Treat an id that is there: ignore, error or replace."),
    "dead_letter_queue": ("NAME", "Move the dead into the queue NAME; empty: nowhere."),
    "group_max_rate": ("RATE", "Fire at most RATE messages of a group a second; 0: any."),
    "group_max_concurrency": ("N", "Let at most N messages of a group be held; 0: any."),
}
"""The value of each option, as help shows it (empty: the option is a flag), and its help."""
_SETTING_TYPES: Final[dict[str, Any]] = {
    **{each.name: each.type for each in msgspec.structs.fields(QueueSettings)},
    "order": Literal["none", "group"],
    "on_duplicate": Literal["ignore", "error", "replace"],
}
_NEW_QUEUE: Final = QueueSettings()
_BY_NAME: Final = inspect.Parameter.KEYWORD_ONLY
_UNBOUNDED: Final = (
    "max_attempts", "max_rate", "max_concurrency", "group_max_rate", "group_max_concurrency",
    "dead_letter_queue",
)  # fmt: skip
"""The settings whose 0, or empty text, stands for no bound."""


def _setting_parameter(name: str, metavar: str, text: str) -> inspect.Parameter:
    """Return the option of a setting; its help tells what a new queue has without it."""
    if metavar:
        default = getattr(_NEW_QUEUE, name)
        told = f"{default:g}" if isinstance(default, float) else default
        shown = "" if told is None else rf"  \[a new queue: {told}]"
        least = 0 if metavar in {"SECONDS", "N", "RATE"} else None
        kind, missing = _SETTING_TYPES[name] | None, None
        option = typer.Option(metavar=metavar, min=least, show_default=False, help=text + shown)
    else:
        kind, missing = bool, False
        option = typer.Option(f"--{name.replace('_', '-')}", help=text)
    told_type = Annotated[kind, option]  # type: ignore[valid-type]  # it is made here
    return inspect.Parameter(name, _BY_NAME, default=missing, annotation=told_type)


def _settings(**options: Any) -> dict[str, Any]:
    """Return the settings that were given; ``None`` stands for no bound."""
    given = {name: each for name, each in options.items() if each is not None}
    archive, no_archive = given.pop("archive"), given.pop("no_archive")
    if archive and no_archive:
        raise typer.BadParameter("give --archive or --no-archive, not both")
    if archive or no_archive:
        given["archive"] = archive
    for name in _UNBOUNDED:
        if name in given and not given[name]:
            given[name] = None
    return given


_settings.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # as typer reads it
    [_setting_parameter(name, *told) for name, told in _SETTINGS_TOLD.items()]
)


def on_a_store_with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command with options for its first arguments, a store and settings."""
    return with_options(command, required_store, _settings)


TAIL_SECONDS: Final = 1.0
ENDS: Final[tuple[State, ...]] = ("done", "archived", "dead")

app = typer.Typer(
    help="Queues: scheduled messages for competing consumers.",
    no_args_is_help=True,
)


@app.command("list")
@on_a_store
def list_queues(store: StoreOptions, as_json: AsJson = False) -> None:
    """Print the queues, and how many messages are in each.

    A line is: name, ready, scheduled, leased, dead, and a note if the queue is paused or failing.
    The line of a damaged queue is its name and the reason.
    """
    with store.open_existing() as db, Listing(*QUEUE_HEADERS) as listing:
        for info in db.queues():
            line, record = queue_depth(db, info)
            if as_json:
                print_json(record)
            else:
                listing.add(*line)


@app.command("create")
@on_a_store_with_settings
def create(
    store: StoreOptions, settings: dict[str, Any], name: Name, as_json: AsJson = False
) -> None:
    """Make QUEUE; succeed, too, if there is one with equal settings."""
    with store.open_or_create() as db:
        db.create_queue(name, **settings)
        if as_json:
            print_json(json_definition(db.queue(name).info()))


@app.command("update")
@on_a_store_with_settings
def update(
    store: StoreOptions, settings: dict[str, Any], name: Name, as_json: AsJson = False
) -> None:
    """Change settings of QUEUE at once; settings that are not given stay."""
    if not settings:
        raise typer.BadParameter("give a setting to change; 'postroom queue show' shows them")
    with store.open_existing() as db:
        db.queue(name).update(**settings)
        if as_json:
            print_json(json_definition(db.queue(name).info()))


@app.command("pause")
@on_a_store
def pause(store: StoreOptions, name: Name) -> None:
    """Stop firing messages of QUEUE, until resume."""
    with store.open_existing() as db:
        db.queue(name).pause()


@app.command("resume")
@on_a_store
def resume(store: StoreOptions, name: Name) -> None:
    """Fire messages of QUEUE again."""
    with store.open_existing() as db:
        db.queue(name).resume()


@app.command("drop")
@on_a_store
def drop(
    store: StoreOptions,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without a question.")] = False,
) -> None:
    """Delete QUEUE with all its messages."""
    with store.open_existing() as db:
        db.queue(name).info()
        if not yes and not confirmed(f"Delete the queue {name!r} with all its messages?"):
            raise Error("nothing was changed: answer y, or give --yes, to delete the queue")
        db.queue(name).drop()


@app.command("show")
@on_a_store_with_values
def show(
    store: StoreOptions,
    notation: Notation,
    name: Name,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="STATE", help=f"Print its messages in STATE: {', '.join(STATES)}, live."
        ),
    ] = None,
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Print the message ID.")
    ] = None,
    limit: Limit = 100,
) -> None:
    """Print the settings and numbers of QUEUE, or its messages.

    A line of a message is: id, kind, state, attempts, due time, payload, last error.
    """
    if state not in {None, "live", *STATES}:
        raise typer.BadParameter(f"{state!r} is none of {', '.join(STATES)}, live")
    with store.open_existing() as db:
        queue = db.queue(name)
        if message_id is not None:
            message = queue.get(message_id)
            if message is None:
                raise Error(f"there is no message {message_id!r} in the queue {name!r}")
            print_messages(notation, [message])
        elif state is not None:
            of_state: Any = None if state == "live" else state
            print_messages(notation, queue.scan(of_state, limit=limit))
        else:
            print_queue(notation, queue)


@app.command("tail")
@on_a_store_with_values
def tail(
    store: StoreOptions,
    notation: Notation,
    name: Name,
    ago: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Begin with messages that ended SECONDS ago.",
            show_default="now; with --path the beginning",
        ),
    ] = None,
    limit: LimitIfGiven = None,
) -> None:
    """Print the messages of QUEUE as they end (done, archived or dead), until Ctrl-C.

    The lines are those of show. A message that is deleted when it is done (--purge-after 0) is not
    printed. With --path the command prints what has ended and exits: no other process works there.
    """
    with store.open_existing() as db:
        queue = db.queue(name)
        queue.info()
        if ago is None:
            ago = 0.0 if store.path is None else float("inf")
        for message in islice(ended_messages(db, queue, ago, follow=store.path is None), limit):
            if notation.as_json:
                print_json_message(notation, message)
            else:
                print_line(*message_fields(notation, message))
            sys.stdout.flush()


def ended_messages(
    db: postroom.Database, queue: postroom.Queue, since: float, *, follow: bool
) -> Iterator[postroom.QueueMessage]:
    """Yield the messages that ended in the last ``since`` seconds, then those that end later."""
    now = int(db.now())
    after = Timestamp(max(now - (round(min(since, now >> 16) * 1000) << 16), 1))
    while True:
        # one snapshot for all states: later ends come with the next one
        with db.snapshot() as snapshot:
            at = snapshot.timestamp
            found = [each for state in ENDS for each in queue.scan(state, after, at=at)]
        for message in sorted(found, key=_ended_at):
            yield message
            after = Timestamp(_ended_at(message) + 1)
        if not follow:
            return
        time.sleep(TAIL_SECONDS)  # noqa: TID251 - a command for people: no clock to be given


def _ended_at(message: postroom.QueueMessage) -> int:
    return message.done_at or 0


@app.command("result")
@on_a_store_with_values
def result(
    store: StoreOptions,
    notation: Notation,
    name: Name,
    message_id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    kind: Kind = "",
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Wait until its message is over.")
    ] = 0,
) -> None:
    """Print what the task of a message of QUEUE has returned, without a line if that is nothing.

    If the task has failed, print its traceback to standard error, and fail.
    """
    with store.open_existing() as db:
        try:
            returned = db.queue(name).result(message_id, kind=kind, wait=wait)
        except TaskFailed as failed:
            for line in failed.traceback.splitlines():
                typer.echo(shown(line), err=True)
            raise
        if notation.as_json:
            print_json({"id": message_id, "result": notation.json_value(returned)})
        elif returned is not None:
            print_line(notation.lone_value(returned))


Ids = Annotated[list[str], typer.Argument(metavar="ID...", show_default=False)]


@app.command("enqueue")
@on_a_store_with_values
def enqueue(
    store: StoreOptions,
    notation: Notation,
    name: Name,
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", show_default=False)],
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Take the id ID, unique in its kind.")
    ] = None,
    kind: Kind = "",
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Store it beside KEY.")] = None,
    priority: Priority = 0,
    delay: Delay = None,
    group: Group = None,
    header: Header = None,
) -> None:
    """Put a message into QUEUE and print its id; fail if one of its kind and id is there."""
    with store.open_existing() as db, as_usage_errors():
        with db.begin() as tx:
            handle = tx.enqueue(
                name, notation.read_payload(payload), id=message_id, kind=kind,
                key=None if key is None else notation.read_key(key), priority=priority,
                deliver_at=delay, group=group, headers=headers_of(header),
            )  # fmt: skip
        if handle.inserted is False and not handle.replaced:
            raise Error(
                f"there is a message {message_id!r} of that kind; nothing was changed: give "
                "another --id, or none"
            )
        if notation.as_json:
            print_json({"queue": name, "id": json_id(handle.id), "kind": kind})
        else:
            print_line(shown_id(handle.id))


@app.command("cancel")
@on_a_store
def cancel(store: StoreOptions, name: Name, ids: Ids, as_json: AsJson = False) -> None:
    """Delete unfinished messages of QUEUE; fail if some of them are not there any more."""
    with store.open_existing() as db:
        cancelled = db.queue(name).cancel(ids)
        _print_result("cancelled", cancelled, ids, "done already, or not there", as_json=as_json)


@app.command("reschedule")
@on_a_store
def reschedule(
    store: StoreOptions, name: Name, ids: Ids, delay: Delay = None, as_json: AsJson = False
) -> None:
    """Fire messages of QUEUE that no consumer holds at another time; without --delay, now."""
    with store.open_existing() as db:
        moved = db.queue(name).reschedule(ids, delay)
        _print_result("rescheduled", moved, ids, "held, done, or not there", as_json=as_json)


@app.command("replay")
@on_a_store
def replay(store: StoreOptions, name: Name, ids: Ids, as_json: AsJson = False) -> None:
    """Fire dead messages of QUEUE again, by their ids, or 'all'."""
    with store.open_existing() as db:
        queue = db.queue(name)
        if ids == ["all"]:
            replayed = queue.replay(list(queue.scan("dead")))
            if as_json:
                print_json({"replayed": replayed, "gone": 0})
            return
        _print_result("replayed", queue.replay(ids), ids, "not dead, or not there", as_json=as_json)


def _print_result(what: str, done: int, ids: list[str], missing: str, *, as_json: bool) -> None:
    gone = max(len(ids) - done, 0)
    if as_json:
        print_json({what: done, "gone": gone})
    if gone:
        raise Error(f"{done} {what}; {gone} {missing}: 'postroom queue show' has their states")


ScheduleName = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


@app.command("schedule")
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
            kind=kind, headers=headers_of(header), priority=priority, group=group,
        )  # fmt: skip


@app.command("unschedule")
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


@app.command("schedules")
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

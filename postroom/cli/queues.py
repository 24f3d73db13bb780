"""The commands about queues: ``postroom queue ...``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

import postroom
from postroom.cli.mail import Limit, read_headers
from postroom.cli.options import AsJson, Store, on_a_store, on_a_store_with_values
from postroom.cli.output import Notation, field, json_headers, print_json, print_line
from postroom.cli.queue_options import on_a_store_with_settings
from postroom.client.queues.queue import STATES, State
from postroom.errors import Error
from postroom.kv.clock import Timestamp

Name = Annotated[str, typer.Argument(metavar="QUEUE", show_default=False)]
Ids = Annotated[list[str], typer.Argument(metavar="ID...", show_default=False)]
TAIL_SECONDS: Final = 1.0
ENDS: Final[tuple[State, ...]] = ("done", "archived", "dead")

app = typer.Typer(
    help="Queues: scheduled messages for competing consumers.",
    no_args_is_help=True,
)


@contextmanager
def _in_words() -> Iterator[None]:
    """An argument that cannot be is a usage error."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None


# --- queues


@app.command("list")
@on_a_store
def list_queues(store: Store, as_json: AsJson = False) -> None:
    """Print the queues, and how many messages are in each.

    A line is: name, ready, scheduled, leased, dead, and whether it is paused, or failing. Of a
    queue that is damaged: its name, and why it cannot be used.
    """
    with store.open_existing() as db:
        for info in db.queues():
            if info.damaged:
                if as_json:
                    print_json({"name": info.name, "damaged": info.damaged})
                else:
                    print_line(field(info.name), "damaged", info.damaged)
                continue
            stats = db.queue(info.name).stats()
            if as_json:
                print_json({"name": info.name, "paused": info.paused, **_json_stats(stats)})
                continue
            numbers = (stats.ready, stats.scheduled, stats.leased, stats.dead)
            states = ("paused" if info.paused else "", "failing" if stats.failures else "")
            print_line(field(info.name), *map(str, numbers), ",".join(filter(None, states)))


@app.command("create")
@on_a_store_with_settings
def create(store: Store, settings: dict[str, Any], name: Name, as_json: AsJson = False) -> None:
    """Make QUEUE. If there is one with the same settings that is fine."""
    with store.open_or_create() as db:
        db.create_queue(name, **settings)
        if as_json:
            print_json(_definition(db.queue(name).info()))


@app.command("update")
@on_a_store_with_settings
def update(store: Store, settings: dict[str, Any], name: Name, as_json: AsJson = False) -> None:
    """Change settings of QUEUE, at once; those that are not given stay."""
    if not settings:
        raise typer.BadParameter("give a setting to change; 'postroom queue show' tells them all")
    with store.open_existing() as db:
        db.queue(name).update(**settings)
        if as_json:
            print_json(_definition(db.queue(name).info()))


@app.command("pause")
@on_a_store
def pause(store: Store, name: Name) -> None:
    """Fire nothing of QUEUE any more, until resume."""
    with store.open_existing() as db:
        db.queue(name).pause()


@app.command("resume")
@on_a_store
def resume(store: Store, name: Name) -> None:
    """Fire messages of QUEUE again."""
    with store.open_existing() as db:
        db.queue(name).resume()


@app.command("drop")
@on_a_store
def drop(
    store: Store,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete QUEUE with all its messages."""
    with store.open_existing() as db:
        db.queue(name).info()
        if not yes and not typer.confirm(f"Delete the queue {name!r} with all its messages?"):
            raise Error("nothing was changed")
        db.queue(name).drop()


@app.command("show")
@on_a_store_with_values
def show(
    store: Store,
    notation: Notation,
    name: Name,
    state: Annotated[
        str | None,
        typer.Option(help=f"Print its messages in this state: {', '.join(STATES)}, live."),
    ] = None,
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Print the message with this id.")
    ] = None,
    limit: Limit = 100,
) -> None:
    """Print the settings and numbers of QUEUE; or messages of it.

    A line of a message is: id, kind, state, attempts so far, when it is or was due, payload, last
    error.
    """
    if state not in {None, "live", *STATES}:
        raise typer.BadParameter(f"{state!r} is none of {', '.join(STATES)}, live")
    with store.open_existing() as db:
        queue = db.queue(name)
        if message_id is not None:
            message = queue.get(message_id)
            if message is None:
                raise Error(f"there is no message {message_id!r} in the queue {name!r}")
            _print_message(notation, message)
        elif state is not None:
            of_state: Any = None if state == "live" else state
            for each in queue.scan(of_state, limit=limit):
                _print_message(notation, each)
        else:
            _print_queue(notation, queue)


@app.command("tail")
@on_a_store_with_values
def tail(
    store: Store,
    notation: Notation,
    name: Name,
    since: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Begin so long ago.")
    ] = 0.0,
    messages_max: Annotated[
        int | None, typer.Option("--max", min=1, help="End after so many.")
    ] = None,
) -> None:
    """Print the messages of QUEUE as they end: done, archived or dead; for ever.

    Lines as those of show. What is deleted as soon as it is done (--purge-after 0) is not seen.
    A folder (--path) has no other user meanwhile: there, only what ended before (--since) comes.
    """
    printed = 0
    with store.open_existing() as db:
        queue = db.queue(name)
        queue.info()
        after = Timestamp(max(int(db.now()) - (round(since * 1000) << 16), 1))
        while True:
            with db.snapshot() as now:  # one for all: what ends meanwhile is told the next time
                at = now.timestamp
                found = [each for state in ENDS for each in queue.scan(state, after, at=at)]
            for message in sorted(found, key=_ended_at):
                _print_message(notation, message)
                after = Timestamp(_ended_at(message) + 1)
                printed += 1
                if printed == messages_max:
                    return
            sys.stdout.flush()
            time.sleep(TAIL_SECONDS)  # noqa: TID251 - a command for people: no clock to be given


def _ended_at(message: postroom.QueueMessage) -> int:
    return message.done_at or 0


# --- messages


@app.command("enqueue")
@on_a_store_with_values
def enqueue(
    store: Store,
    notation: Notation,
    name: Name,
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", show_default=False)],
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="With the kind, unique.")
    ] = None,
    kind: Annotated[str, typer.Option(help="The type of the payload.")] = "",
    key: Annotated[str | None, typer.Option(help="Where it is stored.")] = None,
    priority: Annotated[int, typer.Option(help="From -128 to 127, lower ones first.")] = 0,
    after: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Fire it so much later.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="Its group.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header (repeatable).")
    ] = None,
) -> None:
    """Put a message into QUEUE, and print its id; fail if there is one of its kind and id."""
    with store.open_existing() as db, _in_words():
        with db.begin() as tx:
            handle = tx.enqueue(
                name, notation.read_payload(payload), id=message_id, kind=kind,
                key=None if key is None else notation.read_key(key), priority=priority,
                deliver_at=after, group=group, headers=read_headers(header or []),
            )  # fmt: skip
        if handle.inserted is False and not handle.replaced:
            raise Error(f"there is a message {message_id!r} of that kind; nothing was changed")
        if notation.as_json:
            print_json({"queue": name, "id": _json_id(handle.id), "kind": kind})
        else:
            print_line(_shown_id(handle.id))


@app.command("cancel")
@on_a_store
def cancel(store: Store, name: Name, ids: Ids, as_json: AsJson = False) -> None:
    """Delete messages of QUEUE that are not done; fail if some of them are not there any more."""
    with store.open_existing() as db:
        cancelled = db.queue(name).cancel(ids)
        _told("cancelled", cancelled, ids, "done already, or not there", as_json=as_json)


@app.command("retry")
@on_a_store
def retry(store: Store, name: Name, ids: Ids, as_json: AsJson = False) -> None:
    """Fire dead messages of QUEUE again, by their ids, or 'all'."""
    with store.open_existing() as db:
        queue = db.queue(name)
        if ids == ["all"]:
            replayed = queue.replay(list(queue.scan("dead")))
            if as_json:
                print_json({"retried": replayed, "gone": 0})
            return
        _told("retried", queue.replay(ids), ids, "not dead, or not there", as_json=as_json)


def _told(what: str, done: int, ids: list[str], missing: str, *, as_json: bool) -> None:
    gone = max(len(ids) - done, 0)
    if as_json:
        print_json({what: done, "gone": gone})
    if gone:
        raise Error(f"{done} {what}; {gone} {missing}: 'postroom queue show' has their states")


# --- printing


def _print_message(notation: Notation, message: postroom.QueueMessage) -> None:
    due = message.scheduled.datetime.isoformat()
    if not notation.as_json:
        print_line(
            _shown_id(message.id), field(message.kind), message.state, str(message.epoch), due,
            notation.value(message.payload), field(message.last_error),
        )  # fmt: skip
        return
    print_json(
        {
            "queue": message.queue,
            "id": _json_id(message.id),
            "kind": message.kind,
            "key": notation.json_key(message.key),
            "payload": notation.json_value(message.payload),
            "headers": json_headers(message.headers),
            "priority": message.priority,
            "group": message.group,
            "state": message.state,
            "epoch": message.epoch,
            "created_at": message.created_at.datetime.isoformat(),
            "first_scheduled": message.first_scheduled.datetime.isoformat(),
            "scheduled": due,
            "leased_until": _iso(message.leased_until),
            "done_at": _iso(message.done_at),
            "last_error": message.last_error,
        }
    )


def _print_queue(notation: Notation, queue: postroom.Queue) -> None:
    info, stats, schedules = queue.info(), queue.stats(), queue.schedules()
    if notation.as_json:
        told = [
            {
                "name": each.name, "cron": each.cron, "timezone": each.timezone, "kind": each.kind,
                "payload": notation.json_value(each.payload),
            }
            for each in schedules
        ]  # fmt: skip
        print_json({**_definition(info), "stats": _json_stats(stats), "schedules": told})
        return
    table = Table(box=box.SIMPLE, show_header=False)
    rows = {"queue": info.name, "paused": info.paused, **msgspec.structs.asdict(info.settings)}
    for name, value in {**rows, **_json_stats(stats)}.items():
        table.add_row(name, "" if value is None else str(value))
    for each in schedules:
        table.add_row(f"schedule {each.name}", f"{each.cron} ({each.timezone})")
    Console().print(table)


def _definition(info: postroom.QueueInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "paused": info.paused,
        "created_at": info.created_at.datetime.isoformat(),
        "settings": msgspec.structs.asdict(info.settings),
    }


def _json_stats(stats: postroom.QueueStats) -> dict[str, object]:
    oldest = _iso(Timestamp(stats.oldest)) if stats.oldest else None
    return {**msgspec.structs.asdict(stats), "oldest": oldest}


def _iso(moment: Timestamp | None) -> str | None:
    return None if moment is None else moment.datetime.isoformat()


def _shown_id(id_: str | bytes) -> str:
    return field(id_ if isinstance(id_, str) else id_.decode("utf-8", "backslashreplace"))


def _json_id(id_: str | bytes) -> object:
    return id_ if isinstance(id_, str) else {"hex": id_.hex()}

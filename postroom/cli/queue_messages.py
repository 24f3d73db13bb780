"""The commands about messages of a queue: enqueue, cancel, reschedule, replay."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.cli.mail import read_headers
from postroom.cli.options import (
    AsJson,
    Delay,
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
from postroom.cli.output import Notation, print_json, print_line
from postroom.cli.queue_output import json_id, shown_id
from postroom.errors import Error

Ids = Annotated[list[str], typer.Argument(metavar="ID...", show_default=False)]


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
                deliver_at=delay, group=group, headers=read_headers(header or []),
            )  # fmt: skip
        if handle.inserted is False and not handle.replaced:
            raise Error(f"there is a message {message_id!r} of that kind; nothing was changed")
        if notation.as_json:
            print_json({"queue": name, "id": json_id(handle.id), "kind": kind})
        else:
            print_line(shown_id(handle.id))


@on_a_store
def cancel(store: StoreOptions, name: Name, ids: Ids, as_json: AsJson = False) -> None:
    """Delete unfinished messages of QUEUE; fail if some of them are not there any more."""
    with store.open_existing() as db:
        cancelled = db.queue(name).cancel(ids)
        _print_result("cancelled", cancelled, ids, "done already, or not there", as_json=as_json)


@on_a_store
def reschedule(
    store: StoreOptions, name: Name, ids: Ids, delay: Delay = None, as_json: AsJson = False
) -> None:
    """Fire messages of QUEUE that no consumer holds at another time; without --delay, now."""
    with store.open_existing() as db:
        moved = db.queue(name).reschedule(ids, delay)
        _print_result("rescheduled", moved, ids, "held, done, or not there", as_json=as_json)


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

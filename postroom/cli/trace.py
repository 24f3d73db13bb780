"""The command that prints the time line of a message."""

from __future__ import annotations

from typing import Annotated

import typer

import postroom
from postroom.cli.options import StoreOptions, as_usage_errors, on_a_store_with_values
from postroom.cli.output import Listing, Notation, field, print_json
from postroom.cli.queue_output import json_id, shown_id
from postroom.errors import Error

_HEADERS = ("time", "event", "transaction", "details")


@on_a_store_with_values
def trace(
    store: StoreOptions,
    notation: Notation,
    message_id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Look in the inbox of KEY only.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="Look in the queue NAME only.")
    ] = None,
) -> None:
    """Print the time line of the message ID, as far as the store still knows it.

    ID is that of a message of an inbox or a queue, of something scheduled, or of a dead letter. A
    line is: time, event, transaction, details. With --key a message is found faster, and longer
    after it was consumed.
    """
    if key is not None and queue is not None:
        raise typer.BadParameter("give --key or --queue, not both")
    of_key = None if key is None else notation.read_key(key)
    with store.open_existing() as db, as_usage_errors():
        found = db.trace(message_id, key=of_key, queue=queue)
    for each in found:
        if notation.as_json:
            print_json(_json(notation, each))
        else:
            _print(notation, each)
    if not found:
        raise Error(
            f"the store knows no message {message_id!r}: there is none, or it has ended and was "
            "collected. Ids of messages of inboxes have 40 hexadecimal digits ('postroom peek "
            "--json' prints them)"
        )


def _print(notation: Notation, found: postroom.MessageTrace) -> None:
    where = f" of queue {found.queue}" if found.queue else ""
    of = f" of {notation.key(found.key)}" if found.key else ""
    what = "update" if found.is_update else "message"
    typer.echo(field(f"{what} {shown_id(found.id)}{where}{of}: {found.state}"))
    with Listing(*_HEADERS, texts=("details",)) as listing:
        for each in found.events:
            listing.add(
                each.at.datetime.isoformat() if each.at else "-", each.what,
                each.transaction_id.hex() or "-", field(each.detail),
            )  # fmt: skip
    for unknown in found.unknown:
        typer.echo(f"not known: {field(unknown)}")


def _json(notation: Notation, found: postroom.MessageTrace) -> dict[str, object]:
    events = [
        notation.record(each, "what", "at", "transaction_id", "detail") for each in found.events
    ]
    return {
        "id": json_id(found.id), "state": found.state, "key": notation.json_key(found.key),
        "queue": found.queue or None, "kind": found.kind, "is_update": found.is_update,
        "events": events, "unknown": found.unknown,
    }  # fmt: skip

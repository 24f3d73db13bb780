"""The commands about messages in inboxes: send, peek, reap, bury, inboxes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import postroom
from postroom.cli.listings import Listing
from postroom.cli.options import (
    Delay,
    Header,
    Key,
    Limit,
    Prefix,
    StoreOptions,
    Value,
    on_a_store_with_values,
)
from postroom.cli.output import Notation, json_headers, print_json, print_line
from postroom.errors import Error
from postroom.limits import BURIED_FROM_MAX


@on_a_store_with_values
def send(
    store: StoreOptions,
    notation: Notation,
    key: Key,
    value: Value,
    header: Header = None,
    delay: Delay = None,
) -> None:
    """Send VALUE to the inbox of KEY, in a transaction of its own."""
    key_bytes, payload = notation.read_key(key), notation.read_payload(value)
    headers = read_headers(header or [])
    with store.open_or_create() as db:
        with db.begin() as tx:
            tx.enqueue_message(key_bytes, payload, headers=headers, deliver_at=delay)
        if not delay:
            db.drain()
    if notation.as_json:
        print_json({"key": notation.json_key(key_bytes), "value": notation.json_value(payload)})


@on_a_store_with_values
def peek(store: StoreOptions, notation: Notation, key: Key, limit: Limit = 100) -> None:
    """Print the messages in the inbox of KEY, oldest first, and leave them there."""
    with store.open_existing() as db:
        for message in db.peek(notation.read_key(key), limit):
            _print_message(notation, message)


@on_a_store_with_values
def reap(
    store: StoreOptions,
    notation: Notation,
    key: Key,
    limit: Limit = 100,
    wait: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="Wait at most SECONDS for the first message."),
    ] = None,
) -> None:
    """Take the oldest messages out of the inbox of KEY and print them.

    They are printed before the transaction commits: if printing fails, they stay.
    """
    with store.open_existing() as db, db.begin() as tx:
        for message in tx.reap_queue(notation.read_key(key), limit, wait=wait):
            _print_message(notation, message)
        sys.stdout.flush()


@on_a_store_with_values
def bury(
    store: StoreOptions,
    notation: Notation,
    key: Key,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", show_default=False)],
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Keep TEXT with the dead letter.")
    ] = "",
) -> None:
    """Make dead letters of messages in the inbox of KEY, by their ids (peek --json prints them)."""
    key_bytes = notation.read_key(key)
    with store.open_existing() as db:
        found = {message.id: message for message in db.peek(key_bytes, BURIED_FROM_MAX)}
        missing = [id_ for id_ in ids if id_ not in found]
        if missing:
            raise Error(
                f"there is no message {missing[0]!r} in the inbox; nothing was changed: 'postroom "
                "peek --json' prints the ids"
            )
        with db.begin() as tx:
            tx.bury([found[id_] for id_ in ids], reason)


@on_a_store_with_values
def inboxes(
    store: StoreOptions,
    notation: Notation,
    prefix: Prefix = None,
    limit: Limit = 100,
) -> None:
    """Print which keys have messages, how many, and when the oldest was sent."""
    with store.open_existing() as db:
        span = postroom.prefix(notation.read_key(prefix or ""))
        with Listing("key", "messages", "oldest") as listing:
            for info in db.inboxes(*span, limit=limit):
                _print_inbox(notation, info, listing)


def read_headers(arguments: list[str]) -> dict[str, str] | None:
    """Return the headers that the arguments ``NAME=VALUE`` give."""
    pairs = [argument.partition("=") for argument in arguments]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise typer.BadParameter("a header is written NAME=VALUE")
    return {name: value for name, _, value in pairs} or None


def _print_message(notation: Notation, message: postroom.Message) -> None:
    if not notation.as_json:
        print_line(notation.value(message.value))
        return
    print_json(
        {
            "key": notation.json_key(message.key),
            "value": notation.json_value(message.value),
            "headers": json_headers(message.headers),
            "id": message.id,
            "sent_at": message.sent_at.datetime.isoformat(),
            "delivered_at": message.delivered_at.datetime.isoformat(),
            "attempts": message.attempts,
            "last_error": message.last_error,
        }
    )


def _print_inbox(notation: Notation, info: postroom.InboxInfo, listing: Listing) -> None:
    oldest = info.oldest.datetime.isoformat()
    if notation.as_json:
        key = notation.json_key(info.key)
        told = {"key": key, "messages": info.messages, "oldest": oldest, "held_up": info.held_up}
        print_json(told)
    else:
        listing.add(notation.key(info.key), str(info.messages), oldest)

"""The commands about messages: send, peek, reap, inboxes, dead-letters."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import postroom
from postroom.cli.options import (
    AsHex,
    AsJson,
    Key,
    Store,
    on_a_store,
)
from postroom.cli.output import Notation, print_json, print_line
from postroom.errors import Error

LETTERS_MAX = 1_000_000
"""So many dead letters are looked through for the ids given."""

Limit = Annotated[int, typer.Option("--limit", min=1, help="At most so many.")]


@on_a_store
def send(
    store: Store,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", show_default=False)],
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header (repeatable).")
    ] = None,
    after: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Deliver it so much later.")
    ] = None,
    as_hex: AsHex = False,
    as_json: AsJson = False,
) -> None:
    """Send VALUE to the inbox of KEY, in a transaction of its own."""
    notation = Notation(as_hex)
    key_bytes, value_bytes = notation.read(key), notation.read(value)
    headers = _headers(header or [])
    with store.open_or_create() as db:
        with db.begin() as tx:
            tx.enqueue_message(key_bytes, value_bytes, headers=headers, deliver_at=after)
        if not after:
            db.drain()
    if as_json:
        print_json({"key": notation.write(key_bytes), "value": notation.write(value_bytes)})


@on_a_store
def peek(
    store: Store,
    key: Key,
    limit: Limit = 100,
    as_hex: AsHex = False,
    as_json: AsJson = False,
) -> None:
    """Print the messages in the inbox of KEY, oldest first, and leave them there."""
    notation = Notation(as_hex)
    with store.open_existing() as db:
        for message in db.peek(notation.read(key), limit):
            _print_message(notation, message, as_json)


@on_a_store
def reap(
    store: Store,
    key: Key,
    results_max: Annotated[int, typer.Option("--max", min=1, help="At most so many.")] = 100,
    wait: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Wait for the first one.")
    ] = None,
    as_hex: AsHex = False,
    as_json: AsJson = False,
) -> None:
    """Take the oldest messages out of the inbox of KEY and print them.

    They are printed before the transaction commits: if they cannot be printed, they stay.
    """
    notation = Notation(as_hex)
    with store.open_existing() as db, db.begin() as tx:
        for message in tx.reap_queue(notation.read(key), results_max, wait=wait):
            _print_message(notation, message, as_json)
        sys.stdout.flush()


@on_a_store
def inboxes(
    store: Store,
    prefix: Annotated[str, typer.Option(help="Only keys that begin so.")] = "",
    limit: Limit = 100,
    as_hex: AsHex = False,
    as_json: AsJson = False,
) -> None:
    """Print which keys have messages, how many, and when the oldest was sent."""
    notation = Notation(as_hex)
    with store.open_existing() as db:
        for info in db.inboxes(*postroom.prefix(notation.read(prefix)), limit=limit):
            _print_inbox(notation, info, as_json)


@on_a_store
def dead_letters(
    store: Store,
    limit: Limit = 100,
    replay: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Try it again (repeatable; or 'all').")
    ] = None,
    discard: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Give it up (repeatable; or 'all').")
    ] = None,
    as_hex: AsHex = False,
    as_json: AsJson = False,
) -> None:
    """Print what could not be delivered or executed; or try it again, or give it up."""
    notation = Notation(as_hex)
    with store.open_existing() as db:
        if replay:
            db.replay(_chosen(db, replay))
            db.drain()
        if discard:
            db.discard(_chosen(db, discard))
        if not replay and not discard:
            for letter in db.dead_letters(limit=limit):
                _print_dead_letter(notation, letter, as_json)


def _headers(arguments: list[str]) -> dict[str, str] | None:
    pairs = [argument.partition("=") for argument in arguments]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise typer.BadParameter("a header is written NAME=VALUE")
    return {name: value for name, _, value in pairs} or None


def _print_message(notation: Notation, message: postroom.Message, as_json: bool) -> None:
    if not as_json:
        print_line(notation.write_field(message.value))
        return
    print_json(
        {
            "key": notation.write(message.key),
            "value": notation.write(message.value),
            "headers": message.headers,
            "id": message.id,
            "sent_at": message.sent_at.datetime.isoformat(),
            "delivered_at": message.delivered_at.datetime.isoformat(),
        }
    )


def _print_inbox(notation: Notation, info: postroom.InboxInfo, as_json: bool) -> None:
    oldest = info.oldest.datetime.isoformat()
    if as_json:
        key = notation.write(info.key)
        print_json({"key": key, "messages": info.messages, "oldest": oldest})
    else:
        print_line(notation.write_field(info.key), str(info.messages), oldest)


def _chosen(db: postroom.Database, arguments: list[str]) -> list[str]:
    """The ids of the dead letters that the arguments name; a wrong one is worth an error."""
    present = [letter.id for letter in db.dead_letters(limit=LETTERS_MAX)]
    if "all" in arguments:
        return present
    for argument in arguments:
        if argument not in present:
            raise Error(f"there is no dead letter {argument!r}: 'postroom dead-letters' lists them")
    return arguments


def _print_dead_letter(notation: Notation, letter: postroom.DeadLetter, as_json: bool) -> None:
    what = letter.request if letter.message is None else letter.message
    if not as_json:
        print_line(letter.id, letter.reason, _one_line(what))
        return
    print_json(
        {
            "id": letter.id,
            "reason": letter.reason,
            "transaction_id": letter.transaction_id.hex(),
            "source_key": notation.write(letter.source_key),
            "what": _one_line(what),
        }
    )


def _one_line(what: object) -> str:
    return " ".join(repr(what).split())

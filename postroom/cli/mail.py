"""The commands about messages of keys: in inboxes, waiting for their time, and dead."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

import postroom
from postroom.cli.options import (
    AsJson,
    Delay,
    Header,
    Key,
    Limit,
    Prefix,
    StoreOptions,
    Value,
    headers_of,
    on_a_store,
    on_a_store_with_values,
    with_option_names,
)
from postroom.cli.output import Listing, Notation, field, print_json, print_line
from postroom.errors import Error
from postroom.limits import BURIED_FROM_MAX, LETTERS_MAX


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
    headers = headers_of(header)
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


def _print_message(notation: Notation, message: postroom.Message) -> None:
    if not notation.as_json:
        print_line(notation.value(message.value))
        return
    print_json(notation.record(
        message, "key", "value", "headers", "id", "sent_at", "delivered_at", "attempts",
        "last_error",
    ))  # fmt: skip


def _print_inbox(notation: Notation, info: postroom.InboxInfo, listing: Listing) -> None:
    oldest = info.oldest.datetime.isoformat()
    if notation.as_json:
        key = notation.json_key(info.key)
        told = {"key": key, "messages": info.messages, "oldest": oldest, "held_up": info.held_up}
        print_json(told)
    else:
        listing.add(notation.key(info.key), str(info.messages), oldest)


SCHEDULED_HEADERS: Final = ("id", "due", "key", "what", "attempts", "last error")
MESSAGE_ID_CHARACTERS: Final = 40
DEAD_HEADERS: Final = ("id", "reason", "what", "key", "attempts")


@on_a_store_with_values
def scheduled(
    store: StoreOptions,
    notation: Notation,
    prefix: Prefix = None,
    limit: Limit = 100,
) -> None:
    """Print the messages and updates that wait for their time, in the order of their due times.

    A line is: id, due, key, what. A postponed message also shows its failed attempts and the last
    error. Take some back with cancel.
    """
    with store.open_existing() as db:
        span = postroom.prefix(notation.read_key(prefix or ""))
        with Listing(*SCHEDULED_HEADERS, texts=("what", "last error")) as listing:
            for each in db.scheduled(*span, limit=limit):
                _print_scheduled(notation, each, listing)


@on_a_store
def cancel(
    store: StoreOptions,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Cancel scheduled messages and updates by their ids; fail if some do not wait any more."""
    with store.open_existing() as db:
        try:
            cancelled = db.cancel(ids)
        except ValueError as error:
            raise typer.BadParameter(with_option_names(str(error)), param_hint="ID") from None
    if as_json:
        print_json({"cancelled": cancelled, "gone": len(ids) - cancelled})
    if cancelled < len(ids):
        raise Error(
            f"{cancelled} cancelled; {len(ids) - cancelled} not found: they have taken place, or "
            "were cancelled before"
        )


@on_a_store_with_values
def dead_letters(
    store: StoreOptions,
    notation: Notation,
    limit: Limit = 100,
    replay: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Send dead letter ID again; give it once for each, or 'all'."
        ),
    ] = None,
    discard: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Delete dead letter ID; give it once for each, or 'all'."),
    ] = None,
) -> None:
    """Print dead letters: messages and updates that failed for good; replay or discard them.

    A line is: id, reason, what. A message that was tried also shows the key of its inbox and its
    failed attempts.
    """
    if replay and discard:
        raise typer.BadParameter("give --replay or --discard, not both")
    with store.open_existing() as db:
        if replay:
            db.replay(_dead_letter_ids(db, replay))
            db.drain()
        if discard:
            db.discard(_dead_letter_ids(db, discard))
        if not replay and not discard:
            with Listing(*DEAD_HEADERS, texts=("reason", "what")) as listing:
                for letter in db.dead_letters(limit=limit):
                    _print_dead_letter(notation, letter, listing)


def _dead_letter_ids(db: postroom.Database, arguments: list[str]) -> list[str]:
    """Return the ids of the named dead letters; raise an error if one of them is unknown.

    A letter can also be named by the id of its message, which a worker logs.
    """
    present = {letter.id: letter.id for letter in db.dead_letters(limit=LETTERS_MAX)}
    if "all" in arguments:
        return list(present)
    present |= {id_[-MESSAGE_ID_CHARACTERS:]: id_ for id_ in present}
    for argument in arguments:
        if argument not in present:
            raise Error(
                f"there is no dead letter {argument!r}; nothing was changed: 'postroom "
                "dead-letters' lists them"
            )
    return [present[argument] for argument in arguments]


def _print_scheduled(notation: Notation, each: postroom.Scheduled, listing: Listing) -> None:
    due = each.due.datetime.isoformat()
    if not notation.as_json:
        what = notation.value(each.message) if each.request is None else _one_line(each.request)
        tried = [str(each.attempts), field(each.last_error)] if each.attempts else []
        listing.add(each.id, due, notation.key(each.key), what, *tried)
        return
    told = notation.record(
        each, "id", "due", "key", "message", "request", "headers", "transaction_id", "source_key",
        "attempts", "last_error",
    )  # fmt: skip
    print_json({**told, "request": _json_request(notation, each.request)})


def _print_dead_letter(notation: Notation, letter: postroom.DeadLetter, listing: Listing) -> None:
    what = letter.request if letter.message is None else letter.message
    if not notation.as_json:
        tried = [notation.key(letter.key), str(letter.attempts)] if letter.attempts else []
        listing.add(letter.id, field(letter.reason), _one_line(what), *tried)
        return
    print_json({
        **notation.record(letter, "id", "reason", "transaction_id", "source_key"),
        "what": _one_line(what),
        **notation.record(letter, "message", "request", "key", "headers", "attempts"),
        "request": _json_request(notation, letter.request),
        **({} if letter.request is None else {"key": None}),
    })  # fmt: skip


def _json_request(notation: Notation, request: Any) -> dict[str, object] | None:
    match request:
        case postroom.Put():
            told: dict[str, object] = {"put": notation.json_key(request.key)}
            return {**told, "value": notation.json_value(request.value)}
        case postroom.Increment():
            return {"increment": notation.json_key(request.key), "by": request.by}
        case postroom.Delete():
            return {"delete": notation.json_key(request.key)}
        case postroom.DeleteRange():
            end = None if request.end is None else notation.json_key(request.end)
            return {"delete_range": notation.json_key(request.start), "end": end}
        case postroom.Accounting():
            return {"accounting": notation.json_key(request.key), "deltas": request.deltas}
    return None


def _one_line(what: object) -> str:
    return " ".join(repr(what).split())

"""The commands about values: get, put, delete, increment, scan, watch, accounting, search."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Annotated, Final

import typer

import postroom
from postroom.cli.options import (
    Key,
    Limit,
    LimitIfGiven,
    Prefix,
    StoreOptions,
    Value,
    on_a_store_with_values,
)
from postroom.cli.output import Notation, field, print_json, print_line
from postroom.counted import counted
from postroom.errors import Error, WrongType, shorten
from postroom.layers.search.matching import parse
from postroom.limits import KEY_BYTES_MAX

End = Annotated[
    str | None,
    typer.Argument(metavar="END", help="The key before which to stop.", show_default=False),
]


IDLE_SECONDS: Final = 0.5
"""The seconds without a change after which ``watch --path`` ends."""


@on_a_store_with_values
def get(store: StoreOptions, notation: Notation, key: Key) -> None:
    """Print the value of KEY; fail if there is none."""
    key_bytes = notation.read_key(key)
    with store.open_existing() as db:
        value = db.get(key_bytes)
    if value is None:
        raise Error(f"there is no key {shorten(key_bytes)} in {store}")
    if notation.integers and isinstance(value, bytes) and len(value) != 8:
        raise WrongType(
            f"{shorten(key_bytes)} contains {counted(len(value), 'byte')}, no number: "
            "get it without --int"
        )
    if notation.as_json:
        print_json({"key": notation.json_key(key_bytes), "value": notation.json_value(value)})
    else:
        print_line(notation.lone_value(value))


@on_a_store_with_values
def put(
    store: StoreOptions,
    notation: Notation,
    key: Key,
    value: Value,
) -> None:
    """Set KEY to VALUE, or with --int to a counter that stands at VALUE.

    Write - for VALUE to read it from standard input, and -- before a negative number.
    """
    key_bytes, stored = notation.read_key(key), notation.read_value(value)
    with store.open_or_create() as db:
        if isinstance(stored, int):
            db.run(_set_counter, key_bytes, stored)
        else:
            db.put(key_bytes, stored)
    if notation.as_json:
        print_json({"key": notation.json_key(key_bytes), "value": notation.json_value(stored)})


def _set_counter(tx: postroom.Transaction, key: bytes, number: int) -> None:
    tx.delete(key)
    tx.increment(key, number)


@on_a_store_with_values
def delete(store: StoreOptions, notation: Notation, key: Key) -> None:
    """Delete KEY; its inbox stays. Deleting a missing key is no failure."""
    key_bytes = notation.read_key(key)
    with store.open_existing() as db:
        db.delete(key_bytes)
    if notation.as_json:
        print_json({"key": notation.json_key(key_bytes), "deleted": True})


@on_a_store_with_values
def increment(
    store: StoreOptions,
    notation: Notation,
    key: Key,
    by: Annotated[int, typer.Argument(metavar="BY", help="May be negative.")] = 1,
) -> None:
    """Add BY to the counter KEY (0 if it is not there), and print the sum."""
    key_bytes = notation.read_key(key)
    with store.open_or_create() as db:
        number = db.increment(key_bytes, by)
    if notation.as_json:
        print_json({"key": notation.json_key(key_bytes), "value": notation.json_value(number)})
    else:
        print_line(notation.lone_value(number))


@on_a_store_with_values
def scan(
    store: StoreOptions,
    notation: Notation,
    start: Annotated[str, typer.Argument(metavar="START", help="The first key.")] = "",
    end: End = None,
    prefix: Prefix = None,
    limit: LimitIfGiven = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Print the last key first.")] = False,
) -> None:
    """Print the keys from START to END (END excluded) and their values, in the order of keys."""
    first, last = _span(notation, start, end, prefix)
    with store.open_existing() as db:
        for key, value in db.scan(first, last, limit=limit, reverse=reverse):
            if notation.as_json:
                print_json({"key": notation.json_key(key), "value": notation.json_value(value)})
            else:
                print_line(notation.key(key), notation.value(value))


@on_a_store_with_values
def watch(
    store: StoreOptions,
    notation: Notation,
    start: Annotated[
        str, typer.Argument(metavar="START", help="The key; with END, the first key.")
    ] = "",
    end: End = None,
    prefix: Prefix = None,
    after: Annotated[
        int | None,
        typer.Option(
            metavar="TIMESTAMP", min=1, help="Print changes after TIMESTAMP.", show_default="now"
        ),
    ] = None,
    limit: LimitIfGiven = None,
) -> None:
    """Print the changes of a key, or of many, when they are committed, until Ctrl-C.

    A line is: timestamp, put or delete, key, value. With --path the command prints the changes
    --after TIMESTAMP and exits: no other process writes there.
    """
    if not start and prefix is None:
        raise typer.BadParameter("give a key, START and END, or --prefix")
    first = notation.read_key(start)
    last = None if end is None else notation.read_key(end)
    if prefix is not None:
        first, last = _span(notation, start, end, prefix)
        last = last or b"\xff" * KEY_BYTES_MAX
    timeout = None if store.path is None else IDLE_SECONDS
    with store.open_existing() as db:
        for change in islice(db.watch(first, last, after=after, timeout=timeout), limit):
            _print_change(notation, change)
            sys.stdout.flush()


def _print_change(notation: Notation, change: postroom.Change) -> None:
    what = "delete" if change.value is None else "put"
    if notation.as_json:
        print_json(
            {
                "timestamp": int(change.timestamp),
                "time": change.timestamp.datetime.isoformat(),
                "change": what,
                "key": notation.json_key(change.key),
                "value": notation.json_value(change.value),
            }
        )
        return
    value = () if change.value is None else (notation.value(change.value),)
    print_line(str(int(change.timestamp)), what, notation.key(change.key), *value)


@on_a_store_with_values
def accounting(
    store: StoreOptions,
    notation: Notation,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", show_default=False)],
) -> None:
    """Print the sums of the metrics that were accounted under PREFIX."""
    prefix_bytes = notation.read_key(prefix)
    with store.open_existing() as db:
        sums = db.accounting(prefix_bytes)
    if notation.as_json:
        print_json({"prefix": notation.json_key(prefix_bytes), "metrics": sums})
        return
    for metric, total in sorted(sums.items()):
        print_line(field(metric), str(total))


def _span(
    notation: Notation, start: str, end: str | None, prefix: str | None
) -> tuple[bytes, bytes | None]:
    if prefix is None:
        return notation.read_key(start), None if end is None else notation.read_key(end)
    if start or end is not None:
        raise typer.BadParameter("give START and END, or --prefix, not both")
    return postroom.prefix(notation.read_key(prefix))


@on_a_store_with_values
def search(
    store: StoreOptions,
    notation: Notation,
    words: Annotated[list[str], typer.Argument(metavar="WORDS", show_default=False)],
    index: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Search the index NAME, if there are several."),
    ] = None,
    limit: Limit = 10,
    consistent: Annotated[
        bool, typer.Option("--consistent", help="Wait until the index has caught up.")
    ] = False,
) -> None:
    """Print the documents that have all WORDS, the best first: their scores and keys.

    wine cell* '"red wine"': a word, words that begin so, and words in a row.
    """
    try:
        parse(text := " ".join(words))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="WORDS") from None
    with store.open_existing() as db:
        name = index if index is not None else _only_index_name(db)
        hits = db.search_index(name).search(text, limit=limit, consistent=consistent)
    for hit in hits:
        if notation.as_json:
            print_json({"key": notation.json_key(hit.key), "score": hit.score})
        else:
            print_line(f"{hit.score:.3f}", notation.key(hit.key))


def _only_index_name(db: postroom.Database) -> str:
    """Return the name of the only index of the store."""
    names = [each.name for each in db.search_indexes()]
    if len(names) == 1:
        return names[0]
    if not names:
        raise Error("there is no search index: 'postroom pipeline run index' makes one")
    raise Error(f"there are several search indexes: give --index {' or '.join(names)}")

"""The commands that read and write values: get, put, delete, scan."""

from __future__ import annotations

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
from postroom.errors import Error, shorten


@on_a_store
def get(store: Store, key: Key, as_hex: AsHex = False, as_json: AsJson = False) -> None:
    """Print the value of KEY; fail if there is none."""
    notation = Notation(as_hex)
    with store.open_existing() as db:
        value = db.get(notation.read(key))
    if value is None:
        raise Error(f"there is no key {shorten(notation.read(key))} in {store}")
    if as_json:
        print_json({"key": notation.write(notation.read(key)), "value": notation.write(value)})
    else:
        print_line(notation.write(value))


@on_a_store
def put(
    store: Store,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", show_default=False)],
    as_hex: AsHex = False,
    as_json: AsJson = False,
) -> None:
    """Set KEY to VALUE."""
    notation = Notation(as_hex)
    key_bytes, value_bytes = notation.read(key), notation.read(value)
    with store.open_or_create() as db:
        db.put(key_bytes, value_bytes)
    if as_json:
        print_json({"key": notation.write(key_bytes), "value": notation.write(value_bytes)})


@on_a_store
def delete(store: Store, key: Key, as_hex: AsHex = False, as_json: AsJson = False) -> None:
    """Delete KEY; its inbox stays. Deleting what is not there is no failure."""
    notation = Notation(as_hex)
    with store.open_existing() as db:
        db.delete(notation.read(key))
    if as_json:
        print_json({"key": notation.write(notation.read(key)), "deleted": True})


@on_a_store
def scan(
    store: Store,
    start: Annotated[str, typer.Argument(metavar="[START]", help="The first key.")] = "",
    end: Annotated[
        str | None,
        typer.Argument(metavar="[END]", help="The key before which to stop.", show_default=False),
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="All keys that begin so, instead of START and END.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="The last key first.")] = False,
    as_hex: AsHex = False,
    as_json: AsJson = False,
) -> None:
    """Print the keys from START to END (without it) and their values, in the order of keys."""
    notation = Notation(as_hex)
    first, last = _span(notation, start, end, prefix)
    with store.open_existing() as db:
        for key, value in db.scan(first, last, limit=limit, reverse=reverse):
            if as_json:
                print_json({"key": notation.write(key), "value": notation.write(value)})
            else:
                print_line(notation.write_field(key), notation.write_field(value))


def _span(
    notation: Notation, start: str, end: str | None, prefix: str | None
) -> tuple[bytes, bytes | None]:
    if prefix is None:
        return notation.read(start), None if end is None else notation.read(end)
    if start or end is not None:
        raise typer.BadParameter("give START and END, or --prefix, not both")
    return postroom.prefix(notation.read(prefix))

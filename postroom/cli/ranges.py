"""The commands about ranges: ``postroom range ...``."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import typer

import postroom
from postroom.cli.options import StoreOptions, on_a_store_with_values
from postroom.cli.output import Listing, Notation, as_split_bytes, print_json, print_line
from postroom.errors import Invalid

RANGE_HEADERS: Final = (
    "id",
    "start",
    "end",
    "generation",
    "bytes",
    "load",
    "leader",
    "copies",
    "note",
)

app = typer.Typer(
    help="Ranges: the spans of keys into which a store is cut.",
    no_args_is_help=True,
)


@app.command("list")
@on_a_store_with_values
def list_ranges(store: StoreOptions, notation: Notation) -> None:
    """Print the ranges, in the order of their keys.

    A line is: id, start, end, generation, bytes on the device, load, leader, copies, and a note
    while a range is splitting. An empty end stands for no bound. The load is the part of a
    processor that its requests take, empty if split-load is 0.
    """
    with store.open_existing() as db, _listing() as listing:
        for each in db.ranges():
            _print_range(notation, each, listing)


@app.command("show")
@on_a_store_with_values
def show_range(
    store: StoreOptions,
    notation: Notation,
    range_id: Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False)],
) -> None:
    """Print the range ID.

    'postroom range list' shows the IDs.
    """
    with store.open_existing() as db, _listing() as listing:
        found = [each for each in db.ranges() if each.id == range_id]
        if not found:
            raise Invalid(f"there is no range {range_id}; 'postroom range list' shows all ranges")
        _print_range(notation, found[0], listing)


@app.command("configure")
@on_a_store_with_values
def configure_ranges(
    store: StoreOptions,
    notation: Notation,
    split_bytes: Annotated[
        str | None,
        typer.Option("--split-bytes", metavar="SIZE", help="Split larger ranges; 0: never."),
    ] = None,
) -> None:
    """Print the settings of all ranges, or change them.

    A range that holds more than --split-bytes is split in the middle.
    """
    wanted = None if split_bytes is None else as_split_bytes(split_bytes)
    with store.open_existing() as db:
        found = db.configure_ranges(split_bytes=wanted)
    if notation.as_json:
        print_json({"split_bytes": found})
    else:
        print_line(f"split bytes: {found:,}" if found else "split bytes: 0 (never)")


@app.command("split")
@on_a_store_with_values
def split_range(
    store: StoreOptions,
    notation: Notation,
    key: Annotated[str, typer.Argument(metavar="KEY", show_default=False)],
) -> None:
    """Split the range of KEY, and print the range that begins there.

    No values are copied, and the store serves meanwhile. If the range has a million messages of
    queues that are not done, this may take a minute.
    """
    key_bytes = notation.read_key(key)
    with store.open_existing() as db, _listing() as listing:
        _print_range(notation, db.split(key_bytes), listing)


@app.command("move-lease")
@on_a_store_with_values
def move_lease(
    store: StoreOptions,
    notation: Notation,
    range_id: Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False)],
    node_id: Annotated[int, typer.Argument(metavar="NODE", min=1, show_default=False)],
) -> None:
    """Have NODE lead the range ID, and print the range.

    'postroom range list' shows the IDs, and which nodes have copies. The lease stays there for a
    minute at least, while NODE can lead.
    """
    with store.open_existing() as db, _listing() as listing:
        _print_range(notation, db.move_lease(range_id, node_id), listing)


def _listing() -> Listing:
    return Listing(*RANGE_HEADERS, texts=("start", "end"))


def _print_range(notation: Notation, info: postroom.RangeInfo, listing: Listing) -> None:
    if notation.as_json:
        end = None if info.end is None else notation.json_key(info.end)
        print_json(
            {**msgspec.structs.asdict(info), "start": notation.json_key(info.start), "end": end}
        )
        return
    listing.add(
        str(info.id),
        notation.key(info.start),
        "" if info.end is None else notation.key(info.end),
        str(info.generation),
        str(info.size_bytes),
        "" if info.load is None else str(info.load),
        str(info.leader),
        ",".join(map(str, info.copies)),
        "splitting" if info.splitting else "",
    )

"""Positions of readers: how ``status`` shows them, and the command that forgets one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

import postroom
from postroom.cli.options import AsJson, StoreOptions, on_a_store
from postroom.cli.output import field, print_json, print_line
from postroom.counted import counted
from postroom.errors import Error
from postroom.limits import POSITIONS_SHOWN_MAX


@on_a_store
def forget_position(
    store: StoreOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Forget the position of the reader NAME, which does not come back: it protects nothing more.

    'postroom status' shows the positions. Fail if no position has this name.
    """
    with store.open_existing() as db:
        found = db.forget_position(name)
    if not found:
        raise Error(
            f"there is no position {name!r}; nothing was changed: 'postroom status' shows them"
        )
    if as_json:
        print_json({"forgotten": name})
    else:
        print_line(f"the position {name!r} is forgotten")


def print_positions(positions: Iterable[postroom.PositionInfo]) -> None:
    """Print a line for each position, those that are furthest behind first."""
    furthest = sorted(positions, key=lambda each: each.position)
    for each in furthest[:POSITIONS_SHOWN_MAX]:
        until = each.protected_until.datetime.isoformat(timespec="seconds")
        print_line(
            f"position {field(each.name)}: {each.behind_seconds:,.1f} s behind, protected until "
            f"{until}"
        )
    if len(furthest) > POSITIONS_SHOWN_MAX:
        hidden = counted(len(furthest) - POSITIONS_SHOWN_MAX, "more position")
        print_line(f"{hidden}: --json shows them")


def positions_as_json(positions: Iterable[postroom.PositionInfo]) -> list[dict[str, object]]:
    """Return positions as JSON."""
    return [
        {
            "name": each.name,
            "position": int(each.position),
            "behind_seconds": each.behind_seconds,
            "protected_until": each.protected_until.datetime.isoformat(),
        }
        for each in positions
    ]

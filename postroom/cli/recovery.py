"""The command ``postroom recover``: a cluster that has lost its majority goes on with one node."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.backup.manifest import time_of
from postroom.cli.options import AsJson, Folder
from postroom.cli.output import confirmed, print_json, print_line
from postroom.counted import counted
from postroom.errors import Error
from postroom.kv.clock import LOGICAL_BITS, SystemClock
from postroom.server import recovery

_Force = Annotated[
    bool, typer.Option("--force", help="Make the folder a cluster of one, and give up the others.")
]
_Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before that.")]


def recover(
    folder: Folder, force: _Force = False, yes: _Yes = False, as_json: AsJson = False
) -> None:
    """Tell what the node in FOLDER has, when a cluster has lost its majority for good.

    With --force it becomes a cluster of one, under a new store id. The other nodes cannot come
    back: empty their folders and let them join. Try all others first: entries that this node
    lacks are lost. Stop the node before.
    """
    found = recovery.survey(folder)
    if as_json:
        print_json(_told(found))
    else:
        _print(found)
    if not force:
        return
    if not yes and not confirmed("Go on with this node alone?"):
        raise Error("nothing was changed: answer y, or give --yes, to go on with this node alone")
    store = recovery.recover(folder)
    if as_json:
        print_json({"recovered": store.hex()})
    else:
        print_line(
            f"node {found.node.node_id} is a cluster of one, store {store.hex()}: start it with "
            "'postroom serve', and let others join with empty folders"
        )


def _print(found: recovery.NodeSurvey) -> None:
    print_line(f"node {found.node.node_id} at {found.node.address}, store {found.store_id.hex()}")
    if found.interrupted:
        print_line("a recovery was interrupted: --force goes on with it")
    now = SystemClock().wall_milliseconds()
    for each in found.ranges:
        told = (
            f"range {each.range_id}: last entry {each.last_index} of term {each.last_term}, "
            f"{counted(each.unapplied, 'entry', 'entries')} not applied yet"
        )
        if each.last_commit:
            ago = (now - (each.last_commit >> LOGICAL_BITS)) / 1000
            told += f"; last commit {time_of(each.last_commit)}, {max(ago, 0):,.0f} s ago"
        print_line(told)
    others = ", ".join(f"node {each.node_id} at {each.address}" for each in found.others)
    print_line(f"to be given up: {others}")
    print_line(
        "may be missing: every later entry, also if it was acknowledged. Compare with the other "
        "folders, and take the one with the highest term, then the last entry"
    )
    print_line("may be there in part: transactions over several ranges, if there are several")


def _told(found: recovery.NodeSurvey) -> dict[str, object]:
    return {
        "node": found.node.node_id,
        "address": found.node.address,
        "store": found.store_id.hex(),
        "interrupted": found.interrupted,
        "others": [{"node": each.node_id, "address": each.address} for each in found.others],
        "ranges": [
            {
                "id": each.range_id,
                "last_index": each.last_index,
                "last_term": each.last_term,
                "applied_index": each.applied_index,
                "last_commit": int(each.last_commit),
                "voters": list(each.voters),
            }
            for each in found.ranges
        ],
    }

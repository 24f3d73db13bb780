"""The commands about rights: ``postroom access ...`` and ``audit-log``."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from postroom.cli.options import StoreOptions, on_a_store_with_values
from postroom.cli.output import Listing, Notation, field, print_json, print_line
from postroom.kv.clock import Timestamp
from postroom.ranges.rights import verb_names

GRANT_HEADERS: Final = ("name", "verbs", "keys", "queue")
AUDIT_HEADERS: Final = ("when", "who", "action", "times", "what")

app = typer.Typer(
    help="Rights of clients: verbs on keys with a prefix, and on queues.",
    no_args_is_help=True,
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        show_default=False,
        help="The name of a token, or the common name of a certificate.",
    ),
]
Queue = Annotated[
    str | None,
    typer.Option("--queue", metavar="NAME", help="A queue in place of keys; *: every queue."),
]


@app.command("grant")
@on_a_store_with_values
def grant(
    store: StoreOptions,
    notation: Notation,
    name: Name,
    verbs: Annotated[
        str,
        typer.Argument(
            metavar="VERBS",
            show_default=False,
            help="read, write, send, reap, enqueue, work, admin, separated by commas.",
        ),
    ],
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="The prefix of keys; empty: every key.")
    ] = "",
    queue: Queue = None,
) -> None:
    """Give NAME verbs on the keys with PREFIX, or on a queue.

    Prints all verbs that NAME has there now. A grant adds to the role of NAME.
    """
    key = notation.read_key(prefix)
    with store.open_existing() as db:
        granted = verb_names(db.access.grant(name, verbs, key, queue=queue))
    if notation.as_json:
        print_json(_json(notation, name, granted, key, queue or ""))
    else:
        print_line(",".join(granted))


@app.command("revoke")
@on_a_store_with_values
def revoke(
    store: StoreOptions,
    notation: Notation,
    name: Name,
    verbs: Annotated[
        str | None,
        typer.Argument(metavar="VERBS", show_default="all", help="As for grant."),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Argument(
            metavar="PREFIX", show_default="all", help="The prefix of one grant; '': every key."
        ),
    ] = None,
    queue: Queue = None,
) -> None:
    """Take verbs from NAME, or all of its grants, and print how many were changed.

    Its open connections are refused within a second.
    """
    key = None if prefix is None else notation.read_key(prefix)
    with store.open_existing() as db:
        changed = db.access.revoke(name, verbs, key, queue=queue)
    if notation.as_json:
        print_json({"changed": changed})
    else:
        print_line(str(changed))


@app.command("list")
@on_a_store_with_values
def list_grants(
    store: StoreOptions,
    notation: Notation,
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only grants of keys with PREFIX.")
    ] = "",
) -> None:
    """Print the grants, in the order of their names.

    A line is: name, verbs, the prefix of keys, queue. Without a queue, an empty prefix stands for
    every key.
    """
    with store.open_existing() as db, Listing(*GRANT_HEADERS) as listing:
        for each in db.access.grants(notation.read_key(prefix)):
            verbs = verb_names(each.granted)
            if notation.as_json:
                print_json(_json(notation, each.name, verbs, each.prefix, each.queue))
            else:
                shown = notation.key(each.prefix)
                listing.add(field(each.name), ",".join(verbs), shown, field(each.queue))


def _json(
    notation: Notation, name: str, verbs: list[str], prefix: bytes, queue: str
) -> dict[str, Any]:
    """Return a grant for JSON."""
    target = {"queue": queue} if queue else {"prefix": notation.json_key(prefix)}
    return {"name": name, "verbs": verbs, **target}


@on_a_store_with_values
def audit_log(
    store: StoreOptions,
    notation: Notation,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Print N entries at most.")
    ] = 100,
) -> None:
    """Print who changed rights, acted on the pages, or was refused; the newest at the end.

    A line is: when, who, action, how often, what. Like refusals are counted together, for some
    seconds.
    """
    with store.open_existing() as db, Listing(*AUDIT_HEADERS, texts=("what",)) as listing:
        for each in db.access.audit_log(limit=limit):
            at = Timestamp(each.at).datetime.isoformat()
            if notation.as_json:
                print_json({
                    "at": at, "by": each.by, "action": each.action, "times": each.times,
                    "what": each.what,
                })  # fmt: skip
            else:
                listing.add(at, field(each.by), each.action, str(each.times), field(each.what))

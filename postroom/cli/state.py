"""The commands about the store and its nodes: status, remove-node, rebind-node, forget-position."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - here instances are made, to be passed in
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import postroom
from postroom.cli import health
from postroom.cli.options import AsJson, StoreOptions, on_a_store, with_option_names
from postroom.cli.output import field, print_json, print_line
from postroom.cli.queue_output import QueuesSummary, summarize_queues
from postroom.client.remote.nodes import SURVEY_SECONDS, NodeReport, Survey, survey
from postroom.client.remote.nodes import rebind_node as rebind
from postroom.client.remote.nodes import remove_node as remove
from postroom.counted import counted
from postroom.errors import Error
from postroom.limits import POSITIONS_SHOWN_MAX
from postroom.messaging.requests import Counters
from postroom.ranges.nodes import FINGERPRINT_BYTES, NodeStatus, RebindNode
from postroom.server.cluster.security import fingerprint_of_file

MEGABYTE = 1_000_000
GIGABYTE = 1_000_000_000
VOTING = frozenset({"leader", "follower"})


STATUS_SECONDS = 1.2
"""The time for the status of a cluster: it must be there in two seconds, with a node that hangs."""
SURVEY_SHARE = 0.75


@on_a_store
def status(
    store: StoreOptions,
    check: Annotated[
        bool,
        typer.Option("--check", help="Print only what is wrong, and exit with its code."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the state of the store, its messages, queues and readers, and of a cluster's nodes.

    Exits with 1 if no node leads. A node has about a second to answer, or as --timeout says.

    --check asks the nodes of --connect only. Exits with 0 if nothing is wrong, 1 if no node answers
    or the check failed. Exits with 3 if no node leads, 4 if a disk is damaged, 5 if a node does not
    answer. Exits with 6 if writes are refused (a full disk), 7 if a node is no member yet. The
    least code counts.
    """
    if check:
        health.report(_problems(store), as_json=as_json)
        return
    if store.path is None:
        began, seconds = time.monotonic(), store.patience or STATUS_SECONDS
        now = _survey(store, seconds * SURVEY_SHARE)
        left = max(began + seconds - time.monotonic(), seconds * (1 - SURVEY_SHARE))
        led = _LeaderView() if now.leader is None else _ask_leader(store.within(left))
        _print_survey(now, led, as_json)
        if now.leader is None:
            raise Error("no node leads: nothing can be read or written until a majority is there")
        return
    with store.open_existing() as db:
        now_here, queues = db.status(), summarize_queues(db)
    facts = _facts(now_here)
    if as_json:
        print_json({**facts, "queues": queues.as_json()})
    else:
        # These parts exist in a cluster, not in a folder.
        elsewhere = {"leader", "nodes", "positions"}
        here = {name: fact for name, fact in facts.items() if name not in elsewhere}
        Console().print(_table(str(store.path), here))
        queues.print()
        print_positions(now_here.positions)


def _problems(store: StoreOptions) -> list[health.Problem]:
    if store.path is None:
        seconds = store.patience or STATUS_SECONDS
        return health.of_nodes(_survey(store, seconds, follow=False))
    with store.open_existing() as db:
        return health.of_folder(db.status())


@on_a_store
def remove_node(
    store: StoreOptions,
    node_id: Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False)],
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Remove it even if the nodes that answer are no majority then."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take node ID out of the cluster for good, and wait until it is out (--timeout SECONDS).

    The node may run or be lost: it never comes back under this ID. 'postroom status' shows the IDs.
    """
    if store.path is not None:
        raise typer.BadParameter("a store in a folder has no nodes: give --connect HOST:PORT,...")
    if not force:
        _check_majority(_survey(store, min(store.timeout, SURVEY_SECONDS)), node_id)
    randomness = random.Random(random.SystemRandom().randbytes(32))
    left = asyncio.run(
        remove(store.addresses, node_id, store.tls, store.token, randomness, store.timeout)
    )
    nodes = [each.node_id for each in left.nodes if not each.retired]
    if as_json:
        print_json({"removed": node_id, "nodes": nodes})
    else:
        print_line(f"node {node_id} is removed; the nodes are {', '.join(map(str, nodes))}")


@on_a_store
def rebind_node(
    store: StoreOptions,
    node_id: Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False)],
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", metavar="FILE", help="The node's new certificate, PEM."),
    ] = None,
    fingerprint: Annotated[
        str | None,
        typer.Option(
            "--fingerprint",
            metavar="HEX",
            help="Give the SHA-256 of its public key instead of its certificate.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bind node ID to another key: that of its new certificate. For administrators.

    A running node whose certificate's file is replaced reports the new key itself. This command is
    for a node that was stopped then, or has lost its old key.
    """
    if store.path is not None:
        raise typer.BadParameter("a store in a folder has no nodes: give --connect HOST:PORT,...")
    request = RebindNode(node_id, _fingerprint(certificate, fingerprint))
    randomness = random.Random(random.SystemRandom().randbytes(32))
    asyncio.run(rebind(store.addresses, request, store.tls, store.token, randomness, store.timeout))
    if as_json:
        print_json({"node": node_id, "fingerprint": request.fingerprint.hex()})
    else:
        print_line(f"node {node_id} has the key sha256:{request.fingerprint.hex()}")


def _fingerprint(certificate: Path | None, fingerprint: str | None) -> bytes:
    if (certificate is None) == (fingerprint is None):
        raise typer.BadParameter("give --certificate FILE or --fingerprint HEX")
    if certificate is not None:
        return fingerprint_of_file(certificate)
    try:
        given = bytes.fromhex((fingerprint or "").removeprefix("sha256:"))
    except ValueError:
        given = b""
    if len(given) != FINGERPRINT_BYTES:
        raise typer.BadParameter(
            f"{fingerprint!r} is no SHA-256: 64 hexadecimal digits", param_hint="--fingerprint"
        )
    return given


def _check_majority(now: Survey, node_id: int) -> None:
    left = [each for each in now.nodes if each.node_id not in {0, node_id}]
    answering = [each for each in left if each.status is not None and each.status.role in VOTING]
    if left and len(answering) <= len(left) // 2:
        raise Error(
            f"without node {node_id} only {len(answering)} of {len(left)} nodes would answer, no "
            "majority, and nothing could be written; nothing was changed: bring nodes back first, "
            "or remove one that does not answer, or say --force"
        )


# --- a cluster ------------------------------------------------------------------------------------


def _survey(store: StoreOptions, seconds: float, *, follow: bool = True) -> Survey:
    randomness = random.Random(random.SystemRandom().randbytes(32))
    asked = survey(store.addresses, store.tls, store.token, randomness, seconds, follow=follow)
    return asyncio.run(asked)


class _LeaderView(NamedTuple):
    """The leaders' view of all data.

    Attributes:
        counters: the sums over the messages of all ranges; ``None``: they could not be asked.
        ranges: the number of ranges that each node leads.
    """

    queues: QueuesSummary = QueuesSummary()
    positions: tuple[postroom.PositionInfo, ...] = ()
    counters: Counters | None = None
    ranges: Mapping[int, int] = {}


def _ask_leader(store: StoreOptions) -> _LeaderView:
    """Return what the leader says in time, the quickest first. It may lead no more."""
    view = _LeaderView()
    try:
        with store.open_existing() as db:
            now = db.status()
            view = view._replace(positions=now.positions, counters=now.counters)
            view = view._replace(ranges=Counter(each.leader for each in db.ranges()))
            return view._replace(queues=summarize_queues(db))
    except Error as error:
        return view._replace(queues=QueuesSummary(error=with_option_names(str(error))))


def _print_survey(now: Survey, led: _LeaderView, as_json: bool) -> None:
    if not as_json:
        console = _console()
        console.print(nodes_table(now))
        console.print(_versions(now), markup=False, highlight=False)
        for peer, reason in _unreachable(now):
            console.print(
                f"node {peer} cannot be reached by the leader: {reason}",
                markup=False, style="bold red",
            )  # fmt: skip
        for report in now.nodes:
            _print_troubles(console, f"node {report.node_id}", report.status)
        for line in service_errors(now):
            console.print(line, markup=False, style="bold red")
        for line in service_notes(now):
            console.print(line, markup=False)
        if sum(led.ranges.values()) > 1:
            console.print(_leaders(led.ranges), markup=False, highlight=False)
        if led.counters is not None:
            console.print(_table("messages", _counter_facts(led.counters)))
        led.queues.print()
        print_positions(led.positions)
        return
    for report in now.nodes:
        print_json(_node_facts(report, now.leader))
    counters = None if led.counters is None else _counter_facts(led.counters)
    leader = now.leader.node_id if now.leader else None
    print_json({
        "leader": leader, "ranges": sum(led.ranges.values()), "counters": counters,
        "queues": led.queues.as_json(), "positions": positions_as_json(led.positions),
    })  # fmt: skip


def _print_troubles(console: Console, node: str, status: NodeStatus | None) -> None:
    if status is None:
        return
    if status.damage:
        text = f"{node} is damaged and does not lead; replace its disk:"
        console.print(f"[bold red]{text}[/bold red] {escape(status.damage)}")
    if status.certificate:
        console.print(f"{node}: {status.certificate}", markup=False, style="bold red")
    if status.refused:
        text = f"{node} refuses writes:"
        console.print(f"[bold red]{text}[/bold red] {escape(status.refused)}")


def _unreachable(now: Survey) -> list[tuple[int, str]]:
    """Return the nodes to which the leader has no connection, and why."""
    status = now.leader and now.leader.status
    peers = status.peers if status else ()
    return [(each.node_id, each.link_error) for each in peers if each.link_error]


def _versions(now: Survey) -> str:
    """Return the versions of Postroom that the nodes run, the nodes of each behind it."""
    nodes: dict[str, list[str]] = {}
    for report in now.nodes:
        if report.status:
            nodes.setdefault(report.status.version or "unknown", []).append(str(report.node_id))
    return "; ".join(
        f"version {each}: {'node' if len(those) == 1 else 'nodes'} {', '.join(those)}"
        for each, those in nodes.items()
    )


def _leaders(ranges: Mapping[int, int]) -> str:
    """Return how many ranges there are, and how many each node leads."""
    led = ", ".join(f"{number:,} by node {node}" for node, number in sorted(ranges.items()))
    return f"{sum(ranges.values()):,} ranges: {led}"


def _console() -> Console:
    """Return a console as wide as the terminal; wide enough for a file or a pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _node_facts(report: NodeReport, leader: NodeReport | None) -> dict[str, object]:
    behind, silent = _progress(report, leader)
    status = report.status
    seen_by_leader = {} if leader is None else dict(_unreachable(Survey([leader])))
    return {
        "node_id": report.node_id or None,
        "address": report.address,
        "answers": status is not None,
        "trouble": None if report.error is None else with_option_names(str(report.error)),
        "role": status and status.role,
        "term": status and status.term,
        "applied_index": status and status.applied_index,
        "behind": behind,
        "silent_seconds": silent,
        "disk_bytes": status and status.disk_bytes,
        "free_bytes": status and status.free_bytes,
        "clock_offset_seconds": status and status.clock_offset_seconds,
        "damage": status and (status.damage or None),
        "certificate": status and (status.certificate or None),
        "link_error": seen_by_leader.get(report.node_id),
        "version": status and status.version,
        "refused": status and (status.refused or None),
        "services": status and [msgspec.structs.asdict(each) for each in status.services],
        "storage": status and msgspec.structs.asdict(status.storage),
    }


def service_errors(now: Survey) -> list[str]:
    """Return the failures of the leader's services, one line each."""
    status = now.leader and now.leader.status
    return [
        _service_state(each.running, each.failures, each.trouble, each.name)
        for each in (status.services if status else ())
        if each.failures
    ]


def service_notes(now: Survey) -> list[str]:
    """Return the notes of the leader's services, one line each."""
    status = now.leader and now.leader.status
    services = status.services if status else ()
    return [f"{each.name}: {_one_line(each.note)}" for each in services if each.note]


def _service_state(
    running: bool, failures: int, last_error: str, name: str = "", note: str = ""
) -> str:
    """Return the state of one service on one line, with text from outside made harmless."""
    state = "running" if running else "pausing" if failures else "at rest"
    if failures:
        state += f"; failed {counted(failures, 'time')}, the last time: {_one_line(last_error)}"
    if note:
        state += f"; {_one_line(note)}"
    return f"{name}: {state}" if name else state


def _one_line(text: str) -> str:
    """Return text from outside on one line."""
    return text.encode("unicode_escape").decode("ascii")


def nodes_table(now: Survey) -> Table:
    """Return a table of the nodes; a narrow terminal folds addresses, and nothing is cut."""
    leader = now.leader
    title = "no node leads: nothing can be read or written" if leader is None else None
    table = Table(
        "node", "address", "role", "term", "applied", "behind", "silent\ns", "disk\nMB", "free\nGB",
        "clock\ns", title=title, title_justify="left", title_style="bold red",
        box=box.SIMPLE_HEAD, pad_edge=False, padding=0,
    )  # fmt: skip
    for column in table.columns:
        column.no_wrap = True
    table.columns[1].no_wrap = False
    table.columns[1].overflow = "fold"
    for column in table.columns[3:]:
        column.justify = "right"
    for report in now.nodes:
        facts = _node_facts(report, leader)
        table.add_row(
            str(facts["node_id"] or "?"),
            report.address,
            str(facts["role"]) if report.status else "[red]no answer[/red]",
            _number(facts["term"]),
            _number(facts["applied_index"]),
            _number(facts["behind"]),
            _number(facts["silent_seconds"], 1),
            _number(facts["disk_bytes"], 1, MEGABYTE),
            _number(facts["free_bytes"], 1, GIGABYTE),
            _number(facts["clock_offset_seconds"], 2),
        )
    return table


def _progress(report: NodeReport, leader: NodeReport | None) -> tuple[int | None, float | None]:
    """Return how many entries a node is behind, and the seconds since the leader heard of it."""
    if leader is None or leader.status is None:
        return None, None
    if report.node_id == leader.node_id:
        return 0, 0.0
    for peer in leader.status.peers:
        if peer.node_id == report.node_id:
            return max(leader.status.last_index - peer.match_index, 0), peer.silent_seconds
    return None, None


def _number(value: Any, digits: int = 0, unit: int = 1) -> str:
    return "" if value is None else f"{round(value / unit, digits) + 0.0:,.{digits}f}"


# --- an embedded store ----------------------------------------------------------------------------


def _facts(now: postroom.Status) -> dict[str, object]:
    return {
        "version": postroom.__version__,
        **now._asdict(),
        "store_id": now.store_id.hex(),
        "timestamp": now.timestamp.datetime.isoformat(),
        "counters": _counter_facts(now.counters),
        "services": [each._asdict() for each in now.services],
        "storage": now.storage._asdict(),
        "positions": positions_as_json(now.positions),
    }


def _counter_facts(counters: Counters) -> dict[str, object]:
    """Return the counters, and the number of dead letters, which alerts look at."""
    return {**msgspec.structs.asdict(counters), "dead_letters": counters.dead_letters}


def _table(title: str, facts: dict[str, object]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in _flat_facts("", facts):
        table.add_row(name.replace("_", " "), value)
    return table


def _flat_facts(prefix: str, facts: dict[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the facts as pairs of name and text, without empty ones.

    A fact inside another one has both names.
    """
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flat_facts(f"{prefix}{name} · ", value)
        elif name == "services" and isinstance(value, list):
            for each in value:
                state = _service_state(
                    each["running"], each["failures"], each["trouble"], note=each["note"]
                )
                yield f"{prefix}service · {each['name']}", state
        elif value != "":
            yield prefix + name, f"{value:,}" if type(value) is int else str(value)


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
            **each._asdict(),
            "position": int(each.position),
            "protected_until": each.protected_until.datetime.isoformat(),
        }
        for each in positions
    ]

"""The commands about the store itself and its nodes: status, remove-node, rebind-node."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - here instances are made, to be passed in
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import postroom
from postroom.cli.options import AsJson, Store, in_options, on_a_store, quiet_grpc
from postroom.cli.output import print_json, print_line
from postroom.client.remote.rebinding import rebind_node as rebind
from postroom.client.remote.removal import remove_node as remove
from postroom.client.remote.survey import SURVEY_SECONDS, NodeReport, Survey, survey
from postroom.errors import Error
from postroom.messaging.counters import Counters
from postroom.ranges.nodes import FINGERPRINT_BYTES, RebindNode
from postroom.server.cluster.node_keys import fingerprint_of_file

MEGABYTE = 1_000_000
GIGABYTE = 1_000_000_000
VOTING = frozenset({"leader", "follower"})


@on_a_store
def status(store: Store, as_json: AsJson = False) -> None:
    """Print how the store is; of a cluster, how each node is, whether or not one leads."""
    if store.path is None:
        _print_survey(_survey(store), as_json)
        return
    with store.open_existing() as db:
        facts = _facts(db.status())
    if as_json:
        print_json(facts)
    else:
        # Those that a cluster has, and a folder has not.
        here = {name: fact for name, fact in facts.items() if name not in {"leader", "nodes"}}
        Console().print(_table(str(store.path), here))


@on_a_store
def remove_node(
    store: Store,
    node_id: Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False)],
    force: Annotated[
        bool, typer.Option("--force", help="Even if those that answer are no majority then.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take node ID out of the cluster for good, and wait until it is out (--timeout SECONDS).

    Whether it runs or is lost: it never comes back as that node. 'postroom status' shows the IDs.
    """
    if store.path is not None:
        raise typer.BadParameter("a store in a folder has no nodes: give --connect HOST:PORT,...")
    if not force:
        _check_majority(_survey(store), node_id)
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
    store: Store,
    node_id: Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False)],
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", metavar="FILE", help="The node's new certificate, PEM."),
    ] = None,
    fingerprint: Annotated[
        str | None,
        typer.Option("--fingerprint", metavar="HEX", help="SHA-256 of its public key, instead."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give node ID another key: that of its new certificate. For administrators.

    A node that runs while its certificate's file is replaced says so itself: this is for one that
    could not, because it was stopped or has lost its old key.
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


def _survey(store: Store) -> Survey:
    quiet_grpc()
    seconds = min(store.timeout, SURVEY_SECONDS)
    randomness = random.Random(random.SystemRandom().randbytes(32))
    return asyncio.run(survey(store.addresses, store.tls, store.token, randomness, seconds))


def _print_survey(now: Survey, as_json: bool) -> None:
    if not as_json:
        console = _console()
        console.print(nodes_table(now))
        for report in now.nodes:
            if report.status and report.status.damage:
                console.print(
                    f"[bold red]node {report.node_id} is damaged and does not lead; replace its "
                    f"disk:[/bold red] {escape(report.status.damage)}"
                )
        for line in service_errors(now):
            console.print(line, markup=False, style="bold red")
        if now.counters is not None:
            console.print(_table("messages", _counted(now.counters)))
        return
    for report in now.nodes:
        print_json(_node_facts(report, now.leader))
    counters = None if now.counters is None else _counted(now.counters)
    print_json({"leader": now.leader.node_id if now.leader else None, "counters": counters})


def _console() -> Console:
    """As wide as the terminal; in a file or a pipe, wide enough."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _node_facts(report: NodeReport, leader: NodeReport | None) -> dict[str, object]:
    behind, silent = _progress(report, leader)
    status = report.status
    return {
        "node_id": report.node_id or None,
        "address": report.address,
        "answers": status is not None,
        "trouble": None if report.error is None else in_options(str(report.error)),
        "role": status and status.role,
        "term": status and status.term,
        "applied_index": status and status.applied_index,
        "behind": behind,
        "silent_seconds": silent,
        "disk_bytes": status and status.disk_bytes,
        "free_bytes": status and status.free_bytes,
        "clock_offset_seconds": status and status.clock_offset_seconds,
        "damage": status and (status.damage or None),
        "services": status and [msgspec.structs.asdict(each) for each in status.services],
    }


def service_errors(now: Survey) -> list[str]:
    """What the leader's services suffer from, if anything: one line each."""
    status = now.leader and now.leader.status
    return [
        _service_state(each.running, each.failures, each.trouble, each.name)
        for each in (status.services if status else ())
        if each.failures
    ]


def _service_state(running: bool, failures: int, last_error: str, name: str = "") -> str:
    """Of one service, on one line; what an error says may have come from anybody."""
    state = "running" if running else "pausing" if failures else "at rest"
    if failures:
        told = last_error.encode("unicode_escape").decode("ascii")
        state += f"; failed {failures} times, the last time: {told}"
    return f"{name}: {state}" if name else state


def nodes_table(now: Survey) -> Table:
    """The nodes, one a line; on a narrow terminal addresses are folded, and nothing is cut."""
    leader = now.leader
    title = "no node leads: nothing can be read or written" if leader is None else None
    table = Table(
        "node", "address", "role", "term", "applied", "behind", "silent\ns", "disk\nMB", "free\nGB",
        "clock\ns", title=title, title_justify="left", title_style="bold red", box=box.SIMPLE_HEAD,
        pad_edge=False, padding=0,
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
    """How many entries a node is behind, and since when the leader has not heard of it."""
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
        **now._asdict(),
        "timestamp": now.timestamp.datetime.isoformat(),
        "counters": _counted(now.counters),
        "services": [each._asdict() for each in now.services],
    }


def _counted(counters: Counters) -> dict[str, object]:
    """The counters, and of the dead those that wait for somebody: what an alert looks at."""
    return {**msgspec.structs.asdict(counters), "dead_letters": counters.dead_letters}


def _table(title: str, facts: dict[str, object]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in _flat("", facts):
        table.add_row(name.replace("_", " "), value)
    return table


def _flat(prefix: str, facts: dict[str, object]) -> Iterator[tuple[str, str]]:
    """The facts as pairs; those inside others under both names."""
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name} · ", value)
        elif name == "services" and isinstance(value, list):
            for each in value:
                state = _service_state(each["running"], each["failures"], each["trouble"])
                yield f"{prefix}service · {each['name']}", state
        else:
            yield prefix + name, f"{value:,}" if type(value) is int else str(value)

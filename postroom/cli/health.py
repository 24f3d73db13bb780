"""The check of a store: what is wrong with it, as lines and as an exit code.

A service manager asks about one node, the one that it has started. A monitor asks about all of
them. The check therefore asks the nodes that it was given, and no others. A certificate that
expires soon is told, and changes no code: the node does its work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import typer

import postroom
from postroom.cli.output import field, print_json, print_line
from postroom.client.remote.nodes import NodeReport, Survey

NO_LEADER: Final = 3
DAMAGED: Final = 4
NO_ANSWER: Final = 5
REFUSES: Final = 6
NO_MEMBER: Final = 7


class Problem(NamedTuple):
    """A thing that is wrong.

    Attributes:
        code: the exit code for it; 0: a warning.
    """

    code: int
    text: str


def of_nodes(now: Survey) -> list[Problem]:
    """Return the problems of the nodes that were asked, the worst one first."""
    found = [each for report in now.nodes for each in _of_node(report)]
    if not any(report.status and report.status.leader for report in now.nodes):
        found.append(Problem(NO_LEADER, "no node leads: nothing can be read or written"))
    return sorted(found, key=lambda each: each.code or NO_MEMBER + 1)


def of_folder(now: postroom.Status) -> list[Problem]:
    """Return the problems of an embedded store."""
    return [Problem(REFUSES, f"the store refuses writes: {now.refused}")] if now.refused else []


def report(found: list[Problem], *, as_json: bool) -> None:
    """Print the problems, and exit with the code of the worst one."""
    code = found[0].code if found else 0
    told = [each.text for each in found]
    if as_json:
        print_json({"code": code, "problems": told})
    else:
        for each in told or ["nothing is wrong"]:
            print_line(field(each))
    if code:
        raise typer.Exit(code)


def _of_node(report: NodeReport) -> Iterator[Problem]:
    name = f"node {report.node_id or '?'} at {report.address}"
    status = report.status
    if status is None:
        yield Problem(NO_ANSWER, f"{name} does not answer: {report.error}")
        return
    if status.damage:
        yield Problem(DAMAGED, f"{name} is damaged, replace its disk: {status.damage}")
    if status.refused:
        yield Problem(REFUSES, f"{name} refuses writes: {status.refused}")
    if status.role == "outsider":
        yield Problem(NO_MEMBER, f"{name} is no member of the cluster yet")
    if status.certificate:
        yield Problem(0, f"{name}: {status.certificate}")

"""Commands on a cluster, what they say, and what they come to say once others have caught up."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from typer.testing import CliRunner, Result

from postroom.cli.application import app
from tests.cluster.harness import eventually

NOBODY = "127.0.0.1:1"
REMOVED_SECONDS = "60"


def invoke(*arguments: str, token: str | None = None) -> Result:
    environment = {"POSTROOM_TOKEN": token, "POSTROOM_PATH": None}
    return CliRunner().invoke(app, list(arguments), env=environment)


def lines(*arguments: str) -> list[str]:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def records(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(*arguments, "--json")]


def failed_with(result: Result, code: int, *words: str) -> bool:
    assert result.exit_code == code, result.output
    if code == 1:
        assert len(result.stderr.splitlines()) == 1, result.stderr
    said = said_by(result)
    missing = [word for word in words if word not in said]
    assert not missing, (missing, said)
    return True


def said_by(result: Result) -> str:
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.stderr).split())


Facts = list[dict[str, Any]]


def status_once(address: str, holds: Callable[[Facts, dict[str, Any]], bool]) -> Facts:
    """Return what ``status`` tells of the nodes once ``holds`` is true of it.

    One look may miss a late node, or fall into an election.
    """

    def look() -> Facts | None:
        """Look whether the status is as it should be."""
        result = invoke("status", "--connect", address, "--insecure", "--json")
        if not result.stdout:
            return None
        *nodes, totals = map(json.loads, result.stdout.splitlines())
        return nodes if holds(nodes, totals) else None

    return eventually(look) or []


def answers(*expected: bool) -> Callable[[Facts, dict[str, Any]], bool]:
    """Check that one node leads, and that these nodes answer."""
    return lambda nodes, totals: (
        totals["leader"] is not None and [each["answers"] for each in nodes] == [*expected]
    )


def remove(node_id: int, addresses: str) -> Result:
    """Remove a node; try again if too few of the others seemed to answer."""

    def attempt() -> Result | None:
        """Look whether enough nodes are there."""
        result = invoke(
            "remove-node", str(node_id), "--connect", addresses, "--insecure",
            "--timeout", REMOVED_SECONDS,
        )  # fmt: skip
        return None if "no majority" in result.stderr else result

    result = eventually(attempt)
    assert result is not None
    assert result.exit_code == 0, result.output
    return result

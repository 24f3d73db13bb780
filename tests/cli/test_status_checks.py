"""``status`` answers while a store is in trouble; ``--check`` exits with what is wrong."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import Result

import postroom
from postroom.cli import health, state
from postroom.cli.queue_output import QueuesSummary
from postroom.client.remote.nodes import NodeReport, Survey
from postroom.ranges.nodes import NodeStatus
from tests.cli.commands import NOBODY, invoke, lines, records
from tests.cli.test_words import rows
from tests.cluster.harness import ClusterProcesses, NodeProcess, cluster, eventually
from tests.gateway.processes import free_address, running

ANSWER_SECONDS = 2.0
ATTEMPTS = 3
WELL = NodeStatus(
    node_id=1, address=NOBODY, role="follower", leader=2, term=1, applied_index=17, last_index=17,
    serves=False, peers=(), disk_bytes=0, free_bytes=0, clock_offset_seconds=0.0,
)  # fmt: skip
SILENT = NodeReport(NOBODY, 2, error=postroom.errors.Error("no answer within 1 s"))


def told(**facts: object) -> NodeReport:
    """Return the report of a node about which these facts are wrong."""
    return NodeReport(NOBODY, 1, msgspec.structs.replace(WELL, **facts))


TROUBLES = {
    "nothing": ([told()], 0, "nothing is wrong"),
    "no leader": ([told(leader=0)], 3, "no node leads: nothing can be read or written"),
    "damage": ([told(damage="block 7")], 4, f"node 1 at {NOBODY} is damaged"),
    "silence": ([told(), SILENT], 5, f"node 2 at {NOBODY} does not answer: no answer within 1 s"),
    "full disk": ([told(refused="8 bytes are free")], 6, f"node 1 at {NOBODY} refuses writes: 8"),
    "no member": ([told(role="outsider")], 7, f"node 1 at {NOBODY} is no member of the cluster"),
    "warning": ([told(certificate="it expires soon")], 0, f"node 1 at {NOBODY}: it expires soon"),
    "several": ([told(refused="full", damage="block 7", certificate="old")], 4, "block 7"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_check_of_nodes_exits_with_the_code_of_the_worst_finding(
    monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    nodes, code, words = TROUBLES[trouble]
    monkeypatch.setattr(state, "_survey", lambda *_, **__: Survey(nodes))
    result = invoke("status", "--check", "--connect", NOBODY, "--insecure")
    assert (result.exit_code, words in result.stdout.splitlines()[0]) == (code, True), result.output
    as_json = invoke("status", "--check", "--connect", NOBODY, "--insecure", "--json")
    assert as_json.exit_code == json.loads(as_json.stdout)["code"] == code


def test_the_check_of_a_folder_tells_that_writes_are_refused(tmp_path: Path) -> None:
    lines("put", "key", "value", "--path", str(tmp_path))
    assert lines("status", "--check", "--path", str(tmp_path)) == ["nothing is wrong"]
    with postroom.open(tmp_path) as db:
        now = db.status()
    assert health.of_folder(now._replace(refused="full")) == [
        health.Problem(health.REFUSES, "the store refuses writes: full")
    ]


def test_the_check_fails_with_1_if_no_node_answers_and_2_if_no_store_is_named() -> None:
    assert invoke("status", "--check", "--connect", NOBODY, "--insecure").exit_code == 1
    assert invoke("status", "--check").exit_code == 2


def test_the_help_and_the_page_tell_each_code() -> None:
    codes = {code for _, code, _ in TROUBLES.values()} | {1}
    shown = " ".join(invoke("status", "--help").output.split())
    assert {int(each) for each in re.findall(r"(?<=[a-z:,] )(\d) if ", shown)} == codes
    (row,) = [cells for cells in rows("### Exit codes") if cells[0] == "3 to 7"]
    assert {int(each) for each in re.findall(r"(\d):", row[1])} == codes - {0, 1}


def test_status_tells_what_it_knows_if_the_queues_are_not_told_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(db: postroom.Database) -> QueuesSummary:
        raise postroom.errors.Unavailable("no answer in time", retry_after=1.0)

    monkeypatch.setattr(state, "summarize_queues", late)
    address = free_address()
    serve = ("serve", "--insecure", "--path", str(tmp_path / "store"), "--listen", address)
    with running(*serve):
        *_, totals = records("status", "--connect", address, "--insecure")
    assert "no answer in time" in totals["queues"]["error"]
    assert totals["counters"]["dead_letters"] == 0


# --- nodes that hang, and no leader


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with cluster(tmp_path) as processes:
        yield processes


def asked(*arguments: str) -> Result:
    """Run ``status``, which must answer in time; a machine may stand still once."""
    for _ in range(ATTEMPTS):
        began = time.monotonic()
        result = invoke("status", *arguments, "--insecure")
        if time.monotonic() - began < ANSWER_SECONDS:
            return result
    raise AssertionError(f"no answer within {ANSWER_SECONDS} s: {arguments}")


def paused(three: ClusterProcesses, count: int) -> list[NodeProcess]:
    with three.connect() as db:
        nodes = [three.leader(db), *three.followers(db)][:count]
    for node in nodes:
        node.pause()
    return [node for node in three.nodes if node not in nodes]


def test_status_answers_in_time_while_the_leader_hangs_and_another_one_follows(
    three: ClusterProcesses,
) -> None:
    paused(three, 1)
    assert asked("--connect", three.addresses).stdout.count("no answer") == 1
    eventually(lambda: asked("--check", "--connect", three.addresses).exit_code == health.NO_ANSWER)
    assert asked("--connect", three.addresses).exit_code == 0


def test_status_answers_in_time_while_no_node_leads(three: ClusterProcesses) -> None:
    (left,) = paused(three, 2)
    eventually(lambda: asked("--check", "--connect", left.address).exit_code == health.NO_LEADER)
    result = asked("--connect", three.addresses)
    assert result.exit_code == 1
    assert result.stdout.count("no answer") == 2


def test_the_check_asks_only_the_nodes_that_it_was_given(three: ClusterProcesses) -> None:
    with three.connect() as db:
        other, asked_one = three.followers(db)
    other.kill()
    assert asked("--check", "--connect", asked_one.address).exit_code == 0
    both = f"{asked_one.address},{other.address}"
    assert asked("--check", "--connect", both).exit_code == health.NO_ANSWER

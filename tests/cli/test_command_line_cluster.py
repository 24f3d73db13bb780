"""The command line on a cluster: connecting, its status and its nodes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import postroom
from postroom.cli import serve, state
from postroom.cli.application import app
from postroom.cli.options import StoreOptions
from postroom.cli.state import nodes_table
from postroom.client.remote.nodes import NodeReport, Survey
from postroom.kv.engine_folder import ENGINES, EngineName
from postroom.pipeline.driver_service import DriverLink
from postroom.pipeline.options import StoreAddress
from postroom.ranges.nodes import NodeStatus, PeerStatus
from postroom.server.cluster.security import fingerprint_of_file
from tests.cli.commands import (
    NOBODY,
    Facts,
    answers,
    failed_with,
    invoke,
    lines,
    records,
    remove,
    said_by,
    status_once,
)
from tests.cluster.harness import ClusterProcesses, cluster
from tests.kv.on_disk import INSTALLED
from tests.server.cluster.certificates import Authority

SECONDS_TO_FIND_OUT = ("1", "4", "16")
"""The seconds that a command is given, one try after the other; the first is short."""


def finds_out(arguments: tuple[str, ...], *words: str, token: str | None = None) -> bool:
    """Return whether a command fails with these words, if it is given time."""
    first, *more = SECONDS_TO_FIND_OUT
    result = invoke(*arguments, "--timeout", first, token=token)
    for seconds in more:
        if all(word in said_by(result) for word in words):
            break
        result = invoke(*arguments, "--timeout", seconds, token=token)
    return failed_with(result, 1, *words)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with cluster(tmp_path_factory.mktemp("cluster")) as processes:
        yield processes


def test_all_commands_connect(three: ClusterProcesses) -> None:
    there = ("--connect", three.addresses, "--insecure")
    assert lines("put", "colour", "green", *there) == []
    assert lines("get", "colour", *there) == ["green"]
    assert lines("scan", "--prefix", "col", *there) == ["colour\tgreen"]
    assert lines("delete", "colour", *there) == []
    assert failed_with(invoke("get", "colour", *there), 1, "no key", three.addresses)
    lines("send", "inbox", "hello", *there)
    assert [record["key"] for record in records("inboxes", *there)] == ["inbox"]
    assert lines("peek", "inbox", *there) == ["hello"]
    assert lines("reap", "inbox", *there) == ["hello"]
    assert lines("dead-letters", *there) == []
    rates = records("bench", "--transactions", "20", *there)
    assert all(rate["per_second"] > 0 for rate in rates)


def test_one_address_is_enough(three: ClusterProcesses) -> None:
    addresses = [node.address for node in three.nodes]
    for address in addresses:
        found = status_once(address, lambda nodes, _: len(nodes) == len(addresses))
        assert [each["address"] for each in found] == addresses


def test_status_of_all_nodes(three: ClusterProcesses) -> None:
    def all_well(nodes: Facts, totals: dict[str, Any]) -> bool:
        roles = sorted(node["role"] or "" for node in nodes)
        is_led = roles == ["follower", "follower", "leader"] and totals["leader"] in {1, 2, 3}
        return is_led and totals["counters"] is not None and totals["counters"]["dead"] == 0

    nodes = status_once(three.addresses, all_well)
    assert [node["node_id"] for node in nodes] == [1, 2, 3]
    assert all(node["answers"] for node in nodes)
    assert {node["version"] for node in nodes} == {postroom.__version__}
    invoke("queue", "create", "emails", "--connect", three.addresses, "--insecure")
    shown = lines("status", "--connect", three.addresses, "--insecure")
    assert any("leader" in line for line in shown)
    assert any(line.startswith("emails\t0") for line in shown), shown
    assert any("delivered" in line for line in shown)


@pytest.mark.parametrize("address", ["127.0.0.1:7401", "192.168.100.100:27401"])
def test_status_fits_a_terminal_of_80_columns(address: str) -> None:
    status = NodeStatus(
        node_id=1, address=address, role="follower", leader=2, term=17, applied_index=123_456,
        last_index=123_456, serves=False, peers=(), disk_bytes=1_234_000_000,
        free_bytes=123_400_000_000, clock_offset_seconds=-3600.0,
    )  # fmt: skip
    written = io.StringIO()
    table = nodes_table(Survey([NodeReport(address, 1, status), NodeReport(address)]))
    Console(width=80, file=written).print(table)
    shown = written.getvalue()
    assert "…" not in shown, shown
    for told in ("applied", "behind", "123,456", "1,234.0", "123.4", "-3,600.00", "no answer"):
        assert told in shown, shown
    assert address in shown or address[:12] in shown, shown


def test_status_tells_why_the_leader_cannot_reach_a_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = (PeerStatus(2, 16, 0.1, False, "its key is another one"), PeerStatus(3, 17, 0.1, False))
    leader = NodeStatus(
        node_id=1, address=NOBODY, role="leader", leader=1, term=1, applied_index=17,
        last_index=17, serves=True, peers=peers, disk_bytes=0, free_bytes=0,
        clock_offset_seconds=0.0,
    )  # fmt: skip
    found = Survey([NodeReport(NOBODY, 1, leader), NodeReport("elsewhere:1", 2)])
    monkeypatch.setattr(state, "_survey", lambda *_: found)
    monkeypatch.setattr(state, "_ask_leader", lambda store: state._LeaderView())
    shown = lines("status", "--connect", NOBODY, "--insecure")
    assert "node 2 cannot be reached by the leader: its key is another one" in shown
    assert not any("node 3 cannot" in line for line in shown)
    (_, second, _) = records("status", "--connect", NOBODY, "--insecure")
    assert second["link_error"] == "its key is another one"


SERVE = ("serve", "--data", "unused", "--listen", NOBODY, "--insecure")
USAGE = [
    (("get", "k"), "give --path DIR or --connect"),
    (("get", "k", "--path", "x", "--connect", NOBODY), "not both"),
    (("get", "k", "--path", "x", "--insecure"), "go with --connect"),
    (("get", "k", "--connect", NOBODY), "--tls-ca"),
    (("get", "k", "--connect", "nowhere", "--insecure"), "host:port"),
    (("get", "k", "--connect", NOBODY, "--insecure", "--tls-ca", "x"), "no --tls"),
    (("get", "k", "--connect", NOBODY, "--tls-ca", "x", "--tls-key", "x"), "go together"),
    (("get", "k", "--connect", "::1:7400", "--insecure"), "[::1]:7400"),
    (("remove-node", "1", "--path", "x"), "give --connect"),
    (("remove-node", "0", "--connect", NOBODY, "--insecure"), "equal to 1"),
    (("rebind-node", "1", "--path", "x"), "give --connect"),
    (("rebind-node", "1", "--connect", NOBODY, "--insecure"), "--certificate FILE or --fing"),
    (("rebind-node", "1", "--fingerprint", "12", "--connect", NOBODY, "--insecure"), "no SHA-256"),
    (("cluster", "--nodes", "0"), "equal to 1"),
    ((*SERVE, "--join", ""), "give at least one HOST:PORT"),
    ((*SERVE, "--join", "::1:7400"), "[::1]:7400"),
    ((*SERVE, "--join", ", "), "give at least one HOST:PORT"),
    ((*SERVE, "--join", NOBODY, "--engine", "lmdb"), "none of leveldb, rocksdb"),
    ((*SERVE, "--join", NOBODY, "--insecure", "--memory", "much"), "write 128MiB"),
    ((*SERVE, "--join", NOBODY, "--insecure", "--memory", "1MiB"), "the least is 8,388,608 (8MiB)"),
    ((*SERVE, "--join", NOBODY, "--insecure", "--split-bytes", "1kB"), "is 1,048,576 (1MiB)"),
    (
        (*SERVE, "--join", NOBODY, "--insecure", "--split-load", "0.01"),
        "not in the range: 0, or 0.1 to 64",
    ),
    (("get", "k", "--connect", NOBODY, "--insecure", "--memory", "1GiB"), "goes with --path"),
]


@pytest.mark.parametrize(("command", "says"), USAGE, ids=[" ".join(each[0]) for each in USAGE])
def test_wrong_usage_says_what_to_do(command: tuple[str, ...], says: str) -> None:
    assert failed_with(invoke(*command), 2, says)


def test_a_node_is_served_with_its_budget_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Any] = []

    async def run(settings: Any, *_: Any, **__: Any) -> None:
        served.append(settings)

    monkeypatch.setattr(serve, "_run", run)
    data = ("--data", str(tmp_path / "data"), "--memory", "24MiB")
    assert invoke("serve", *data, "--listen", NOBODY, "--insecure").exit_code == 0
    assert [each.memory_bytes for each in served] == [24 << 20]


def test_the_path_of_the_environment_gives_way() -> None:
    command = ["get", "k", "--connect", NOBODY, "--insecure", "--timeout", "0.3"]
    result = CliRunner().invoke(app, command, env={"POSTROOM_PATH": "/nowhere"})
    assert failed_with(result, 1, NOBODY)
    result = CliRunner().invoke(app, ["get", "k"], env={"POSTROOM_PATH": "/nowhere"})
    assert failed_with(result, 1, "/nowhere")


@pytest.mark.parametrize("command", [["get", "k"], ["status"], ["put", "k", "v"]])
def test_a_command_fails_if_no_node_answers(command: list[str]) -> None:
    result = invoke(*command, "--connect", NOBODY, "--insecure", "--timeout", "0.3")
    assert failed_with(result, 1, "postroom: ", NOBODY)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    assert failed_with(invoke("get", "k", "--connect", NOBODY, "--tls-ca", missing), 1, missing)


def test_a_secure_cluster(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\nadmin boss\n")
    there = Authority(tmp_path, "other")
    with cluster(tmp_path, 0) as processes:
        host = processes.place.address(1).rpartition(":")[0]
        node, client = authority.node(host), authority.client()
        processes._options = (
            "--tls-ca", str(node.ca), "--tls-certificate", str(node.certificate),
            "--tls-key", str(node.key), "--token-file", str(tokens),
        )  # fmt: skip
        processes.form(1)
        known = (
            "--connect", processes.addresses, "--tls-ca", str(client.ca), "--tls-certificate",
            str(client.certificate), "--tls-key", str(client.key),
        )  # fmt: skip
        assert invoke("put", "k", "v", *known, token="secret").exit_code == 0
        assert invoke("get", "k", *known, "--token", "secret").stdout == "v\n"
        its_own = ("rebind-node", "1", "--certificate", str(node.certificate), *known)
        assert failed_with(invoke(*its_own, token="secret"), 1, "role", "admin")
        told = invoke(*its_own, token="boss").stdout
        key = fingerprint_of_file(node.certificate).hex()
        assert told == f"node 1 has the key sha256:{key}\n"
        other = ("rebind-node", "9", "--fingerprint", f"sha256:{key}", *known)
        assert failed_with(invoke(*other, token="boss"), 1, "there is no node 9")
        missing = ("rebind-node", "1", "--certificate", str(tmp_path / "none"), *known)
        assert failed_with(invoke(*missing, token="boss"), 1, "cannot read")
        without = ("--connect", processes.addresses, "--insecure")
        strange = ("--connect", processes.addresses, "--tls-ca", str(there.pem))
        for command in (("get", "k"), ("status",)):
            assert finds_out((*command, *known), "asks for a token", "--token")
            assert finds_out((*command, *known), "not known here", token="wrong")
            assert finds_out((*command, *without), processes.addresses)
            assert finds_out((*command, *strange), processes.addresses, "that --tls-ca has signed")
        assert finds_out(("get", "k", *without), "--tls-key, or --token")


def test_remove_a_node_and_see_a_minority(tmp_path: Path) -> None:
    with cluster(tmp_path) as processes:
        there = ("--connect", processes.addresses, "--insecure")
        assert failed_with(invoke("remove-node", "9", *there), 1, "no node 9")
        processes.nodes[2].kill()
        nodes = status_once(processes.addresses, answers(True, True, False))
        assert nodes[2]["trouble"]
        assert failed_with(invoke("remove-node", "1", *there), 1, "no majority", "--force")
        told = remove(3, processes.addresses).stdout
        assert told == "node 3 is removed; the nodes are 1, 2\n"
        processes.nodes[1].kill()
        first = processes.nodes[0].address

        def alone(nodes: Facts, totals: dict[str, Any]) -> bool:
            return totals["leader"] is None and [n["answers"] for n in nodes] == [True, False]

        status_once(first, alone)
        shown = invoke("status", "--connect", first, "--insecure")
        assert failed_with(shown, 1, "no node leads")
        assert "no answer" in shown.stdout


@pytest.mark.parametrize("asked", ENGINES)
def test_a_node_is_served_by_the_engine_that_wrote_its_folder(
    tmp_path: Path, asked: EngineName
) -> None:
    written = next((engine for engine in INSTALLED if engine != asked), None)
    if written is None:
        pytest.skip("the other engine is not installed")
    postroom.open(tmp_path, engine=written).close()
    before = {file.name for file in tmp_path.iterdir()}
    command = ("serve", "--data", str(tmp_path), "--listen", NOBODY, "--join", NOBODY)
    result = invoke(*command, "--insecure", "--engine", asked)
    assert failed_with(result, 1, f"written by the engine {written}", f"opened by {asked}")
    assert {file.name for file in tmp_path.iterdir()} == before


def test_a_token_is_not_shown() -> None:
    """The place of a store is printed in tracebacks and logs."""
    for each in (
        StoreOptions(token="hidden"),
        StoreAddress(token="hidden"),
        DriverLink(7400, "hidden"),
    ):
        assert "hidden" not in repr(each)

"""The command line on a cluster: connecting, its status, its nodes, and a local one for trying."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

import postroom
from postroom.cli import serve
from postroom.cli.application import app
from postroom.cli.options import Store
from postroom.cli.state import nodes_table
from postroom.client.remote.survey import NodeReport, Survey
from postroom.kv.engine_file import ENGINES, EngineName
from postroom.pipeline.driver_service import Line
from postroom.pipeline.options import Store as StoreOfSpark
from postroom.ranges.nodes import NodeStatus
from postroom.server.cluster.node_keys import fingerprint_of_file
from postroom.server.local_folder import LocalFolder
from tests.cluster.harness import ClusterProcesses, cluster, eventually
from tests.kv.on_disk import INSTALLED
from tests.server.cluster.certificates import Authority

NOBODY = "127.0.0.1:1"
SECONDS_TO_FIND_OUT = ("1", "4", "16")
"""What is found out takes a moment, and then the time is waited for: so it is short at first."""
REMOVED_SECONDS = "60"
STOP_SECONDS = 90.0


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


def finds_out(arguments: tuple[str, ...], *words: str, token: str | None = None) -> bool:
    """Whether it fails, and says so, if it is given time: a machine may stand still for a while."""
    first, *more = SECONDS_TO_FIND_OUT
    result = invoke(*arguments, "--timeout", first, token=token)
    for seconds in more:
        if all(word in said_by(result) for word in words):
            break
        result = invoke(*arguments, "--timeout", seconds, token=token)
    return failed_with(result, 1, *words)


Facts = list[dict[str, Any]]


def status_once(address: str, holds: Callable[[Facts, dict[str, Any]], bool]) -> Facts:
    """What ``status`` tells of the nodes once that holds of it: one look may miss who is late, or
    fall into an election.
    """

    def look() -> Facts | None:
        """the status is as it should be"""
        result = invoke("status", "--connect", address, "--insecure", "--json")
        if result.exit_code != 0:
            return None
        *nodes, totals = map(json.loads, result.stdout.splitlines())
        return nodes if holds(nodes, totals) else None

    return eventually(look) or []


def answers(*expected: bool) -> Callable[[Facts, dict[str, Any]], bool]:
    """One node leads, and these answer."""
    return lambda nodes, totals: (
        totals["leader"] is not None and [each["answers"] for each in nodes] == [*expected]
    )


def remove(node_id: int, addresses: str) -> Result:
    """Removes a node that may be removed: again, if too few of the others seemed to answer."""

    def attempt() -> Result | None:
        """enough nodes are there"""
        result = invoke(
            "remove-node", str(node_id), "--connect", addresses, "--insecure",
            "--timeout", REMOVED_SECONDS,
        )  # fmt: skip
        return None if "no majority" in result.stderr else result

    result = eventually(attempt)
    assert result is not None
    assert result.exit_code == 0, result.output
    return result


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
    shown = lines("status", "--connect", three.addresses, "--insecure")
    assert any("leader" in line for line in shown)
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
]


@pytest.mark.parametrize(("command", "says"), USAGE, ids=[" ".join(each[0]) for each in USAGE])
def test_wrong_usage_says_what_to_do(command: tuple[str, ...], says: str) -> None:
    assert failed_with(invoke(*command), 2, says)


def test_the_path_of_the_environment_gives_way() -> None:
    command = ["get", "k", "--connect", NOBODY, "--insecure", "--timeout", "0.3"]
    result = CliRunner().invoke(app, command, env={"POSTROOM_PATH": "/nowhere"})
    assert failed_with(result, 1, NOBODY)
    result = CliRunner().invoke(app, ["get", "k"], env={"POSTROOM_PATH": "/nowhere"})
    assert failed_with(result, 1, "/nowhere")


@pytest.mark.parametrize("command", [["get", "k"], ["status"], ["put", "k", "v"]])
def test_nobody_answers(command: list[str]) -> None:
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
        shown = "\n".join(lines("status", "--connect", first, "--insecure"))
        assert "no node leads" in shown
        assert "no answer" in shown


# --- a local cluster ------------------------------------------------------------------------------


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command ``cluster``, ready, and its addresses; nothing of it is left at the end."""
    command = [sys.executable, "-m", "postroom.cli.main", "cluster", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    children: set[psutil.Process] = set()
    try:
        ready = process.stdout.readline()
        children |= children_of(process)
        assert ready.startswith("ready: connect to "), ready
        yield process, ready.split()[3]
    finally:
        children |= children_of(process)
        try:
            process.terminate()
            process.wait(STOP_SECONDS)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            gone, alive = psutil.wait_procs(children, timeout=30)
            for each in alive:
                each.kill()
        assert not alive, gone


def children_of(process: subprocess.Popen[str]) -> set[psutil.Process]:
    if process.poll() is not None:
        return set()
    return set(psutil.Process(process.pid).children(recursive=True))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_local_cluster_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with running("--nodes", "2") as (process, addresses):
        there = ("--connect", addresses, "--insecure")
        lines("put", "k", "v", *there)
        assert lines("get", "k", *there) == ["v"]
        assert len(list(tmp_path.glob("postroom-cluster-*"))) == 1
        process.send_signal(number)
        assert process.wait(STOP_SECONDS) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_local_cluster_that_is_killed_leaves_no_node_behind(tmp_path: Path) -> None:
    there = ("--path", str(tmp_path / "c"))
    with running(*there, "--nodes", "2") as (process, addresses):
        nodes = children_of(process)
        assert len(nodes) == 2
        lines("put", "k", "v", "--connect", addresses, "--insecure")
        process.kill()
        _, alive = psutil.wait_procs(nodes, timeout=STOP_SECONDS)
        assert not alive
    for log in (tmp_path / "c").glob("node-*.log"):
        assert "standard input has ended: the node stops" in log.read_text(), "in good order"
    with running(*there) as (_, same):
        assert lines("get", "k", "--connect", same, "--insecure") == ["v"]


def test_a_node_cannot_stop_with_an_input_that_is_no_pipe(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "postroom.cli.main", "serve", "--insecure",
        "--data", str(tmp_path / "d"), "--listen", NOBODY, "--join", NOBODY,
        "--stop-at-end-of-input",
    ]  # fmt: skip
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 2
    assert "needs a pipe" in ended.stderr
    assert list(tmp_path.iterdir()) == []


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


def test_what_comes_in_is_for_whichever_node_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes of a local cluster read one pipe: the others find nothing, and must not wait."""
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    monkeypatch.setattr(serve, "STANDARD_INPUT", reads)
    try:
        serve._on_input(None, None)  # type: ignore[arg-type]  # neither is asked for anything
    finally:
        os.close(reads)
        os.close(writes)


def test_a_local_cluster_comes_back_and_tells_of_the_dead(tmp_path: Path) -> None:
    with running("--path", str(tmp_path / "c"), "--nodes", "3") as (_, addresses):
        lines("put", "k", "v", "--connect", addresses, "--insecure")
    with running("--path", str(tmp_path / "c")) as (process, same):
        assert same == addresses
        assert lines("get", "k", "--connect", same, "--insecure") == ["v"]
        victim = psutil.Process(process.pid).children()[-1]
        os.kill(victim.pid, signal.SIGKILL)
        assert process.stdout is not None
        told = process.stdout.readline()
        assert "has ended, killed by SIGKILL" in told
        assert lines("get", "k", "--connect", same, "--insecure") == ["v"]
    result = invoke("cluster", "--path", str(tmp_path / "c"), "--nodes", "5")
    assert failed_with(result, 1, "has 3 nodes")


def test_a_local_cluster_starts_again_without_a_node_that_was_removed(tmp_path: Path) -> None:
    there = ("--path", str(tmp_path / "c"))
    with running(*there, "--nodes", "3") as (process, addresses):
        lines("put", "k", "v", "--connect", addresses, "--insecure")
        *nodes, _ = records("status", "--connect", addresses, "--insecure")
        gone = next(n["node_id"] for n in nodes if n["address"] == addresses.split(",")[2])
        remove(gone, addresses)
        assert process.stdout is not None
        assert "node 3 at" in process.stdout.readline()
    with subprocess.Popen(
        [sys.executable, "-m", "postroom.cli.main", "cluster", *there],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as again:  # fmt: skip
        try:
            assert again.stdout is not None
            told = [again.stdout.readline(), again.stdout.readline()]
            assert "node 3 at" in told[0]
            assert told[1].startswith("ready: ")
            assert lines("get", "k", "--connect", addresses, "--insecure") == ["v"]
        finally:
            again.terminate()


def test_a_local_cluster_is_not_started_on_top_of_another(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with running("--path", str(path), "--nodes", "2") as (process, addresses):
        logs = [(log, log.stat().st_ino, log.read_text()) for log in path.glob("node-*.log")]
        assert len(logs) == 2
        result = invoke("cluster", "--path", str(path))
        assert failed_with(result, 1, "runs already", f"by process {process.pid};")
        port = addresses.rpartition(":")[2]
        other = ("--path", str(tmp_path / "other"), "--base-port", port)
        assert failed_with(invoke("cluster", *other), 1, f"port {port} is taken", "--base-port")
        assert not (tmp_path / "other").exists()
        for log, inode, told in logs:  # its node goes on writing what happens to it
            assert log.stat().st_ino == inode
            assert log.read_text().startswith(told)
            assert log.read_text().count("ready ") == told.count("ready ") == 1
        status_once(addresses, answers(True, True))


def test_a_local_cluster_stops_if_a_node_cannot_start(tmp_path: Path) -> None:
    damaged = tmp_path / "c" / "node-2"
    damaged.mkdir(parents=True)
    for name in ("owner", "000003.log"):
        (damaged / name).touch()
    with LocalFolder(tmp_path / "elsewhere") as folder:
        ports = folder.ports
    (tmp_path / "c" / "ports").write_text("\n".join(map(str, ports)))
    result = invoke("cluster", "--path", str(tmp_path / "c"))
    assert failed_with(
        result, 1, "node 2 at", "stopped before it was ready", "is damaged", "node-2.log"
    )
    assert result.stdout == ""


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("put", "k", "v"),
        ("demo",),
        ("serve", "--insecure", "--listen", NOBODY, "--join", NOBODY),
    ],
    ids=lambda command: command[0],
)
def test_the_folder_of_a_local_cluster_is_no_store(tmp_path: Path, command: tuple[str]) -> None:
    with LocalFolder(tmp_path / "c") as folder:
        (folder.path / "node-1.log").touch()
    before = {file.name for file in folder.path.iterdir()}
    option = "--data" if command[0] == "serve" else "--path"
    result = invoke(*command, option, str(folder.path))
    assert failed_with(result, 1, "folder of a local cluster", "--connect")
    assert {file.name for file in folder.path.iterdir()} == before


def test_help_says_that_a_temporary_cluster_is_gone() -> None:
    said = " ".join("".join(lines("cluster", "--help")).split())
    assert "Without --path, all data is gone when it ends." in said


def test_a_token_is_not_shown() -> None:
    """Where a store is, is said in tracebacks and logs."""
    for each in (Store(token="hidden"), StoreOfSpark(token="hidden"), Line(7400, "hidden")):
        assert "hidden" not in repr(each)

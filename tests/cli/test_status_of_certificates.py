"""``status`` tells of certificates that expire, and why a node does not answer."""

from __future__ import annotations

import datetime
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from postroom.cli import state
from postroom.client.remote.nodes import NodeReport, Survey
from postroom.ranges.nodes import NodeStatus
from tests.cli.commands import NOBODY, failed_with, invoke, lines, records

WAIT_SECONDS = 60.0
DAY = datetime.timedelta(days=1)


class Authority:
    """An authority that issues certificates that expire."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self._folder = folder
        self.ca = str(folder / "ca.pem")
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, left: datetime.timedelta) -> list[str]:
        """Return options that show a certificate for so much longer."""
        ends = datetime.datetime.now(datetime.UTC) + left  # noqa: TID251 - the process has that clock
        begins = ends - 400 * DAY
        issued = self._authority.issue_cert(name, not_before=begins, not_after=ends)
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        key.chmod(0o600)
        return ["--tls-ca", self.ca, "--tls-certificate", str(certificate), "--tls-key", str(key)]


@contextmanager
def served(folder: Path, tls: list[str]) -> Iterator[str]:
    """Serve a new store, and give its address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    command = ["serve", "--path", str(folder), "--listen", address, *tls]
    with subprocess.Popen(
        [sys.executable, "-m", "postroom", *command], stderr=subprocess.PIPE, text=True
    ) as node:
        try:
            assert node.stderr is not None
            while (line := node.stderr.readline()) and not line.startswith("ready"):
                pass
            assert line.strip() == f"ready {address}"
            yield address
            node.send_signal(signal.SIGTERM)
            node.communicate(timeout=WAIT_SECONDS)
        finally:
            node.kill()


def test_status_says_that_the_certificate_of_a_node_expires_soon(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = authority.issue("a-client", 100 * DAY)
    with served(tmp_path / "store", authority.issue("127.0.0.1", 3 * DAY)) as address:
        shown = lines("status", "--connect", address, *client)
        said = [line for line in shown if line.startswith("node 1: ") and " expires on " in line]
        assert len(said) == 1, shown
        node, _ = records("status", "--connect", address, *client)
        assert f"node 1: {node['certificate']}" == said[0]


def test_status_says_nothing_of_a_certificate_that_is_good_for_long(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = authority.issue("a-client", 100 * DAY)
    with served(tmp_path / "store", authority.issue("127.0.0.1", 100 * DAY)) as address:
        assert not any("expires" in line for line in lines("status", "--connect", address, *client))
        node, _ = records("status", "--connect", address, *client)
        assert node["certificate"] is None


def test_status_says_that_ones_own_certificate_has_expired(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = authority.issue("a-client", -DAY)
    with served(tmp_path / "store", authority.issue("127.0.0.1", 100 * DAY)) as address:
        result = invoke("status", "--connect", address, "--timeout", "5", *client)
    assert failed_with(result, 1, "a-client.pem", "expired on")


def test_status_says_that_the_certificate_of_a_node_has_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = NodeStatus(
        node_id=1, address=NOBODY, role="leader", leader=1, term=1, applied_index=17,
        last_index=17, serves=True, peers=(), disk_bytes=0, free_bytes=0,
        clock_offset_seconds=0.0, certificate="node.pem expired on 2026-01-01 at 00:00 UTC",
    )  # fmt: skip
    monkeypatch.setattr(state, "_survey", lambda *_: Survey([NodeReport(NOBODY, 1, leader)]))
    monkeypatch.setattr(state, "_ask_leader", lambda store: state._LeaderView())
    shown = lines("status", "--connect", NOBODY, "--insecure")
    assert "node 1: node.pem expired on 2026-01-01 at 00:00 UTC" in shown


def test_status_tells_the_versions_of_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        NodeStatus(
            node_id=number, address=NOBODY, role="follower", leader=1, term=1, applied_index=17,
            last_index=17, serves=True, peers=(), disk_bytes=0, free_bytes=0,
            clock_offset_seconds=0.0, version=version,
        )
        for number, version in ((1, "0.1.0"), (2, "0.1.0"), (3, "0.0.9"))
    ]  # fmt: skip
    found = Survey([NodeReport(NOBODY, each.node_id, each) for each in nodes])
    monkeypatch.setattr(state, "_survey", lambda *_: found)
    monkeypatch.setattr(state, "_ask_leader", lambda store: state._LeaderView())
    shown = invoke("status", "--connect", NOBODY, "--insecure")
    assert shown.exit_code == 1, "no node leads"
    assert "version 0.1.0: nodes 1, 2; version 0.0.9: node 3" in shown.stdout.splitlines()

"""The time that a polite client waits beside floods of small requests, and of large ones."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import postroom
from tests.attacks import flood, large_flood
from tests.attacks.node_process import NodeProcess, node_process

P99_SECONDS_MAX = 0.05
CALLS = 500
PAUSE_SECONDS = 0.002
ATTEMPTS = 3
"""The number of tries: other programs on the machine do not disturb each of them."""

_log = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with node_process(tmp_path_factory.mktemp("node"), secure=False) as node:
        yield node


@contextlib.contextmanager
def flooded(
    node: NodeProcess, kind: str, connections: int, program: ModuleType = flood
) -> Iterator[None]:
    command = [sys.executable, str(program.__file__), node.address, kind, str(connections)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "began\n"
            yield
            assert process.poll() is None, "the node has ended a stream"
        finally:
            process.kill()


def get(db: postroom.Database) -> None:
    """Read a key."""
    db.get(b"k")


def put(db: postroom.Database) -> None:
    """Write a key."""
    db.put(b"k", b"v")


def send(db: postroom.Database) -> None:
    """Write a key and send a message, in one transaction."""
    with db.begin() as tx:
        tx.put(b"k", b"v")
        tx.enqueue_message(b"inbox", b"message")


def p99_seconds(node: NodeProcess, call: Callable[[postroom.Database], None] = get) -> float:
    """Return the wait of a polite client for the slowest of a hundred calls."""
    waited = []
    with node.connect() as db:
        for _ in range(CALLS):
            began = time.perf_counter()
            call(db)
            waited.append(time.perf_counter() - began)
            threading.Event().wait(PAUSE_SECONDS)
    _log.info("slowest %.0f ms", 1000 * max(waited))
    return sorted(waited)[CALLS * 99 // 100]


@pytest.mark.parametrize("connections", [4, 40])
@pytest.mark.parametrize("kind", flood.KINDS)
def test_a_polite_client_waits_for_less_than_50_ms_beside_a_flood(
    node: NodeProcess, kind: str, connections: int
) -> None:
    waited = []
    for _ in range(ATTEMPTS):
        with flooded(node, kind, connections):
            waited.append(p99_seconds(node))
        if waited[-1] <= P99_SECONDS_MAX:
            break
    _log.info("%s, %d connections: p99 %.1f ms", kind, connections, 1000 * waited[-1])
    assert min(waited) <= P99_SECONDS_MAX, waited


SESSIONS = {"large commits": 1, "many spans": 20, **dict.fromkeys(large_flood.DELETIONS, 1)}


@pytest.mark.parametrize("call", [get, put, send])
@pytest.mark.parametrize("kind", SESSIONS)
def test_a_polite_client_waits_for_less_than_50_ms_beside_large_requests(
    tmp_path: Path, kind: str, call: Callable[[postroom.Database], None]
) -> None:
    waited = []
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with (
            node_process(folder, secure=False) as node,
            flooded(node, kind, SESSIONS[kind], large_flood),
        ):
            waited.append(p99_seconds(node, call))
        if waited[-1] <= P99_SECONDS_MAX:
            break
    _log.info("%s beside %s: p99 %.1f ms", call.__name__, kind, 1000 * waited[-1])
    assert min(waited) <= P99_SECONDS_MAX, waited

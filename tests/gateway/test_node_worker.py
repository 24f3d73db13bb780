"""The example in Node.js: a worker that survives killed nodes and gateways."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import postroom
from tests.gateway.processes import free_address, running

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "node_worker"
PROTO: Final = Path(__file__).parents[2] / "postroom" / "gateway" / "postroom.proto"
MESSAGES: Final = 200
SECONDS_MAX: Final = 120.0


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the example with its libraries, installed as its README says."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("node") / "node_worker"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules"))
    shutil.copy(PROTO, folder)
    installed = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund"],
        check=False, cwd=folder, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    if installed.returncode:
        pytest.skip(f"npm cannot install the libraries here: {installed.stderr[-300:]}")
    return folder


@contextmanager
def _nodes(folder: Path, number: int) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    addresses = [free_address() for _ in range(number)]
    with ExitStack() as stack:
        processes = {}
        for place, address in enumerate(addresses):
            command = [sys.executable, "-m", "postroom", "serve", "--insecure", "--listen", address]
            command += ["--data", str(folder / f"node-{place}"), "--join", ",".join(addresses)]
            log = stack.enter_context((folder / f"node-{place}.log").open("wb"))
            process = subprocess.Popen(command, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes[address] = process
        yield processes


@contextmanager
def _node_js(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    log = folder / "worker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["node", *arguments], cwd=folder, stdout=output, stderr=output, env=dict(os.environ)
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _until(holds: Callable[[], bool], told: Callable[[], Any]) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < end, told()
        time.sleep(0.1)  # noqa: TID251 - processes work meanwhile


def _enqueue(example: Path, gateways: str, prefix: str) -> None:
    subprocess.run(
        ["node", "enqueue.js", gateways, "jobs", str(MESSAGES), prefix],
        check=True, cwd=example, timeout=SECONDS_MAX,
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [["worker.js"], ["worker.js", "127.0.0.1:1"], ["enqueue.js", "127.0.0.1:1", "jobs"]],
)
def test_a_program_in_node_without_its_arguments_says_which_it_needs(
    example: Path, arguments: list[str]
) -> None:
    command = ["node", *arguments]
    done = subprocess.run(
        command, check=False, cwd=example, capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert (done.returncode, done.stderr.partition(" node ")[0]) == (2, "usage:")


def test_a_single_message_is_enqueued_and_a_missing_queue_is_told(
    example: Path, tmp_path: Path
) -> None:
    store, address = str(tmp_path / "store"), free_address()
    with postroom.open(store) as db:
        db.create_queue("jobs")
    with running("gateway", "--path", store, "--listen", address, "--listen-insecure"):
        for queue, code, told in (("jobs", 0, ""), ("missing", 1, "there is no queue 'missing'")):
            done = subprocess.run(
                ["node", "enqueue.js", address, queue, "1"],
                check=False, cwd=example, capture_output=True, text=True, timeout=SECONDS_MAX,
            )  # fmt: skip
            assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    with postroom.open(store) as db:
        assert db.queue("jobs").stats().ready == 1


@pytest.mark.timeout(600)
def test_a_worker_in_node_survives_a_killed_node_and_a_killed_gateway(
    example: Path, tmp_path: Path
) -> None:
    gateways = [free_address(), free_address()]
    everywhere = ",".join(gateways)
    with _nodes(tmp_path, 3) as nodes, ExitStack() as stack:
        addresses = ",".join(nodes)
        db = stack.enter_context(
            postroom.connect(addresses, insecure=True, connect_timeout=60, timeout=60)
        )
        db.create_queue("jobs", ack_wait=3, min_backoff=0.1)
        beside = [
            stack.enter_context(
                running("gateway", "--connect", addresses, "--insecure", "--listen", each)
            )
            for each in gateways
        ]
        worker = stack.enter_context(_node_js(example, "worker.js", everywhere, "jobs"))

        def done() -> int:
            return sum(1 for _ in db.scan(b"done/", b"done0"))

        def told() -> str:
            return f"{done()} done\n{(example / 'worker.log').read_text()[-2000:]}"

        _enqueue(example, everywhere, "first")
        _until(lambda: done() > MESSAGES // 10, told)
        status = db.status()
        leader = next(each.address for each in status.nodes if each.node_id == status.leader)
        nodes[leader].kill()
        _until(lambda: done() == MESSAGES, told)
        _enqueue(example, everywhere, "second")
        _until(lambda: done() > MESSAGES + MESSAGES // 10, told)
        beside[0].kill()
        _until(lambda: done() == 2 * MESSAGES, told)
        counts = {postroom.integer(value) for _, value in db.scan(b"done/", b"done0")}
        assert counts == {1}, told()  # each message was done once
        assert not db.queue("jobs").dead_letters()
        worker.terminate()
        assert worker.wait(30) == 0, told()

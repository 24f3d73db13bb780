"""A node as it is served: what keeps it from starting, the services beside it, and its end."""

from __future__ import annotations

import errno
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.client.remote.native import host_and_port
from postroom.errors import Invalid, StoreCorrupted, StoreLocked, Unavailable
from postroom.kv.engine import EngineFailed
from postroom.kv.engine_folder import engine_of
from postroom.kv.keys import head_key
from postroom.kv.opening import open_engine
from postroom.server.cluster import serving as node_process
from postroom.server.opening import open_storage
from tests.kv.on_disk import INSTALLED
from tests.server.cluster.served import Serving, serving
from tests.server.cluster.streams import run, until


async def _do_nothing() -> None:
    pass


class Companion:
    """A service beside a node that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.at_start: Callable[[], Awaitable[None]] = _do_nothing
        self.at_stop: Callable[[], Awaitable[None]] = _do_nothing

    async def start(self) -> None:
        self.calls.append("start")
        await self.at_start()

    async def stop(self) -> None:
        self.calls.append("stop")
        await self.at_stop()


# --- folders and ports ----------------------------------------------------------------------------


def test_a_folder_in_use(tmp_path: Path, addresses: list[str]) -> None:
    async def main() -> None:
        with postroom.open(tmp_path / "a"), pytest.raises(StoreLocked, match="process"):
            Serving(tmp_path / "a", addresses[0])

    run(main())


def test_nodes_of_one_cluster_may_have_different_engines(
    tmp_path: Path, addresses: list[str]
) -> None:
    first, second = INSTALLED[-1], INSTALLED[0]

    async def main() -> None:
        async with (
            serving(tmp_path / "a", addresses[0], engine=first) as founder,
            serving(tmp_path / "b", addresses[1], addresses[0], engine=second) as later,
        ):
            group = founder.served.node.root.replica.group
            await until(lambda: later.served.node.node_id in group.members)
            async with await postroom.aio.connect(addresses[0], insecure=True) as db:
                await db.put(b"key", b"value")
            await until(lambda: later.served.node.engine.get(head_key(b"key")) is not None)

    run(main())
    assert [engine_of(tmp_path / name) for name in "ab"] == [first, second]


def test_a_foreign_database_is_left_alone(tmp_path: Path, addresses: list[str]) -> None:
    engine = open_engine(tmp_path / "a")
    engine.write({b"somebody's": b"data"}, sync=True)
    engine.close()

    async def main() -> None:
        with pytest.raises(StoreCorrupted, match="not a Postroom store"):
            await Serving(tmp_path / "a", addresses[0]).task

    run(main())
    engine = open_engine(tmp_path / "a")
    assert list(engine.iterate(b"", b"\xff")) == [(b"somebody's", b"data")]
    engine.close()


def test_a_port_in_use(tmp_path: Path, addresses: list[str]) -> None:
    async def main() -> None:
        async with serving(tmp_path / "a", addresses[0]):
            with pytest.raises(Invalid, match=f"cannot listen at {addresses[0]}"):
                await Serving(tmp_path / "b", addresses[0]).task
            assert not (tmp_path / "b").exists()

    run(main())


def test_a_node_refuses_callers_until_its_folder_is_open(
    tmp_path: Path, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that is refused asks another node at once; one that is left waiting does not."""
    tried: list[int] = []

    def opened(*given: Any, **options: Any) -> Any:
        with socket.socket() as caller:
            tried.append(caller.connect_ex(host_and_port(addresses[0])))
        return open_storage(*given, **options)

    monkeypatch.setattr(node_process, "open_storage", opened)

    async def main() -> None:
        async with serving(tmp_path / "a", addresses[0]):
            assert tried == [errno.ECONNREFUSED]

    run(main())


def test_a_fresh_node_can_be_stopped_while_it_waits(tmp_path: Path, addresses: list[str]) -> None:
    async def main() -> None:
        node, companion = Serving(tmp_path / "a", *addresses), Companion()
        node.served.companions.append(companion)
        await until(lambda: companion.calls)
        assert not node.served.is_serving
        await node.stop()
        assert not node.ready.is_set()

    run(main())
    with pytest.raises(Invalid, match="waits for its place"):
        postroom.open(tmp_path / "a")


# --- the services beside a node, and the end ------------------------------------------------------


def test_a_node_serves_as_long_as_it_knows_who_leads(tmp_path: Path, addresses: list[str]) -> None:
    first, second, _ = addresses

    async def main() -> None:
        async with serving(tmp_path / "a", first) as node:
            assert node.served.is_serving
            async with serving(tmp_path / "b", second, first) as joined:
                group = joined.served.node.root.replica.group
                await until(lambda: len(group.members) == 2)
            # One of two is no majority.
            await until(lambda: not node.served.is_serving)

    run(main())


def test_a_companion_starts_before_the_node_joins_and_stops_while_it_serves(
    tmp_path: Path, addresses: list[str]
) -> None:
    async def main() -> None:
        node, companion = Serving(tmp_path / "a", addresses[0]), Companion()
        node.served.companions.append(companion)

        async def is_early() -> None:
            assert not node.ready.is_set()
            assert not node.served.is_serving

        async def put() -> None:
            async with await postroom.aio.connect(addresses[0], insecure=True) as db:
                await db.put(b"key", b"last")

        companion.at_start, companion.at_stop = is_early, put
        await node.wait_ready()
        await node.stop()
        assert companion.calls == ["start", "stop"]

    run(main())
    with postroom.open(tmp_path / "a") as db:
        assert db.get(b"key") == b"last"


def test_a_companion_that_cannot_start_ends_the_node_and_is_stopped(
    tmp_path: Path, addresses: list[str]
) -> None:
    async def main() -> None:
        node, companion = Serving(tmp_path / "a", addresses[0]), Companion()

        async def fail() -> None:
            raise Invalid("its port is in use")

        companion.at_start = fail
        node.served.companions.append(companion)
        with pytest.raises(Invalid, match="its port is in use"):
            await node.task
        assert companion.calls == ["start", "stop"]

    run(main())


def test_a_companion_that_cannot_stop_does_not_keep_the_folder_locked(
    tmp_path: Path, addresses: list[str]
) -> None:
    async def main() -> None:
        node, companion = Serving(tmp_path / "a", addresses[0]), Companion()
        node.served.companions.append(companion)
        await node.wait_ready()

        async def fail() -> None:
            raise Unavailable("it hangs")

        companion.at_stop = fail
        with pytest.raises(Unavailable, match="it hangs"):
            await node.stop()

    run(main())
    postroom.open(tmp_path / "a").close()


def test_a_node_ends_when_its_disk_fails(tmp_path: Path, addresses: list[str]) -> None:
    async def main() -> None:
        async with serving(tmp_path / "a", addresses[0]) as node:
            engine = node.served.node.engine

            def fail(writes: object, *, sync: bool) -> None:
                raise EngineFailed("the disk is gone")

            async with await postroom.aio.connect(addresses[0], insecure=True) as db:
                # Connecting may take longer.
                db._sender.router._request_seconds = 2.0  # type: ignore[attr-defined]
                engine.write = engine.write_turn = fail
                with pytest.raises(postroom.Error):
                    await db.put(b"key", b"value")
            with pytest.raises(Unavailable, match="the disk is gone"):
                await node.task

    run(main())


def test_a_failing_background_task_ends_the_node(tmp_path: Path, addresses: list[str]) -> None:
    async def main() -> None:
        async with serving(tmp_path / "a", addresses[0]) as node:

            async def breaks() -> None:
                raise ZeroDivisionError("a bug")

            node.served._spawn(breaks())
            with pytest.raises(postroom.Error, match="a bug"):
                await node.task

    run(main())


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "postroom.cli.main", "serve", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(tmp_path: Path, addresses: list[str], number: signal.Signals) -> None:
    first = addresses[0]
    process = start(
        "--insecure", "--data", str(tmp_path / "a"), "--listen", first, "--join", first
    )  # fmt: skip
    assert process.stderr is not None
    with process.stderr:
        for line in process.stderr:
            if line == f"ready {first}\n":
                break
        process.send_signal(number)
        rest = process.stderr.read()
        assert process.wait(120) == 0, rest
    assert "Traceback" not in rest


def test_a_failed_start_is_explained_in_one_line(tmp_path: Path, addresses: list[str]) -> None:
    with postroom.open(tmp_path / "a"):
        process = start(
            "--insecure", "--data", str(tmp_path / "a"), "--listen", addresses[0],
            "--join", addresses[0],
        )  # fmt: skip
        _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert said.startswith("postroom: The store in ")
    assert len(said.splitlines()) == 1

"""``connect`` on loopback: addresses, options, nodes that go away, threads and forks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.client.remote import sender as senders
from postroom.client.remote.native import dial
from postroom.errors import Invalid, Unavailable
from postroom.ranges.requests import Protect
from postroom.server.cluster.admission import NodeLimits
from tests.remote.servers import Server, why_not

# --- the front door


def test_without_tls_only_when_asked_for() -> None:
    with pytest.raises(Invalid, match="insecure=True"):
        postroom.connect("127.0.0.1:7400")


@pytest.mark.parametrize(
    ("addresses", "error"),
    [
        ("", ValueError),
        ("localhost", ValueError),
        ("a:1,b", ValueError),
        ("a:70000", ValueError),
        ("::1:7400", ValueError),
        ([], ValueError),
        ([1], TypeError),
        (7400, TypeError),
        (b"localhost:7400", TypeError),
    ],
)
def test_addresses_are_checked(addresses: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="host:port"):
        postroom.connect(addresses, insecure=True)


@pytest.mark.parametrize(
    "options",
    [{"timeout": "1"}, {"token": b"x"}, {"tls": "ca.pem"}],
    ids=str,
)
def test_options_are_checked(options: Any) -> None:
    with pytest.raises(TypeError):
        postroom.connect("a:1", **{"insecure": "tls" not in options, **options})


def test_an_address_without_a_listener_is_unavailable() -> None:
    error = why_not(r"127\.0\.0\.1:1: .*refused", "127.0.0.1:1", insecure=True)
    assert type(error) is Unavailable


@pytest.mark.parametrize("address", ["a..b:7400", f"{'x' * 70}.b:7400", "127.0.0.1:70000", "port"])
def test_an_impossible_address_is_like_one_without_a_listener(address: str) -> None:
    """The task that called it ended with an error that nobody looked at, a node's for good."""
    with pytest.raises(OSError, match="no address"):
        asyncio.run(dial(address, None, lambda: pytest.fail("connected")))


def test_a_name_that_cannot_be_looked_up_is_like_one_without_a_listener() -> None:
    """Python does that in a thread, and the system may have none to give."""

    async def story() -> None:
        def look_up(*_: Any, **__: Any) -> Any:
            raise RuntimeError("can't start new thread")

        asyncio.get_running_loop().getaddrinfo = look_up  # type: ignore[method-assign]
        with pytest.raises(OSError, match="new thread"):
            await dial("localhost:7400", None, lambda: pytest.fail("connected"))

    asyncio.run(story())


def test_connecting_can_be_tried_again_after_a_thread_could_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one waited for ever, for an event loop that nobody ran."""

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(senders, "_background", None)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(RuntimeError, match="new thread"):
        postroom.connect("127.0.0.1:1", insecure=True)
    assert senders._background is None


def test_one_address_that_can_be_reached_is_enough(server: Server) -> None:
    with postroom.connect(f"127.0.0.1:1, {server.address},", insecure=True) as db:
        db.put(b"a", b"1")
        assert db.get(b"a") == b"1"


NO_GRPC = """
import sys
import postroom

with postroom.connect(sys.argv[1], insecure=True) as db:
    db.put(b"a", b"1")
print([name for name in sys.modules if name.startswith("grpc")])
"""


def test_a_client_loads_no_grpc(server: Server) -> None:
    command = [sys.executable, "-c", NO_GRPC, server.address]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "[]\n"


# --- nodes that go away


def test_a_restart_is_a_pause(server: Server) -> None:
    with postroom.connect(server.address, insecure=True) as db:
        _restart_under(db, server)


def _restart_under(db: postroom.Database, server: Server) -> None:
    db.put(b"a", b"1")
    server.stop()
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(db.increment(b"n%d" % n)))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    server.start()
    for thread in threads:
        thread.join()
    assert results == [1] * 8
    assert db.get(b"a") == b"1"


def test_the_deadline_ends_a_call_to_a_server_that_stays_away(server: Server) -> None:
    with postroom.connect(server.address, insecure=True) as db:
        sender: Any = db._blocking
        sender._sender.router._request_seconds = 2.0  # connecting may have taken longer
        server.stop()
        with pytest.raises(Unavailable, match="nothing was changed"):
            db.put(b"a", b"1")
        server.start()


def test_a_transaction_goes_on_after_a_restart(server: Server, db: postroom.Database) -> None:
    db.put(b"a", b"1")
    with db.begin() as tx:
        assert tx.get(b"a") == b"1"
        server.stop()
        server.start()
        tx.put(b"a", b"2")
    assert db.get(b"a") == b"2"


def test_a_snapshot_lives_on_after_a_restart(server: Server, db: postroom.Database) -> None:
    db.put(b"a", b"1")
    with db.snapshot() as snapshot:
        server.stop()
        server.start()
        db.put(b"a", b"2")
        assert snapshot.get(b"a") == b"1"


def test_a_watch_goes_on_after_a_restart(server: Server, db: postroom.Database) -> None:
    changes = db.watch(b"a", b"z")
    db.put(b"k", b"1")
    assert next(changes).value == b"1"
    server.stop()
    server.start()
    db.put(b"k", b"2")
    assert next(changes).value == b"2"
    changes.close()


# --- many threads, interrupts, forks


def test_a_wait_is_pushed(db: postroom.Database) -> None:
    got: list[bytes] = []

    def wait() -> None:
        with db.begin() as tx:
            got.extend(message.value for message in tx.reap_queue(b"k", wait=60))

    thread = threading.Thread(target=wait)
    thread.start()
    with db.begin() as tx:
        tx.enqueue_message(b"k", b"m")
    thread.join(60)
    assert got == [b"m"]


def test_overload_is_told_early(tmp_path: Path) -> None:
    with (
        Server(limits=NodeLimits(requests_max=0, retry_after_seconds=0.5)) as server,
        pytest.raises(Unavailable, match="takes no more") as refused,
    ):
        postroom.connect(server.address, insecure=True)
    assert refused.value.retry_after == 0.5


def test_after_close_nothing_is_left_at_the_node(server: Server) -> None:
    db = postroom.connect(server.address, insecure=True)
    changes = db.watch(b"a")
    watcher = threading.Thread(target=lambda: _swallow(changes))
    watcher.start()
    db.put(b"b", b"1")
    db.close()
    db.close()
    watcher.join(60)
    assert not watcher.is_alive(), "it is told"

    async def gone() -> None:
        while len(server.sessions) or server.sessions.admission.requests:
            await asyncio.sleep(0.002)

    server.on_loop(asyncio.wait_for(gone(), 25))
    with pytest.raises(Invalid, match="connect again"):
        db.get(b"b")


def _swallow(changes: Iterator[Any]) -> None:
    with pytest.raises(Invalid, match="closed"):
        next(changes)


FORKING = """
import os, sys
import postroom

db = postroom.connect(sys.argv[1], insecure=True)
child = os.fork()
if child == 0:
    try:
        db.get(b"a")
    except postroom.Invalid as error:
        print("child:", error, flush=True)
    try:
        with postroom.connect(sys.argv[1], insecure=True) as own:
            own.put(b"a", b"child's")
    except postroom.Error as error:
        print("child:", error, flush=True)
    os._exit(0)
print("ended with", os.waitpid(child, 0)[1], db.get(b"a"), flush=True)
db.close()
"""


def test_the_child_of_a_fork_connects_anew(server: Server) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKING, server.address],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout.count("connect after forking") == 1
    assert 'ended with 0 b"child\'s"' in ran.stdout


def test_an_interrupt_ends_the_wait_and_withdraws_it(
    server: Server, db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = db.watch(b"a")
    main = threading.get_ident()

    def interrupt() -> None:
        import ctypes  # noqa: PLC0415 - what an interrupt is made of

        while not server.sessions.admission.requests:
            threading.Event().wait(0.002)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(main), ctypes.py_object(KeyboardInterrupt)
        )
        db.put(b"a", b"1")  # an exception of that kind is noticed when the lock is had

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        next(changes)
    thread.join()
    assert db.get(b"a") == b"1"


def test_an_answer_that_comes_with_an_interrupt_is_taken_back(server: Server) -> None:
    """Control-C just when it is there: what it protects would stay so as long as its client."""
    with postroom.connect(server.address, insecure=True) as db:
        sender: Any = db._blocking
        answer = sender.send(Protect())
        while not answer._answered:
            db.get(b"a")
        assert server.on_loop(_protections(server)) == 1
        sender.cancel(answer)
        db.get(b"a")  # the request before it was done
        assert server.on_loop(_protections(server)) == 0


async def _protections(server: Server) -> int:
    return server.sessions.node.replicas.sizes()["protections"]

"""``connect`` over gRPC on loopback: the front door, and what happens when the node goes away."""

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
from postroom.client.remote.connect import parsed
from postroom.errors import AccessDenied, Invalid, TransactionConflict, Unavailable
from postroom.kv.clock import Timestamp
from postroom.server.cluster.access_files import Tokens
from postroom.server.cluster.admission import Limits
from tests.client.test_asyncio import on_a_loop, reap, send, until_it_waits
from tests.remote.certificates import Authority
from tests.remote.servers import Server


@pytest.fixture(params=[False, True], ids=["native", "grpc"])
def old(request: pytest.FixtureRequest) -> bool:
    """Whether the node is one of the first release, which speaks gRPC only."""
    which: bool = request.param
    return which


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def either(old: bool) -> Iterator[Server]:
    """A node of either kind."""
    with Server(old=old) as server:
        yield server


@pytest.fixture
def db(server: Server) -> Iterator[postroom.Database]:
    with postroom.connect(server.address, insecure=True) as db:
        yield db


LOCKED = b"""-----BEGIN EC PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: AES-128-CBC,00112233445566778899AABBCCDDEEFF

AAECAwQFBgcICQoLDA0ODw==
-----END EC PRIVATE KEY-----
"""

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


def test_where_nobody_listens_it_says_so() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1: .*refused"):
        postroom.connect("127.0.0.1:1", insecure=True, timeout=0.3)


def test_one_address_that_can_be_reached_is_enough(server: Server) -> None:
    with postroom.connect(f"127.0.0.1:1, {server.address},", insecure=True) as db:
        db.put(b"a", b"1")
        assert db.get(b"a") == b"1"


def test_without_grpc_a_client_lacks_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(old=True) as old:
        monkeypatch.setitem(sys.modules, "grpc", None)
        with postroom.connect(server.address, insecure=True) as db:
            db.put(b"a", b"1")
            assert db.get(b"a") == b"1"
        with pytest.raises(Unavailable, match=r"pip install \"postroom\[server\]\""):
            postroom.connect(old.address, insecure=True, timeout=0.5)
        monkeypatch.undo()


NO_GRPC = """
import sys
import postroom

with postroom.connect(sys.argv[1], insecure=True) as db:
    db.put(b"a", b"1")
print([name for name in sys.modules if name.startswith("grpc")])
"""


def test_grpc_is_not_loaded_where_it_is_not_needed(server: Server) -> None:
    command = [sys.executable, "-c", NO_GRPC, server.address]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "[]\n"


# --- who may come in


def test_with_certificates_of_one_authority(tmp_path: Path, old: bool) -> None:
    authority = Authority(tmp_path / "ca")
    with (
        Server(authority.server(), old=old) as server,
        postroom.connect(server.address, tls=authority.client()) as db,
    ):
        db.put(b"a", b"1")
        assert db.get(b"a") == b"1"


def _foreign_client(tmp_path: Path, own: Authority) -> postroom.TLS:
    foreign = Authority(tmp_path / "foreign").client()
    return postroom.TLS(own.ca, foreign.certificate, foreign.key)


def test_a_node_of_another_authority_is_refused(tmp_path: Path, old: bool) -> None:
    authority = Authority(tmp_path / "ca")
    tls = Authority(tmp_path / "foreign").client()
    with (
        Server(authority.server(), old=old) as server,
        pytest.raises(AccessDenied, match="ca="),
    ):
        postroom.connect(server.address, tls=tls, timeout=3.0)


def test_a_client_whose_certificate_the_node_does_not_know_gets_nothing(
    tmp_path: Path, old: bool
) -> None:
    authority = Authority(tmp_path / "ca")
    with Server(authority.server(), old=old) as server:
        for tls in (_foreign_client(tmp_path, authority), postroom.TLS(authority.ca)):
            with pytest.raises(AccessDenied, match="certificate"):
                postroom.connect(server.address, tls=tls, timeout=0.5)
        with pytest.raises(AccessDenied, match="tls="):
            postroom.connect(server.address, insecure=True, timeout=0.5)
        assert len(server.sessions) == 0


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"nothing\.pem"):
        postroom.connect("127.0.0.1:1", tls=postroom.TLS(tmp_path / "nothing.pem"))
    with pytest.raises(Invalid, match="together"):
        postroom.connect("127.0.0.1:1", tls=postroom.TLS("ca", certificate="x"))


def test_an_ipv6_address_wants_brackets() -> None:
    with pytest.raises(ValueError, match=r"\[::1\]:7400"):
        postroom.connect("::1:7400", insecure=True)
    assert parsed("[::1]:7400") == ["[::1]:7400"]


def test_files_that_are_of_no_use_are_named_at_once(tmp_path: Path) -> None:
    ca, certificate, key = Authority(tmp_path / "ca").client()
    assert certificate is not None
    assert key is not None
    other = Authority(tmp_path / "other").client().key
    (tmp_path / "text").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "locked").write_bytes(LOCKED)
    for tls, words in (
        (postroom.TLS(tmp_path / "text"), r"text .* no certificate"),
        (postroom.TLS(ca, tmp_path / "text", key), r"text .* no certificate"),
        (postroom.TLS(ca, certificate, tmp_path / "text"), r"text .* no key"),
        (postroom.TLS(ca, certificate, tmp_path / "locked"), r"locked .* without a password"),
        (postroom.TLS(ca, certificate, other), r"a-client\.key does not belong to .*a-client\.pem"),
    ):
        with pytest.raises(Invalid, match=words):
            postroom.connect("127.0.0.1:1", tls=tls)


def test_a_node_whose_certificate_is_for_another_host_is_refused_at_once(
    tmp_path: Path, old: bool
) -> None:
    authority = Authority(tmp_path / "ca")
    with Server(authority.server(), old=old) as server:
        elsewhere = server.address.replace("127.0.0.1", "localhost")
        with pytest.raises(AccessDenied, match="names this address"):
            postroom.connect(elsewhere, tls=authority.client(), timeout=10.0)


@pytest.mark.parametrize("token", ["t\xe4ken", "two\nlines"])
def test_a_token_that_no_node_can_accept(token: str) -> None:
    with pytest.raises(Invalid, match="printable ASCII") as refused:
        postroom.connect("127.0.0.1:1", insecure=True, token=token)
    assert token not in str(refused.value)


def test_a_wrong_token_is_refused_at_once(tmp_path: Path, old: bool) -> None:
    authority = Authority(tmp_path / "ca")
    (tmp_path / "tokens").write_text("sesame\n")
    security, tls = authority.server(Tokens(tmp_path / "tokens")), authority.client()
    with Server(security, old=old) as server:
        for token, words in ((None, "asks for a token"), ("open", "not known here.*token=")):
            with pytest.raises(AccessDenied, match=words):
                postroom.connect(server.address, tls=tls, token=token)
        with postroom.connect(server.address, tls=tls, token="sesame") as db:
            db.put(b"a", b"1")


# --- nodes that go away


def test_a_restart_is_a_pause(either: Server) -> None:
    with postroom.connect(either.address, insecure=True) as db:
        _restart_under(db, either)


@pytest.mark.parametrize("upgraded", [True, False])
def test_a_client_goes_on_when_a_node_comes_back_as_another_version(upgraded: bool) -> None:
    with (
        Server(old=upgraded) as server,
        postroom.connect(server.address, insecure=True) as db,
    ):
        _restart_under(db, server, old=not upgraded)


def _restart_under(db: postroom.Database, server: Server, *, old: bool | None = None) -> None:
    db.put(b"a", b"1")
    server.stop()
    server.old = server.old if old is None else old
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


def test_when_it_stays_away_the_deadline_ends_it(server: Server) -> None:
    with postroom.connect(server.address, insecure=True, timeout=0.5) as db:
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
            got.extend(message.value for message in tx.reap_queue(b"k", wait=20))

    thread = threading.Thread(target=wait)
    thread.start()
    with db.begin() as tx:
        tx.enqueue_message(b"k", b"m")
    thread.join(10)
    assert got == [b"m"]


def test_overload_is_told_early(tmp_path: Path) -> None:
    with (
        Server(limits=Limits(requests_max=0, retry_after_seconds=0.5)) as server,
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
    watcher.join(10)
    assert not watcher.is_alive(), "it is told"

    async def gone() -> None:
        while len(server.sessions) or server.sessions.admission.requests:
            await asyncio.sleep(0.002)

    server.on_loop(asyncio.wait_for(gone(), 10))
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


def test_the_child_of_a_fork_connects_anew(either: Server) -> None:
    """gRPC, if it was used, does not work there."""
    ran = subprocess.run(
        [sys.executable, "-c", FORKING, either.address],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout.count("connect after forking") == (2 if either.old else 1)
    written = None if either.old else b"child's"
    assert f"ended with 0 {written}" in ran.stdout


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


# --- the asyncio form


@on_a_loop
async def test_the_database_awaited(server: Server) -> None:
    async with await postroom.aio.connect(server.address, insecure=True) as db:
        await db.put(b"a", b"1")
        before = await db.now()
        assert isinstance(before, Timestamp)
        await db.delete(b"a")
        assert await db.get(b"a", at=before) == b"1"
        assert [key async for key, _ in db.scan(at=before)] == [b"a"]
        await send(db, b"k", b"m")
        await db.drain()
        assert await reap(db, b"k") == [b"m"]
        async with db.snapshot() as snapshot:
            await db.put(b"a", b"3")
            assert await snapshot.get(b"a") is None
        assert (await db.status()).reaped == 1


@on_a_loop
async def test_both_spellings_of_now(path: Path) -> None:
    async with await postroom.aio.open(":memory:") as db:
        moment = db.now()
        assert isinstance(moment, Timestamp)
        assert await db.now() > moment


@pytest.fixture
def path() -> str:
    return ":memory:"


@on_a_loop
async def test_many_at_once_share_frames_and_writes(server: Server) -> None:
    async with await postroom.aio.connect(server.address, insecure=True) as db:
        await asyncio.gather(*(db.increment(b"n") for _ in range(500)))
        assert postroom.integer(await db.get(b"n")) == 500


@on_a_loop
async def test_a_cancelled_wait_holds_nothing(server: Server) -> None:
    async with await postroom.aio.connect(server.address, insecure=True) as db:
        waiting = asyncio.create_task(reap(db, b"k", wait=30))
        await until_it_waits(waiting)
        await db.get(b"a")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await send(db, b"k", b"m")
        assert await reap(db, b"k", wait=5) == [b"m"]


@on_a_loop
async def test_watching_awaited(server: Server) -> None:
    async with await postroom.aio.connect(server.address, insecure=True) as db:
        changes = db.watch(b"a")
        await db.put(b"a", b"1")
        assert (await anext(changes)).value == b"1"
        await changes.aclose()


@on_a_loop
async def test_conflicts_are_retried(server: Server) -> None:
    async with await postroom.aio.connect(server.address, insecure=True) as db:

        async def add(tx: postroom.aio.Transaction) -> None:
            before = postroom.integer(await tx.get(b"n"))
            await asyncio.sleep(0)
            await tx.increment(b"n", 1 if before >= 0 else 0)

        await asyncio.gather(*(db.run(add) for _ in range(20)))
        assert postroom.integer(await db.get(b"n")) == 20
        tx = db.begin()
        await tx.get(b"n")
        await db.increment(b"n")
        tx.put(b"n", b"x")
        with pytest.raises(TransactionConflict):
            await tx.commit()


@on_a_loop
async def test_closing_ends_every_wait(server: Server) -> None:
    db = await postroom.aio.connect(server.address, insecure=True)
    waiting = asyncio.create_task(reap(db, b"k", wait=30))
    await until_it_waits(waiting)
    await db.put(b"a", b"1")
    await db.close()
    await db.close()
    with pytest.raises(Invalid, match="closed"):
        await waiting

"""The same hostile requests from everybody who can reach a node over the network.

========== ================================================= =====================================
caller     shows                                             what comes of it
========== ================================================= =====================================
plain      nothing: TCP without TLS                          nothing is read
bare       TLS without a certificate                         nothing is read
foreign    a certificate of another authority                nothing is read
client     a certificate of a client                         the request is refused, and says why
node       a certificate that is valid for a node's host     the same: it is no node by that, and
                                                             no administrator
========== ================================================= =====================================

Afterwards nothing has changed in the store, no session is left, and others are served.
``test_nodes.py`` has what a node of the cluster may say in its own name.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any, Final, NamedTuple

import msgspec
import pytest

import postroom
from postroom import limits
from postroom.client.remote.native import offering_native
from postroom.messaging.requests import EnqueueMessage, EnqueueUpdate
from postroom.protocol import frames, streams
from postroom.raft.messages import Append, Clocks, Vote, encode_frame
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.nodes import AdmitNode, RebindNode, RetireNode
from postroom.ranges.protections import KeepPosition
from postroom.ranges.requests import (
    Accounting,
    CommitTransaction,
    GetMany,
    Put,
    ReleaseLocks,
)
from postroom.server.cluster.dialing import PROTOCOL_VERSION, Introduction
from tests.remote.certificates import Authority
from tests.remote.client_names import client_id, secret_of
from tests.remote.servers import Server

NAME: Final = client_id(b"attacker")
TERM: Final = 2**63 - 1
NUMBER: Final = (1).to_bytes(8, "big")
VICTIM: Final = frames.draw_identity(Random("victim"))
NESTED: Any = "deepest"
for _ in range(limits.HEADERS_DEPTH_MAX + 1):
    NESTED = {"n": NESTED}


def commit(*writes: Any, client: bytes = NAME) -> CommitTransaction[Any]:
    """Make a commit; its field ``began`` is filled in when it is sent."""
    return CommitTransaction(client + NUMBER, 0, 60.0, 0, b"k", [], [], list(writes))


class Row(NamedTuple):
    """A request, with the error that a client with access gets, or the end of that error."""

    request: Any
    refused: str


ROWS: Final = {
    "an accounting of 4,096 prefixes": Row(
        commit(EnqueueUpdate(Accounting(b"/".join([b"a"] * 4096), {"m" * 200: 1}), 0)),
        "ValueTooLarge",
    ),
    "too many metrics": Row(
        commit(Accounting(b"k", {f"{n}": 1 for n in range(limits.METRICS_MAX + 1)})),
        "ValueTooLarge",
    ),
    "headers of 65 KiB": Row(
        commit(EnqueueMessage(b"k", b"v", {"h": "h" * (limits.HEADERS_BYTES_MAX + 1024)}, 0)),
        "ValueTooLarge",
    ),
    "headers nested too deep": Row(
        commit(EnqueueMessage(b"k", b"v", NESTED, 0)), "ValueTooLarge|Invalid"
    ),
    "a list that is longer than any may be": Row(
        GetMany([b"k"] * (limits.REQUEST_ITEMS_MAX + 1)), "ValueTooLarge"
    ),
    "a key that is too long": Row(
        commit(Put(bytes(limits.KEY_BYTES_MAX + 1), b"v")), "goodbye"
    ),
    "keeping a position for a year": Row(
        # Packed as it is: no client of ours makes such a one.
        commit(("keep_position", "reader", 1, 365 * 86_400.0)), "goodbye"
    ),
    "keeping a position of a long name": Row(
        commit(("keep_position", "n" * 129, 1, 60.0)), "goodbye"
    ),
    "keeping a position of the future": Row(
        commit(KeepPosition("reader", 2**63, 60.0)), "Invalid"
    ),
    "removing a node": Row(RetireNode(1), "AccessDenied"),
    "binding a node to another key": Row(RebindNode(1, b"f" * 32), "AccessDenied"),
    "admitting a node": Row(AdmitNode(b"s" * 16, "127.0.0.1:1"), "goodbye"),
    "a commit in another client's name": Row(
        commit(Put(b"k", b"v"), client=VICTIM.client), "Invalid"
    ),
    "releasing another client's locks": Row(ReleaseLocks(VICTIM.client + NUMBER), "Invalid"),
    "a forged vote": Row(encode_frame([(ROOT_ID, Vote(TERM, 1, 1, False))], Clocks(1)), "goodbye"),
    "forged entries": Row(
        encode_frame([(ROOT_ID, Append(TERM, 0, 0, 9, 0, (), False))]), "goodbye"
    ),
}  # fmt: skip


def _plain(_: Authority, __: Path) -> None:
    return None


def _bare(authority: Authority, _: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.ca)
    return offering_native(context)


def _foreign(authority: Authority, folder: Path) -> ssl.SSLContext:
    context = _bare(authority, folder)
    context.load_cert_chain(*Authority(folder / "foreign").issue("127.0.0.1"))
    return context


def _client(authority: Authority, folder: Path) -> ssl.SSLContext:
    context = _bare(authority, folder)
    context.load_cert_chain(*authority.issue("somebody"))
    return context


def _node(authority: Authority, folder: Path) -> ssl.SSLContext:
    """Make a TLS context with a certificate for the host of the node that is called."""
    context = _bare(authority, folder)
    context.load_cert_chain(*authority.issue("127.0.0.1"))
    return context


STRANGERS: Final = {"plain": _plain, "bare": _bare, "foreign": _foreign}
KNOWN: Final = {"client": _client, "node": _node}
Shows = Callable[[Authority, Path], ssl.SSLContext | None]


class Target:
    """A node with TLS, and an honest client of it."""

    def __init__(self, server: Server, authority: Authority, db: postroom.Database) -> None:
        self.server, self.authority, self.db = server, authority, db

    def connected(self, context: ssl.SSLContext | None) -> socket.socket:
        host, port = self.server.address.split(":")
        plain = socket.create_connection((host, int(port)), timeout=20)
        if context is None:
            return plain
        return context.wrap_socket(plain, server_hostname=host)

    def check_unharmed(self) -> None:
        assert [key for key, _ in self.db.scan()] == [b"before"]
        assert not self.db.inboxes()
        assert not self.db.status().positions
        counters = self.db.status().counters
        assert (counters.enqueued, counters.pending, counters.dead) == (0, 0, 0)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    authority = Authority(tmp_path_factory.mktemp("ca"))
    tls = authority.client("honest")
    with (
        Server(authority.server()) as server,
        postroom.connect(server.address, tls=tls) as db,
    ):
        db.put(b"before", b"1")
        yield Target(server, authority, db)


def framed_request(request: Any, now: int) -> bytes:
    """Return a frame as a client sends it. Bytes are a frame already."""
    if isinstance(request, bytes):
        return request
    if isinstance(request, CommitTransaction):
        request = msgspec.structs.replace(request, began=now)
    return frames.encode((1, 0, [(1, request)], [], False))


def said_by(connection: socket.socket) -> Iterator[bytes]:
    """Yield the frames that come, until the node ends the stream."""
    incoming = streams.Incoming(frames.FRAME_BYTES_MAX)
    with contextlib.suppress(OSError):
        while data := connection.recv(65536):
            yield from incoming.feed(data)


@pytest.mark.parametrize("shows", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_not_even_heard(target: Target, shows: Shows, tmp_path: Path) -> None:
    context = shows(target.authority, tmp_path)
    before = len(target.server.sessions)
    for row in ROWS.values():
        hello = frames.encode(frames.Hello(frames.PROTOCOL_VERSION, secret_of(b"attacker"), 1))
        asked = [hello, framed_request(row.request, int(target.db.now()))]
        said: list[bytes] = []
        with contextlib.suppress(OSError), target.connected(context) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(streams.opening_bytes(streams.Opening(streams.TALK)))
                connection.sendall(b"".join(map(streams.framed, asked)))
            said = list(said_by(connection))
        refusals = [streams.read_reply(each) for each in said]
        assert all(isinstance(each, streams.StreamRefusal) for each in refusals), refusals
    assert len(target.server.sessions) == before
    target.check_unharmed()


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("shows", KNOWN.values(), ids=KNOWN)
def test_a_caller_that_may_come_in_is_refused_with_a_reason(
    target: Target, shows: Shows, name: str, tmp_path: Path
) -> None:
    row = ROWS[name]
    with target.connected(shows(target.authority, tmp_path)) as connection:
        connection.sendall(streams.opening_bytes(streams.Opening(streams.TALK)))
        said = said_by(connection)
        assert isinstance(streams.read_reply(next(said)), streams.Accepted)
        hello = frames.encode(frames.Hello(frames.PROTOCOL_VERSION, secret_of(b"attacker"), 1))
        connection.sendall(streams.framed(hello))
        connection.sendall(streams.framed(framed_request(row.request, int(target.db.now()))))
        assert _end_of(said) in row.refused.split("|")
    target.check_unharmed()


def _end_of(said: Iterator[bytes]) -> str:
    """Return the name of the error; ``goodbye`` if the stream ends."""
    for frame in said:
        message = frames.from_node(frame)
        if isinstance(message, frames.Goodbye):
            return "goodbye"
        if isinstance(message, frames.Answers):
            for answer in message.answers:
                assert answer.failure is not None, "it was done"
                return answer.failure[0]
    return "goodbye"


@pytest.mark.parametrize("shows", KNOWN.values(), ids=KNOWN)
def test_a_certificate_alone_makes_nobody_a_node(
    target: Target, shows: Shows, tmp_path: Path
) -> None:
    """Neither on a stream of consensus nor by the questions that nodes ask."""
    introduction = Introduction(PROTOCOL_VERSION, b"c" * 16, 2, b"s" * 16, "127.0.0.1:9")
    argument = streams._encode(introduction)
    for method in (streams.FRAMES, streams.ADMIT):
        with target.connected(shows(target.authority, tmp_path)) as connection:
            connection.sendall(streams.opening_bytes(streams.Opening(method, argument)))
            with contextlib.suppress(OSError):
                connection.sendall(streams.framed(ROWS["a forged vote"].request))
            replies = [streams.read_reply(each) for each in said_by(connection)]
        assert all(isinstance(each, streams.StreamRefusal) for each in replies), replies
    target.check_unharmed()


def test_an_honest_client_is_served_to_the_end(target: Target) -> None:
    target.db.put(b"before", b"2")
    assert target.db.get(b"before") == b"2"

"""Roles: who may ask for what, and what the files say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from postroom.errors import AccessDenied, Invalid
from postroom.protocol import frames
from postroom.protocol.requests import REQUESTS
from postroom.ranges.contract import Role
from postroom.ranges.nodes import RetireNode
from postroom.ranges.protections import KeepPosition, Position, ReadPositions
from postroom.ranges.requests import CommitTransaction, Get, Put, ReleaseLocks
from postroom.server.cluster.access import ALLOWED, Access, Roles, permitted, token_of
from postroom.server.cluster.session import Session
from postroom.server.cluster.sessions import Sessions
from tests.client.stores import Store
from tests.remote.client_names import client_id, secret_of


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.db.close()


def test_each_role_may_do_what_those_before_it_may() -> None:
    assert not ALLOWED[Role.NONE]
    assert ALLOWED[Role.READ] < ALLOWED[Role.WRITE] < ALLOWED[Role.ADMIN] == set(REQUESTS.asked)


def test_only_reading_is_for_readers() -> None:
    assert not ALLOWED[Role.READ] & {CommitTransaction, ReleaseLocks, RetireNode}
    assert RetireNode not in ALLOWED[Role.WRITE], "membership is for administrators"


def asked(store: Store, role: Role, *requests: Any) -> dict[int, str | None]:
    """Return how each request, by its number, fails for a role; ``None``: it does not."""
    session = Sessions(store.node).open("somebody", lambda: None, Access(role))
    session.received(frames.encode((0, frames.PROTOCOL_VERSION, secret_of(b""), 1)))
    clock = store.node.clock.reading()
    session.received(frames.encode((1, clock, list(enumerate(requests)), [], False)))
    store.node.turn()
    failures: dict[int, str | None] = {}
    while (frame := session.take()) is not None:
        message = frames.from_node(frame)
        if isinstance(message, frames.Answers):
            for each in message.answers:
                failures[each.number] = None if each.failure is None else each.failure[0]
    return failures


def put(store: Store, number: int) -> CommitTransaction[Any]:
    began = store.node.clock.reading()
    write = Put(b"key", b"value")
    return CommitTransaction(
        client_id(b"") + bytes([number]) * 8, began, 60.0, 0, b"key", [], [], [write]
    )


@pytest.mark.parametrize("seconds", [3600.0, 0.0], ids=["keeping", "forgetting"])
@pytest.mark.parametrize("role", [Role.READ, Role.WRITE, Role.ADMIN])
def test_only_a_writer_keeps_and_forgets_positions_of_readers(
    store: Store, role: Role, seconds: float
) -> None:
    """A client that only reads cannot hold back collection, or make a stream lose records."""
    at = store.db.now()
    store.db.keep_position("reader", at)
    request = put(store, 1)
    write = KeepPosition("reader", int(store.db.now()), seconds)
    expected = "AccessDenied" if role is Role.READ else None
    moved = msgspec.structs.replace(request, writes=[write])
    assert asked(store, role, moved, ReadPositions()) == {0: expected, 1: None}

    async def ask() -> list[Position]:
        found: list[Position] = await store.driver.send(ReadPositions())
        return found

    stays = [each.timestamp for each in store.driver.run(ask())] == [at]
    assert stays == (role is Role.READ)


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        (Role.READ, [None, "AccessDenied", "AccessDenied"]),
        (Role.WRITE, [None, None, "AccessDenied"]),
        (Role.ADMIN, [None, None, "Invalid"]),
    ],
)
def test_a_client_gets_what_its_role_allows(
    store: Store, role: Role, expected: list[str | None]
) -> None:
    requests = (Get(b"key"), put(store, 1), RetireNode(1))
    assert asked(store, role, *requests) == dict(enumerate(expected))
    assert (store.db.get(b"key") is None) == (role is Role.READ), "what was refused did not happen"


def test_a_client_of_no_stated_role_is_no_administrator(store: Store) -> None:
    assert Sessions(store.node).open("somebody", lambda: None).access.role is Role.WRITE


def test_a_file_of_roles() -> None:
    roles = Roles(["# who", "", "admin operator", "read  the reports", "write *"])
    assert roles.of("operator") is Role.ADMIN
    assert roles.of("the reports") is Role.READ
    assert roles.of("anybody") is Role.WRITE
    assert Roles(["admin operator"]).of("anybody") is None, "it has no role, and is let in nowhere"


@pytest.mark.parametrize("line", ["admin", "root operator", "Admin operator"])
def test_a_line_that_is_no_role_and_name_is_told(line: str) -> None:
    with pytest.raises(Invalid, match="line 2"):
        Roles(["read reports", line])


def test_lines_of_tokens() -> None:
    assert token_of(b"abc") == (b"abc", Role.WRITE, ""), "as they were before there were roles"
    assert token_of(b"admin  abc") == (b"abc", Role.ADMIN, "")
    assert token_of(b"none abc shop") == (b"abc", Role.NONE, "shop")
    for line in (b"root abc", b"admin abc def ghi"):
        with pytest.raises(Invalid):
            token_of(line)


def test_a_stream_ends_when_its_access_does(store: Store) -> None:
    """Its rights last as long as its certificate or token, while the stream is open."""
    sessions, role = Sessions(store.node), [Role.WRITE]

    def current() -> Access:
        if not role:
            raise AccessDenied("the token is not known here; nothing was done")
        return Access(role[0])

    streams = [
        sessions.open("somebody", lambda: None, Access(Role.WRITE, name, current))
        for name in ("a", "b", "c")
    ]
    other = sessions.open("other", lambda: None)
    for number, stream in enumerate([*streams[:2], other]):
        stream.received(frames.encode((0, frames.PROTOCOL_VERSION, secret_of(b"%d" % number), 1)))
    sessions.look_at_access()
    assert not any(each.ended for each in streams), "nothing has changed for them"
    role[0] = Role.READ
    sessions.look_at_access()
    assert last_words(streams[0])[0] == "Unavailable", "it may come back, and read"
    role.clear()
    streams[2].received(frames.encode((0, frames.PROTOCOL_VERSION, secret_of(b"c"), 1)))
    assert last_words(streams[2])[0] == "AccessDenied", "it had said nothing yet"
    assert not other.ended


def last_words(session: Session) -> tuple[Any, ...]:
    assert session.ended
    *_, goodbye = iter(session.take, None)
    message = frames.from_node(goodbye)
    assert isinstance(message, frames.Goodbye)
    return message.failure


def test_principals_are_certificates_with_tokens_and_else_hosts(store: Store) -> None:
    sessions = Sessions(store.node)
    assert sessions.open("10.0.0.1:999", lambda: None).principal == "10.0.0.1"
    with_access = sessions.open("10.0.0.1:999", lambda: None, Access(principal="certificate shop"))
    assert with_access.principal == "certificate shop"


def test_decoders_of_requests_are_made_before_the_first_client_comes(store: Store) -> None:
    permitted.cache_clear()
    Sessions(store.node)
    assert permitted.cache_info().currsize == 1

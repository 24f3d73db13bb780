"""Roles: who may ask for what, and what the files say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest

from postroom.errors import Invalid
from postroom.protocol import frames
from postroom.protocol.requests import ClientRequest
from postroom.ranges.nodes import RetireNode
from postroom.ranges.requests import CommitTransaction, Get, Put, ReleaseLocks
from postroom.server.cluster.access import ALLOWED, NEEDED, Role, Roles, token_of
from postroom.server.cluster.sessions import Sessions
from tests.client.stores import Store


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.db.close()


def kinds() -> set[type]:
    return {getattr(each, "__origin__", each) for each in get_args(ClientRequest)}


def test_every_request_needs_a_role() -> None:
    """One that was forgotten is refused to everybody; this test finds it sooner."""
    assert set(NEEDED) == kinds()


def test_each_role_may_do_what_those_before_it_may() -> None:
    assert ALLOWED[Role.READ] < ALLOWED[Role.WRITE] < ALLOWED[Role.ADMIN] == kinds()


def test_only_reading_is_for_readers() -> None:
    assert not ALLOWED[Role.READ] & {CommitTransaction, ReleaseLocks, RetireNode}
    assert RetireNode not in ALLOWED[Role.WRITE], "membership is for administrators"


def asked(store: Store, role: Role, *requests: Any) -> dict[int, str | None]:
    """How each request, by its number, fails for a client of that role; ``None``: it does not."""
    session = Sessions(store.node).open("somebody", lambda: None, role)
    session.received(frames.encode((0, frames.PROTOCOL_VERSION, bytes(8), 1)))
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
        bytes(8) + bytes([number]) * 8, began, 60.0, 0, b"key", [], [], [write]
    )


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
    assert Sessions(store.node).open("somebody", lambda: None)._role is Role.WRITE


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
    assert token_of(b"abc") == (b"abc", Role.WRITE), "as they were before there were roles"
    assert token_of(b"admin  abc") == (b"abc", Role.ADMIN)
    for line in (b"root abc", b"admin abc def"):
        with pytest.raises(Invalid):
            token_of(line)

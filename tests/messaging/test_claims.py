"""The proof that a claim of a message gives, and its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from postroom.limits import CLAIMED_BYTES_MAX
from postroom.messaging.claims import Claims
from tests.work import lines_of

KEY = b"inbox"
ONE, OTHER = b"one", b"other"


def messages(*numbers: int, size: int = 1) -> list[tuple[bytes, bytes]]:
    return [(b"%020d" % number, bytes(size)) for number in numbers]


def ids(*numbers: int) -> list[bytes]:
    return [id_ for id_, _ in messages(*numbers)]


def test_found_messages_are_given_back_once() -> None:
    claims = Claims()
    claims.claim(KEY, ONE, messages(1, 2))
    found = claims.take_found(KEY, ONE, ids(1, 2))
    assert found is not None
    assert found.messages == messages(1, 2)
    assert found.is_gapless
    assert claims.take_found(KEY, ONE, ids(1, 2)) is None
    assert len(claims) == 2


@pytest.mark.parametrize(
    "asked",
    [ids(1), ids(1, 2, 3), ids(2, 1), ids(1, 1), []],
    ids=["less", "more", "order", "twice", "none"],
)
def test_found_messages_serve_only_a_commit_of_exactly_these(asked: list[bytes]) -> None:
    claims = Claims()
    claims.claim(KEY, ONE, messages(1, 2))
    assert claims.take_found(KEY, ONE, asked) is None
    assert claims.take_found(KEY, OTHER, ids(1, 2)) is None
    assert claims.take_found(b"another inbox", ONE, ids(1, 2)) is None


def test_a_second_reap_of_a_transaction_has_to_read() -> None:
    claims = Claims()
    claims.claim(KEY, ONE, messages(1))
    claims.claim(KEY, ONE, messages(2))
    assert claims.take_found(KEY, ONE, ids(1, 2)) is None


def test_a_message_reaped_by_another_transaction_is_not_found() -> None:
    claims = Claims()
    claims.claim(KEY, ONE, messages(1, 2))
    claims.claim(KEY, OTHER, messages(3, 4))
    claims.gone(KEY, ids(2, 9))
    assert claims.take_found(KEY, ONE, ids(1, 2)) is None
    assert claims.take_found(KEY, OTHER, ids(3, 4)) is not None


@pytest.mark.parametrize("applied", [False, True])
def test_a_message_that_arrives_in_between_leaves_a_gap(applied: bool) -> None:
    claims = Claims()
    claims.claim(KEY, ONE, messages(1, 5))
    for first in (7, 3):
        (claims.arrived if applied else claims.arriving)({KEY: ids(first)[0], b"another": b""})
    found = claims.take_found(KEY, ONE, ids(1, 5))
    assert found is not None
    assert not found.is_gapless


def test_a_message_held_by_another_in_between_is_a_gap() -> None:
    claims = Claims()
    claims.claim(KEY, OTHER, messages(2, 3))
    claims.claim(KEY, ONE, messages(1, 4))
    found = claims.take_found(KEY, ONE, ids(1, 4))
    assert found is not None
    assert not found.is_gapless


def test_memory_is_bounded_and_given_back() -> None:
    claims = Claims()
    half = CLAIMED_BYTES_MAX // 2
    for number, who in enumerate((b"a", b"b", b"c")):
        claims.claim(KEY, who, messages(number, size=half))
    assert claims.take_found(KEY, b"c", ids(2)) is None, "there was no room left for it"
    claims.release(b"a")
    claims.claim(KEY, b"d", messages(9, size=half))
    assert claims.take_found(KEY, b"d", ids(9)) is not None
    claims.clear()
    claims.claim(KEY, b"e", messages(1, size=2 * half))
    assert claims.take_found(KEY, b"e", ids(1)) is not None


def test_the_message_after_the_found_ones_is_known_until_it_changes() -> None:
    (after,) = ids(9)

    def following(change: Callable[[Claims], None]) -> bytes:
        claims = Claims()
        claims.claim(KEY, ONE, messages(1, 5), after)
        claims.claim(KEY, OTHER, messages(9, 11))
        change(claims)
        found = claims.take_found(KEY, ONE, ids(1, 5))
        assert found is not None
        return found.following

    assert following(lambda claims: None) == after
    assert following(lambda claims: claims.gone(KEY, ids(9, 11))) == b""
    assert following(lambda claims: claims.gone(KEY, ids(8, 10))) == after
    assert following(lambda claims: claims.gone(KEY, ids(11))) == after
    assert following(lambda claims: claims.arriving({KEY: ids(7)[0]})) == b""
    assert following(lambda claims: claims.arrived({KEY: ids(7)[0]})) == b""
    assert following(lambda claims: claims.arrived({KEY: ids(12)[0]})) == after


@pytest.mark.parametrize(
    ("what", "left"),
    [
        (lambda claims: claims.gone(KEY, ids(9)), 0),
        (lambda claims: claims.gone(KEY, []), 2),
        (lambda claims: claims.arriving({KEY: ids(4)[0]}), 1),
        (lambda claims: claims.arrived({KEY: ids(4)[0]}), 1),
        (Claims.clear, 0),
        (lambda claims: claims.release(ONE), 2),
    ],
    ids=["gone", "nothing gone", "arriving", "arrived", "another lease", "released"],
)
def test_changes_of_claims_reach_the_read_ahead(
    what: Callable[[Claims], object], left: int
) -> None:
    claims = Claims()
    claims.claim(KEY, ONE, messages(1))
    beyond = messages(2, 3, 5)
    claims.ahead.read(KEY, b"", messages(1), beyond[0], iter(()))
    claims.ahead.read(KEY, beyond[0][0], messages(2), beyond[1], iter(beyond[2:]))
    assert len(claims.ahead) == 2
    what(claims)
    assert len(claims.ahead) == left


@pytest.mark.parametrize(
    "act",
    [
        lambda claims: claims.gone(KEY, ids(0)),
        lambda claims: claims.taken(KEY, ids(0)),
        lambda claims: claims.arriving({KEY: ids(5000)[0]}),
        lambda claims: claims.arrived({KEY: ids(5000)[0]}),
        lambda claims: [claims.arrived({KEY: ids(5)[0]}) for _ in range(1000)],
    ],
    ids=["gone", "taken", "arriving", "arrived", "arrived among them"],
)
def test_a_change_of_an_inbox_costs_the_same_however_many_reap_it(
    act: Callable[[Claims], object],
) -> None:
    lines = []
    for reapers in (100, 1000):
        claims = Claims()
        for number in range(reapers):
            claims.claim(KEY, b"%d" % number, messages(number), ids(number + 1)[0])
        lines.append(lines_of(act, claims))
    assert lines[1] <= lines[0] + 2 * 900


def test_a_taken_message_is_not_held_and_not_stepped_over() -> None:
    claims = Claims()
    for number in range(1, 10):
        claims.claim(KEY, b"%d" % number, messages(number))
    claims.taken(KEY, ids(1, 2))
    assert (claims.holder(KEY, ids(1)[0]), len(claims)) == (None, 7)
    claims.release(b"1")
    assert claims.free(KEY, ids(2)[0]).start > ids(9)[0]
    claims.release(b"2")
    claims.release(b"3")
    assert claims.free(KEY, ids(2)[0]).start == ids(3)[0]
    claims.taken(KEY, ids(*range(4, 10)))
    for number in range(4, 10):
        claims.release(b"%d" % number)
    assert (len(claims), claims._inboxes, claims._found_bytes) == (0, {}, 0)

"""The places among the connections of a node, and those that are dropped for others."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)

import pytest

from postroom.limits import HELLO_SECONDS
from postroom.server.cluster.admission import Connection, Connections, connections_max


class Entrance:
    """An entrance that accepts connections, and notes which were dropped."""

    def __init__(self, **limits: int) -> None:
        self.now = 100.0
        self.connections = Connections(lambda: self.now, **limits)
        self.dropped: list[str] = []

    def accept(self, name: str, host: str = "a") -> Connection | None:
        connection = self.connections.accept(host, 1)
        if connection is not None:
            connection.drop = lambda: self.dropped.append(name)
        return connection

    def let_in(self, name: str, host: str = "a") -> Connection:
        connection = self.accept(name, host)
        assert connection is not None
        return connection


def test_a_caller_that_does_not_say_hello_in_time_is_dropped() -> None:
    entrance = Entrance()
    entrance.let_in("late")
    entrance.now += 1
    entrance.let_in("said").said_hello()
    entrance.now += HELLO_SECONDS - 1.5
    entrance.let_in("new")
    assert entrance.connections.drop_late() == entrance.now + 0.5
    entrance.now += 0.5
    assert entrance.connections.drop_late() == entrance.now + HELLO_SECONDS - 0.5
    assert entrance.dropped == ["late"]
    entrance.now += HELLO_SECONDS
    assert entrance.connections.drop_late() is None
    assert entrance.dropped == ["late", "new"]
    assert len(entrance.connections) == 1


def test_a_host_takes_places_from_itself_the_silent_first() -> None:
    entrance = Entrance(pending_per_host_max=3)
    entrance.let_in("speaks").spoke()
    for name in ("silent", "newer"):
        entrance.let_in(name)
    entrance.let_in("other", host="b")
    entrance.let_in("newest")
    assert entrance.dropped == ["silent"]
    entrance.let_in("a4")
    entrance.let_in("a5")
    entrance.let_in("a6")
    assert entrance.dropped == ["silent", "newer", "newest", "a4"]


def test_the_host_with_most_pending_connections_loses_one() -> None:
    entrance = Entrance(pending_max=4)
    for name in ("a1", "a2", "a3"):
        entrance.let_in(name, host="a")
    for number in range(3):
        entrance.let_in("b", host=f"b{number}")
    assert entrance.dropped == ["a1", "a2"]


def test_a_caller_that_has_said_hello_is_never_dropped_for_another() -> None:
    entrance = Entrance(connections_max=4)
    for _ in range(4):
        entrance.let_in("client").said_hello()
    assert entrance.accept("new") is None
    assert not entrance.dropped


@pytest.mark.parametrize("seed", range(20))
def test_the_sums_hold_whatever_happens(seed: int) -> None:
    random = Random(seed)
    entrance = Entrance(connections_max=40, pending_max=12, pending_per_host_max=5)
    alive: list[Connection] = []
    for _ in range(2000):
        match random.randrange(6):
            case 0 | 1:
                connection = entrance.accept("x", host=random.choice("abcd"))
                alive += [connection] if connection else []
            case 2 if alive:
                random.choice(alive).said_hello()
            case 3 if alive:
                random.choice(alive).spoke()
            case 4 if alive:
                alive.pop(random.randrange(len(alive))).closed()
            case 5:
                entrance.now += random.random()
                entrance.connections.drop_late()
        connections = entrance.connections
        assert len(connections) <= 40
        assert connections.pending <= 12
        assert sum(map(len, connections._hosts.values())) == connections.pending
        assert all(len(each) <= 5 for each in connections._hosts.values())
        assert set(connections._pending) <= connections._open
    entrance.connections.drop_all()
    assert (len(entrance.connections), entrance.connections.pending) == (0, 0)
    assert not entrance.connections._hosts


def test_storage_has_descriptors_left() -> None:
    for limit in (256, 1024, 4096, 20_000, 1_000_000):
        left = limit - connections_max(limit)
        assert left >= limit // 5
        assert limit < 1024 or left >= limit // 5 + 256

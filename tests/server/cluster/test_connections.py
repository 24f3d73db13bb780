"""Who has a place among the connections of a node, and who is dropped for whom."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)

import pytest

from postroom.limits import HELLO_SECONDS
from postroom.server.cluster import descriptors
from postroom.server.cluster.connections import NATIVE_COST, RELAYED_COST, Connection, Connections


class Door:
    """Accepts connections, and notes who was dropped."""

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


def test_who_does_not_say_hello_in_time_is_dropped() -> None:
    door = Door()
    door.let_in("late")
    door.now += 1
    door.let_in("said").said_hello()
    door.now += HELLO_SECONDS - 1.5
    door.let_in("new")
    assert door.connections.drop_late() == door.now + 0.5
    door.now += 0.5
    assert door.connections.drop_late() == door.now + HELLO_SECONDS - 0.5
    assert door.dropped == ["late"]
    door.now += HELLO_SECONDS
    assert door.connections.drop_late() is None
    assert door.dropped == ["late", "new"]
    assert len(door.connections) == 1


def test_a_host_takes_places_from_itself_the_silent_first() -> None:
    door = Door(pending_per_host_max=3)
    door.let_in("speaks").spoke()
    for name in ("silent", "newer"):
        door.let_in(name)
    door.let_in("other", host="b")
    door.let_in("newest")
    assert door.dropped == ["silent"]
    door.let_in("a4")
    door.let_in("a5")
    door.let_in("a6")
    assert door.dropped == ["silent", "newer", "newest", "a4"]


def test_of_many_hosts_the_one_with_most_loses() -> None:
    door = Door(pending_max=4)
    for name in ("a1", "a2", "a3"):
        door.let_in(name, host="a")
    for number in range(3):
        door.let_in("b", host=f"b{number}")
    assert door.dropped == ["a1", "a2"]


def test_who_has_said_hello_is_never_dropped_for_another() -> None:
    door = Door(descriptors_max=4)
    for _ in range(4):
        door.let_in("client").said_hello()
    assert door.accept("new") is None
    assert not door.dropped


def test_a_relayed_connection_costs_what_it_costs() -> None:
    door = Door(descriptors_max=8)
    relayed = door.let_in("relayed")
    assert door.connections.relay(relayed)
    relayed.said_hello()
    assert door.connections.descriptors == RELAYED_COST
    for number in range(4):
        door.let_in(f"{number}", host=f"{number}")
    second = door.let_in("second", host="x")
    assert door.connections.relay(second)
    assert door.dropped == ["0", "1"]
    for connection in (second, relayed):
        connection.closed()
        connection.closed()
    assert door.connections.descriptors == 2 * NATIVE_COST


@pytest.mark.parametrize("seed", range(20))
def test_the_sums_hold_whatever_happens(seed: int) -> None:
    random = Random(seed)
    door = Door(descriptors_max=40, pending_max=12, pending_per_host_max=5)
    alive: list[Connection] = []
    for _ in range(2000):
        match random.randrange(6):
            case 0 | 1:
                connection = door.accept("x", host=random.choice("abcd"))
                alive += [connection] if connection else []
            case 2 if alive:
                random.choice(alive).said_hello()
            case 3 if alive:
                random.choice(alive).spoke()
            case 4 if alive:
                alive.pop(random.randrange(len(alive))).closed()
            case 5:
                door.now += random.random()
                door.connections.drop_late()
        connections = door.connections
        assert connections.descriptors == sum(each.cost for each in connections._open) <= 40
        assert connections.pending <= 12
        assert sum(map(len, connections._hosts.values())) == connections.pending
        assert all(len(each) <= 5 for each in connections._hosts.values())
        assert set(connections._pending) <= connections._open
    door.connections.drop_all()
    assert (door.connections.descriptors, door.connections.pending) == (0, 0)
    assert not door.connections._hosts


def test_storage_has_descriptors_left() -> None:
    for limit in (256, 1024, 4096, 20_000, 1_000_000):
        left = limit - descriptors.for_connections(limit)
        assert left >= limit // 5
        assert limit < 1024 or left >= limit // 5 + 256

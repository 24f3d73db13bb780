"""Holders: one deadline a transaction, and whose it is."""

from __future__ import annotations

from postroom.ranges.memory import Holders


class Time:
    def __init__(self) -> None:
        self.now = 100.0
        self.rings: list[float] = []
        self.holders = Holders(lambda: self.now, self.rings.append)


ONE, OTHER = b"client 1transact", b"client 2transact"


def test_time_runs_out_once() -> None:
    time = Time()
    time.holders.hold(ONE, 5.0)
    time.holders.hold(OTHER, 1000.0)
    assert time.holders.take_expired() == []
    time.now = 105.0
    assert time.holders.take_expired() == [ONE]
    assert time.holders.rings_at == 160.0, "no transaction is open for longer"
    time.now = 160.0
    assert time.holders.take_expired() == [OTHER]
    assert time.holders.rings_at is None


def test_a_holder_has_one_deadline_the_last() -> None:
    time = Time()
    for _ in range(1000):
        time.holders.hold(ONE, 5.0)
    time.holders.hold(ONE, 7.0)
    time.holders.hold(ONE, 2.0)
    assert len(time.holders) == 1
    time.now = 106.0
    assert time.holders.take_expired() == []
    time.now = 107.0
    assert time.holders.take_expired() == [ONE]


def test_a_node_is_not_woken_for_each_that_holds_something() -> None:
    """Only when there was no earlier deadline: else each lock would cost a turn."""
    time = Time()
    for number in range(100):
        id_ = b"client 1%08d" % number
        time.holders.hold(id_, 60.0)
        time.holders.release(id_)
        time.now += 0.1
    assert time.rings == [160.0]
    assert len(time.holders) == 0
    assert time.holders.entries < 30


def test_the_first_half_of_an_id_is_the_client() -> None:
    time = Time()
    time.holders.hold(ONE, 5.0)
    time.holders.hold(OTHER, 5.0)
    assert time.holders.of(b"client 1") == [ONE]
    time.holders.release(ONE)
    assert time.holders.of(b"client 1") == []
    time.holders.clear()
    assert time.holders.of(b"client 2") == []


def test_a_deadline_that_is_no_number_ends() -> None:
    time = Time()
    time.holders.hold(ONE, float("nan"))
    time.holders.hold(OTHER, 0.0)
    assert time.holders.take_expired() == [OTHER]
    time.now = 160.0
    assert time.holders.take_expired() == [ONE]

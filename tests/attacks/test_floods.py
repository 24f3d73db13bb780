"""Floods of what is cheap to send: each frame, and each request, takes its share of a turn."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

import postroom
from postroom import limits
from postroom.messaging.ingest.requests import CheckImage
from postroom.protocol import streams
from postroom.ranges.requests import Get, Scan
from postroom.server.cluster.session import Session
from tests.attacks import flood
from tests.attacks.hostile import Attacker, Target
from tests.attacks.test_wire import Attacker as Connected
from tests.remote.servers import Server

CLIENTS = 40
ITEM_MAX = 4096
"""One frame may say that so many requests are withdrawn."""


class Counter:
    """A count of what is done for clients from one turn to the next."""

    def __init__(self, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = self.most = 0
        node = target.store.node
        for kind, name in ((Session, "open_frame"), (Session, "take_on"), (Session, "welcome")):
            monkeypatch.setattr(kind, name, self.counted(getattr(kind, name), 1))
        monkeypatch.setattr(node, "describe", self.counted(node.describe, 100))

    def counted(self, function: Any, weight: int) -> Any:
        def count(*args: Any) -> Any:
            self.done += weight
            return function(*args)

        return count

    def next_turn(self) -> None:
        self.most = max(self.most, self.done)
        self.done = 0


class Flooding:
    """A client whose socket always has more, and which takes what it is told."""

    def __init__(self, target: Target, number: int, kind: str) -> None:
        self.attacker = Attacker(target, b"%d" % number)
        self.kind = kind
        self.frames: deque[bytes] = deque()

    def go_on(self) -> None:
        """Read the socket once, as far as the session takes frames."""
        session = self.attacker.session
        if not self.frames:
            incoming = streams.Incoming(limits.FRAME_BYTES_MAX)
            incoming.greeted = True
            self.frames.extend(incoming.feed(flood.chunk(self.kind)))
        while session.take() is not None:
            pass
        while self.frames and session.reading:
            session.received(self.frames.popleft())


@pytest.mark.parametrize("kind", flood.KINDS)
def test_a_polite_client_waits_for_a_few_turns_of_bounded_work(
    target: Target, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    polite = Attacker(target, b"polite")
    flooding = [Flooding(target, number, kind) for number in range(CLIENTS)]
    counter = Counter(target, monkeypatch)
    slowest = 0
    for _ in range(5):
        number, turns = polite.ask(Get(b"k")), 0
        while not polite.has(number):
            for each in flooding:
                each.go_on()
            counter.next_turn()
            target.turn()
            turns += 1
            polite.read()
        slowest = max(slowest, turns)
    assert counter.most <= limits.INTAKE_STEPS_MAX // limits.REQUEST_STEPS + 2 * CLIENTS
    assert slowest <= CLIENTS + 2, "one part of what each client has sent comes before it"
    assert not any(each.attacker.session.ended for each in flooding)
    target.check_alive()


def test_a_flood_of_listings_asks_the_engine_for_few_sizes_a_turn(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    flooding = [Flooding(target, number, "listings") for number in range(CLIENTS)]
    asked = 0
    engine = type(target.store.engine)
    measure = engine.approximate_bytes

    def counted(self: object, lower: bytes, upper: bytes) -> int:
        nonlocal asked
        asked += 1
        return measure(self, lower, upper)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "approximate_bytes", counted)
    most = 0
    for _ in range(5):
        asked = 0
        for each in flooding:
            each.go_on()
        target.turn()
        most = max(most, asked)
    steps = limits.TURN_STEPS_MAX + limits.INTAKE_STEPS_MAX
    assert 0 < most <= steps // limits.LISTING_STEPS + 2 * CLIENTS


def test_a_long_read_comes_to_its_end_beside_a_flood_of_short_ones(target: Target) -> None:
    """A read of more than a turn waited for a turn in which nothing came in."""
    target.fill(2 * limits.TURN_STEPS_MAX)
    polite = Attacker(target, b"polite")
    flooding = [Attacker(target, b"%d" % number) for number in range(CLIENTS)]
    number = polite.ask(CheckImage())
    turns = 0
    while not polite.has(number):
        for each in flooding:
            each.read()
            if each.session.reading:
                each.ask(*[Scan(b"key/", b"key0", 0, 100, 1 << 20)] * 100)
        target.turn()
        turns += 1
        assert turns < CLIENTS
        polite.read()
    assert number in polite.answers
    for each in flooding:
        each.session.close()
    target.check_alive()


def test_withdrawing_takes_its_share_of_a_turn(target: Target, attacker: Attacker) -> None:
    attacker.say(1, 0, [], list(range(ITEM_MAX)), False)
    assert target.store.node.replicas.is_used_up
    attacker.say(1, 0, [], list(range(ITEM_MAX)), False)
    assert not attacker.session.reading
    target.settle()
    assert attacker.session.reading
    target.check_alive()


LONG_KEY = bytes(7000)
TINY_KEYS = [b"%02d" % (number % 100) for number in range(4000)]


@pytest.mark.parametrize(
    ("many", "steps"),
    [
        (False, 14_000 // limits.FRAME_BYTES_PER_STEP),
        (True, 4000 * 48 // limits.DECODED_BYTES_PER_STEP),
    ],
    ids=["long keys", "many keys"],
)
def test_frames_take_their_share_of_a_turn_by_their_bytes_and_by_what_they_decode_to(
    target: Target, attacker: Attacker, many: bool, steps: int
) -> None:
    taken = 0
    while attacker.session.reading:
        if many:
            attacker.ask(attacker.commit(reads=TINY_KEYS))
        else:
            attacker.ask(Get(LONG_KEY), Get(LONG_KEY))
        taken += 1
    assert taken <= limits.INTAKE_STEPS_MAX // steps + 1
    target.settle()
    target.check_alive()


def test_the_frames_of_one_read_of_a_socket_are_opened_over_many_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, most, open_frame = 0, 0, Session.open_frame
    received, most_received, receive = 0, 0, Session.received

    def counted(session: Session, frame: bytes) -> None:
        nonlocal done
        done += 1
        open_frame(session, frame)

    def counted_as_received(session: Session, frame: bytes) -> None:
        nonlocal received
        received += 1
        receive(session, frame)

    def next_turn() -> None:
        nonlocal done, most, received, most_received
        most, done = max(most, done), 0
        most_received, received = max(most_received, received), 0

    with Server() as server, Connected(server.address) as attacker:
        node = server.sessions.node
        prepare = node.prepare  # type: ignore[attr-defined]

        def turn() -> Any:
            next_turn()
            return prepare()

        monkeypatch.setattr(node, "prepare", turn)
        monkeypatch.setattr(Session, "open_frame", counted)
        monkeypatch.setattr(Session, "received", counted_as_received)
        attacker.socket.sendall(flood.chunk("empty frames") * 2)
        with postroom.connect(server.address, insecure=True) as db:
            assert db.get(b"k") is None
        attacker.say(flood.KINDS["look-ups"]())
        attacker.frame()
        assert 0 < most <= limits.INTAKE_STEPS_MAX // limits.FRAME_STEPS + 10
        assert most_received <= most + 10, "the rest of what was read is not even cut into frames"

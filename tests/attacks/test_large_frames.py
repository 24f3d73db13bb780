"""Large frames: decoding them keeps nobody else waiting, and what they take is bounded."""

from __future__ import annotations

import pytest

from postroom import limits
from postroom.protocol import frames
from postroom.ranges.requests import Get, GetMany, Put
from postroom.server.cluster import intake
from tests.attacks.hostile import Attacker, Target

STRETCH = 4000
STRETCHES_A_TURN = limits.INTAKE_STEPS_MAX // STRETCH + 1
KEYS = [b"%05d" % number for number in range(20_000)]


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FRAME_STRETCH_BYTES", STRETCH)
    monkeypatch.setattr(limits, "FRAME_BYTES_PER_STEP", 1)


def test_others_are_served_between_the_stretches_of_a_large_frame(
    target: Target, attacker: Attacker
) -> None:
    """Four million keys in one frame kept a node for a tenth of a second."""
    other = Attacker(target, b"other")
    number = attacker.ask(GetMany(KEYS))
    assert not attacker.session.reading
    turns = 0
    while target.sessions.large_frames.bytes:
        turns += 1
        assert other.result(Get(b"k"))[0] is None
        target.turn()
    assert turns > sum(map(len, KEYS)) // STRETCH // STRETCHES_A_TURN
    target.until(lambda: attacker.read() >= 0 and attacker.has(number))
    assert attacker.session.reading
    assert len(attacker.answers[number][0]) > 8000
    target.check_turns()
    target.check_alive()


def test_two_large_frames_take_turns(target: Target, attacker: Attacker) -> None:
    other = Attacker(target, b"other")
    first, second = attacker.ask(GetMany(KEYS)), other.ask(GetMany(KEYS[:5000]))
    target.until(lambda: other.read() >= 0 and other.has(second))
    assert target.sessions.large_frames.bytes, "the shorter one was done first"
    target.until(lambda: attacker.read() >= 0 and attacker.has(first))
    target.check_alive()


def test_a_commit_of_many_writes_is_one_commit(target: Target, attacker: Attacker) -> None:
    number = attacker.ask(attacker.commit(*[Put(key, b"v") for key in KEYS]))
    target.until(lambda: attacker.read() >= 0 and attacker.has(number))
    assert len(list(target.store.db.scan())) == len(KEYS)
    target.check_turns()
    target.check_alive()


def test_a_request_behind_a_large_frame_keeps_its_order(target: Target, attacker: Attacker) -> None:
    attacker.ask(attacker.commit(*[Put(key, b"1") for key in KEYS[:2000]]))
    number = attacker.ask(attacker.commit(Put(KEYS[0], b"2")))
    target.until(lambda: attacker.read() >= 0 and attacker.has(number))
    assert target.store.db.get(KEYS[0]) == b"2"
    target.check_alive()


def test_the_client_of_a_large_frame_gets_signs_of_life(target: Target, attacker: Attacker) -> None:
    welcomes, take = 0, attacker.session.take
    attacker.ask(GetMany(KEYS))
    while target.sessions.large_frames.bytes:
        target.turn()
        target.store.clock.seconds += 0.05
        while (frame := take()) is not None:
            welcomes += isinstance(frames.from_node(frame), frames.Welcome)
    assert welcomes > 3
    target.check_alive()


def test_the_bytes_of_all_large_frames_are_bounded(
    target: Target, attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "FRAMES_DECODED_BYTES_MAX", 200_000)
    others = [Attacker(target, b"other %d" % number) for number in range(3)]
    for each in (attacker, *others):
        each.ask(GetMany(KEYS[:10_000]))
    assert target.sessions.large_frames.bytes <= 200_000
    assert others[-1].read()
    assert others[-1].goodbye is not None
    assert others[-1].goodbye[0] == "Unavailable"
    assert "nothing was changed: try again" in others[-1].goodbye[1]
    target.check_alive()


@pytest.mark.parametrize("whole", [b"\xc1" * 9000, frames.encode((1, 0, [(1, ["x" * 9000])]))])
def test_a_large_frame_that_is_none_ends_the_stream(
    target: Target, attacker: Attacker, whole: bytes
) -> None:
    attacker.session.received(whole)
    target.until(lambda: attacker.read() >= 0 and attacker.goodbye is not None)
    assert attacker.goodbye is not None
    assert attacker.goodbye[0] == "Invalid"
    target.check_alive()


def test_a_stream_that_ends_half_way_leaves_nothing(target: Target, attacker: Attacker) -> None:
    attacker.ask(GetMany(KEYS))
    target.turn()
    attacker.session.close()
    assert target.sessions.large_frames.bytes == 0
    target.check_alive()


def test_a_large_first_frame_ends_the_session(target: Target) -> None:
    session = target.sessions.open("somebody", lambda: None)
    session.received(frames.encode((1, 0, [(1, GetMany(KEYS))], [], False)))
    assert session.ended
    assert target.sessions.large_frames.bytes == 0


def test_a_list_that_is_longer_than_any_may_be_is_refused(
    target: Target, attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REQUEST_ITEMS_MAX", 5000)
    name, message, _ = attacker.failure(GetMany(KEYS))
    assert name == "ValueTooLarge"
    assert "a list of 20000; one request may have 5000" in message
    assert attacker.result(Get(b"k"))[0] is None, "the stream goes on"
    target.check_alive()


def test_a_sign_of_life_comes_before_the_client_asks_for_one() -> None:
    assert intake.SIGN_OF_LIFE_SECONDS < 0.5

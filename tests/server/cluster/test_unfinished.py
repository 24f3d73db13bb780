"""Frames that do not come to their end: a budget for all streams of clients together."""

from __future__ import annotations

from postroom.server.cluster.intake import Unfinished


class Stream:
    def __init__(self) -> None:
        self.ended = False

    def end_unfinished(self) -> None:
        self.ended = True


def test_the_frame_that_was_begun_first_makes_room() -> None:
    unfinished = Unfinished(100)
    slow, another, newest = Stream(), Stream(), Stream()
    unfinished.holds(slow, 10, began=True)
    unfinished.holds(another, 60, began=True)
    unfinished.holds(slow, 30, began=False)
    assert unfinished.bytes == 90
    unfinished.holds(newest, 20, began=True)
    assert (slow.ended, another.ended, newest.ended) == (True, False, False)
    assert unfinished.bytes == 80


def test_a_frame_that_comes_to_its_end_gives_its_room_back() -> None:
    unfinished = Unfinished(100)
    streams = [Stream() for _ in range(3)]
    for _ in range(1000):
        for stream in streams:
            unfinished.holds(stream, 30, began=True)
        for stream in streams:
            unfinished.holds(stream, 0, began=True)
    assert unfinished.bytes == 0
    assert not any(stream.ended for stream in streams)


def test_a_stream_that_is_always_within_a_frame_is_as_old_as_its_last_one() -> None:
    unfinished = Unfinished(100)
    busy, idle = Stream(), Stream()
    unfinished.holds(busy, 50, began=True)
    unfinished.holds(idle, 40, began=True)
    unfinished.holds(busy, 50, began=True)
    unfinished.holds(busy, 70, began=False)
    assert (busy.ended, idle.ended) == (False, True)
    assert unfinished.bytes == 70


def test_one_that_has_gone_holds_nothing() -> None:
    unfinished = Unfinished(100)
    stream = Stream()
    unfinished.holds(stream, 50, began=True)
    unfinished.forget(stream)
    unfinished.forget(stream)
    assert unfinished.bytes == 0

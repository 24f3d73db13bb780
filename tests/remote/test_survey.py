"""A survey's conversations, by hand."""

from __future__ import annotations

import random  # noqa: TID251 (seeded)
from typing import Any

from postroom.client.remote import wire
from postroom.client.remote.survey import _Asking


class Streams:
    """Opens nothing."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, link: int, address: str) -> None:
        self.opened.append(address)

    def output(self, link: int) -> None: ...


def welcome(*nodes: tuple[int, str]) -> bytes:
    return wire.encode(wire.Welcome(wire.PROTOCOL_VERSION, 1, 1, 1, list(nodes), 100))


def said(asking: Any, link: int) -> list[Any]:
    frames = []
    while (frame := asking.take(link)) is not None:
        frames.append(wire.from_client(frame))
    return frames


def test_a_welcome_that_comes_unasked_is_not_answered_again() -> None:
    """The node would take the same numbers for a mistake, and end the stream."""
    streams = Streams()
    asking = _Asking(streams, random.Random(1))  # type: ignore[arg-type]
    asking.greet("one:1")
    asking.received(1, welcome((1, "one:1")))
    assert len(said(asking, 1)) == 2
    asking.received(1, welcome((1, "one:1"), (2, "two:1")))
    assert said(asking, 1) == []
    assert streams.opened == ["one:1", "two:1"]

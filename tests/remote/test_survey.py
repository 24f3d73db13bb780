"""A survey's conversations, by hand."""

from __future__ import annotations

import random  # noqa: TID251 (seeded)
from typing import Any

from postroom.client.remote.nodes import _Asking
from postroom.client.routing.search import in_words
from postroom.protocol import frames


class Streams:
    """Streams of which none opens."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, link: int, address: str) -> None:
        self.opened.append(address)

    def output(self, link: int) -> None: ...


def welcome(*nodes: tuple[int, str]) -> bytes:
    return frames.encode(frames.Welcome(frames.PROTOCOL_VERSION, 1, 1, 1, list(nodes), 100, 1))


def said(asking: Any, link: int) -> list[Any]:
    messages = []
    while (frame := asking.take(link)) is not None:
        messages.append(frames.from_client(frame))
    return messages


def test_a_welcome_that_comes_unasked_is_not_answered_again() -> None:
    """The node would take the same numbers for a mistake, and end the stream."""
    streams = Streams()
    asking = _Asking(streams, random.Random(1), follow=True)  # type: ignore[arg-type]
    asking.greet("one:1")
    asking.received(1, welcome((1, "one:1")))
    assert len(said(asking, 1)) == 2
    asking.received(1, welcome((1, "one:1"), (2, "two:1")))
    assert said(asking, 1) == []
    assert streams.opened == ["one:1", "two:1"]


def test_an_error_tells_a_reason_once_for_all_nodes_that_gave_it() -> None:
    said = in_words({"a:1": "nobody listens", "b:1": "no answer", "c:1": "nobody listens"})
    assert said == "a:1, c:1: nobody listens; b:1: no answer"


def test_a_refusal_of_several_nodes_is_said_once() -> None:
    reasons = {each: f"{each} refuses: the token is not known here" for each in ("a:1", "b:1")}
    assert in_words(reasons) == "a:1, b:1: refuses: the token is not known here"

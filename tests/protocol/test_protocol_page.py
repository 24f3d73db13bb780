"""The conversation in ``conversation.txt`` is what client and node really say.

``pytest tests/protocol/test_protocol_page.py --rewrite`` writes it anew: read the difference.
The first two lines are how a stream begins, with preambles and lengths; of the frames after them
the lengths are left out.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any, Final

import msgspec
import pytest

from postroom.client.routing.router import Router
from postroom.limits import PEER_MESSAGE_BYTES_MAX
from postroom.messaging.requests import EnqueueMessage
from postroom.protocol import frames, streams
from postroom.protocol.failures import CLOCK_AHEAD, NOT_LEASEHOLDER, WITHDRAWN
from postroom.ranges.requests import CommitTransaction, ConditionalPut, Get, Put
from postroom.server.cluster.sessions import Sessions
from tests.client.stores import Store
from tests.remote.scripted_nodes import Asked

PAGE: Final = Path(__file__).parents[2] / "docs" / "protocol.md"
CONVERSATION: Final = Path(__file__).parent / "conversation.txt"


class Overheard:
    """The port of a router whose only stream leads to a session; all frames are written down."""

    def __init__(self, sessions: Sessions) -> None:
        self.session = sessions.open("", lambda: None)
        self.lines: list[str] = []
        self.router: Router

    def open(self, link: int, address: str) -> None:
        """Do nothing: the stream is open."""

    def output(self, link: int) -> None:
        """Do nothing: output is looked for."""

    def close(self, link: int) -> None:
        """Do nothing: the stream stays open."""

    def alarm(self, when: float) -> None:
        """Set no alarm, since no time passes."""

    def carry(self, store: Store) -> None:
        while (frame := self.router.take(1)) is not None:
            self.note("→", frame)
            self.session.received(frame)
        store.driver.settle()
        while (frame := self.session.take()) is not None:
            self.note("←", frame)
            self.router.received(1, frame)

    def note_first(self, arrow: str, data: bytes) -> None:
        """Note a preamble and a frame, as they are sent."""
        (frame,) = streams.Incoming().feed(data)
        preamble = streams.PREAMBLE.decode().strip()
        self.lines.append(f"{arrow} {preamble} {plain(msgspec.msgpack.decode(frame))}")
        self.lines += [f"    {line}" for line in textwrap.wrap(data.hex(" "), 96)]

    def note(self, arrow: str, frame: bytes) -> None:
        told = textwrap.wrap(plain(msgspec.msgpack.decode(frame)), 110, break_long_words=False)
        self.lines += [f"{arrow} {told[0]}", *(f"  {line}" for line in told[1:])]
        self.lines += [f"    {line}" for line in textwrap.wrap(frame.hex(" "), 96)]


def plain(value: Any) -> str:
    """Return a value as it is told."""
    match value:
        case None:
            return "nil"
        case bool():
            return str(value).lower()
        case bytes():
            return repr(value)[1:].replace("'", '"') if value.isascii() else f"h'{value.hex()}'"
        case str():
            return f"`{value}`"
        case list() | tuple():
            return f"[{', '.join(map(plain, value))}]"
    return str(value)


def conversation() -> str:
    store = Store()
    overheard = Overheard(Sessions(store.node))
    opening, accepted = streams.Opening(streams.TALK), streams.Accepted()
    overheard.note_first("→", streams.opening_bytes(opening))
    overheard.note_first("←", streams.reply_bytes(accepted))
    router = overheard.router = Router(["node:7400"], overheard, store.clock.monotonic, Random(1))
    router.start()
    router.tick()
    overheard.carry(store)
    began = router.reading()
    writes = [Put(b"order/1", b"paid"), EnqueueMessage(b"shipping", b"order/1")]
    id_ = router.client + (1).to_bytes(8, "big")
    for request in (
        CommitTransaction(id_, began, 60.0, 0, b"order/1", [], [], writes),
        Get(b"nothing"),
    ):
        router.submit(Asked(request))
    overheard.carry(store)
    wrong = [ConditionalPut(b"order/1", b"sent", b"open")]
    id_ = router.client + (2).to_bytes(8, "big")
    router.submit(Asked(CommitTransaction(id_, began, 60.0, 0, b"order/1", [], [], wrong)))
    overheard.carry(store)
    store.db.close()
    return "\n".join(overheard.lines) + "\n"


def test_the_conversation_is_a_real_one(request: pytest.FixtureRequest) -> None:
    told = conversation()
    if request.config.getoption("--rewrite"):
        CONVERSATION.write_text(told)
    assert CONVERSATION.read_text() == told


def test_the_page_tells_the_limits_and_the_codes_of_refusals() -> None:
    page = PAGE.read_text()
    for limit in (
        frames.FRAME_BYTES_MAX,
        streams.OPENING_BYTES_MAX,
        PEER_MESSAGE_BYTES_MAX,
        frames.REQUESTS_PER_FRAME_MAX,
    ):
        assert f"{limit:,}" in page
    for code in (streams.UNAVAILABLE, streams.DENIED, streams.REFUSED, streams.MALFORMED):
        assert f"`{code}`" in page
    for failure in (NOT_LEASEHOLDER, CLOCK_AHEAD, WITHDRAWN):
        assert f"`{failure}`" in page

"""The conversations in ``conversation*.txt`` are what client and node really say.

``pytest tests/protocol/test_protocol_page.py --rewrite`` writes them anew: read the difference.
The first two lines are how a stream begins, with preambles and lengths; of the frames after them
the lengths are left out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
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
from tests.server.splitting import split

PAGE: Final = Path(__file__).parents[2] / "docs" / "protocol.md"
CONVERSATIONS: Final = Path(__file__).parent
TICK_SECONDS: Final = 0.25


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
        """Carry frames until neither side has one."""
        is_quiet = False
        while not is_quiet:
            is_quiet = True
            while (frame := self.router.take(1)) is not None:
                self.note("→", frame)
                self.session.received(frame)
                is_quiet = False
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


class Talk:
    """A client and a node, from the first frames on.

    Args:
        store: the store of the node.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._overheard = overheard = Overheard(Sessions(store.node))
        overheard.note_first("→", streams.opening_bytes(streams.Opening(streams.TALK)))
        overheard.note_first("←", streams.reply_bytes(streams.Accepted()))
        self._router = overheard.router = Router(
            ["node:7400"], overheard, store.clock.monotonic, Random(1)
        )
        self._router.start()
        self._router.tick()
        overheard.carry(store)
        self._began = self._router.reading()
        self._commits = 0

    def ask(self, *requests: Any) -> None:
        """Have the client ask, and the node answer."""
        calls = [Asked(request) for request in requests]
        for call in calls:
            self._router.submit(call)
        self._overheard.carry(self._store)
        while not all(call.done for call in calls):
            self._store.advance(TICK_SECONDS)
            self._router.tick()
            self._overheard.carry(self._store)

    def commit(self, *writes: Any) -> CommitTransaction:
        """Return the commit of these writes."""
        self._commits += 1
        id_ = self._router.client + self._commits.to_bytes(8, "big")
        anchor = writes[0].anchor()
        return CommitTransaction(id_, self._began, 60.0, 0, anchor, [], [], list(writes))

    def told(self) -> str:
        """Return what was said."""
        return "\n".join(self._overheard.lines) + "\n"


def conversation(store: Store) -> str:
    talk = Talk(store)
    writes = Put(b"order/1", b"paid"), EnqueueMessage(b"shipping", b"order/1")
    talk.ask(talk.commit(*writes), Get(b"nothing"))
    talk.ask(talk.commit(ConditionalPut(b"order/1", b"sent", b"open")))
    return talk.told()


def conversation_over_ranges(store: Store) -> str:
    """Return a conversation over ranges that end at m and, after its first answer, at s."""
    split(store, b"m")
    talk = Talk(store)
    talk.ask(Get(b"order/1"))
    split(store, b"s")
    talk.ask(Get(b"stock/1"))
    talk.ask(talk.commit(Put(b"order/1", b"paid"), Put(b"stock/1", b"6")))
    return talk.told()


@pytest.mark.parametrize("told", [conversation, conversation_over_ranges])
def test_the_conversation_is_a_real_one(
    told: Callable[[Store], str], request: pytest.FixtureRequest
) -> None:
    store = Store()
    said = told(store)
    store.db.close()
    written = CONVERSATIONS / f"{told.__name__}.txt"
    if request.config.getoption("--rewrite"):
        written.write_text(said)
    assert written.read_text() == said


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

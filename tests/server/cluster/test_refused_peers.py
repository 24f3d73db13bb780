"""Streams between nodes that close when anything is wrong: strangers, refusals, noise."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import msgspec
import pytest

from postroom.limits import PEER_MESSAGE_BYTES_MAX
from postroom.protocol import streams
from postroom.protocol.streams import UNAVAILABLE, Incoming, Opening, StreamRefusal, framed
from postroom.server.cluster import native_server, peer_links
from postroom.server.cluster import peers as module
from postroom.server.cluster.dialing import Introduction
from tests.server.cluster.streams import (
    CLUSTER,
    WAIT_SECONDS,
    Talker,
    cluster,
    run,
    store,
    talkers,
    until,
)

encode = msgspec.msgpack.encode


class Stranger:
    """A stranger who opens a native stream to a node and says what it likes."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def open(self, argument: bytes, method: str = streams.FRAMES) -> None:
        host, port = self._address.split(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        self.incoming = Incoming()
        self.writer.write(streams.opening_bytes(Opening(method, argument)))

    async def frames(self) -> list[bytes]:
        """Return all that the node says."""
        frames = []
        with contextlib.suppress(ConnectionError):
            while data := await asyncio.wait_for(self.reader.read(65536), WAIT_SECONDS):
                frames += self.incoming.feed(data)
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()
        return frames

    async def say(self, argument: bytes, *frames: bytes) -> str:
        """Return the code with which the stream ends; empty: none was given."""
        await self.open(argument)
        for frame in frames:
            self.writer.write(framed(frame))
        said = [streams.read_reply(frame) for frame in await self.frames()]
        return said[-1].code if said and isinstance(said[-1], StreamRefusal) else ""


def introduction(one: Talker, who: Talker, /, **changes: Any) -> bytes:
    said = Introduction(1, CLUSTER, who.node_id, store(who.node_id), who.address, one.node_id)
    return encode(msgspec.structs.replace(said, **changes))


REFUSED = [
    ({"version": 2}, "version 2"),
    ({"cluster_id": b"d" * 16}, "another cluster"),
    ({"receiver": 3}, "it means node 3"),
    ({"store_id": store(9)}, "another disk"),
    ({"sender": 50}, "removed"),
    ({"sender": 1, "store_id": store(1)}, "which is this one"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_a_caller_that_is_no_node_of_this_cluster_is_refused(
    changes: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            said = introduction(one, two, **changes)
            assert await Stranger(one.address).say(said, encode([b"frame"])) == streams.REFUSED
            assert one.frames == []
            assert one.peers.connected(2)

    with caplog.at_level(logging.WARNING):
        run(main())
    assert reason in caplog.text


def test_the_reason_arrives_though_more_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unread bytes at the close of a connection make TCP reset it."""
    monkeypatch.setattr(native_server, "LINGER_SECONDS", 20.0)  # whatever holds this machine up

    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            stranger = Stranger(one.address)
            await stranger.open(introduction(one, two, version=2))
            transport = stranger.writer.transport
            transport.set_write_buffer_limits(high=2**30)
            stranger.writer.write(bytes(8_000_000))
            await until(lambda: transport.get_write_buffer_size() == 0)
            said = [streams.read_reply(frame) for frame in await stranger.frames()]
            assert [each.code for each in said if isinstance(each, StreamRefusal)] == [
                streams.REFUSED
            ]

    run(main())


def test_a_refusal_is_logged_once_and_retried_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peer_links, "LONGEST_PAUSE_SECONDS", peer_links.PAUSE_SECONDS_MIN)
    wrong = "it means node 3, this is node 2"
    seconds = 0.0

    def said() -> list[logging.LogRecord]:
        return [each for each in caplog.records if wrong in each.getMessage()]

    async def main() -> None:
        nonlocal seconds
        async with talkers(1, 2) as (one, two):
            three = msgspec.structs.replace(two.descriptor, node_id=3, store_id=store(3))
            began = one.peers.monotonic()
            one.peers.follow(msgspec.structs.replace(cluster(one, two), nodes=(
                one.descriptor, two.descriptor, three
            )))  # fmt: skip
            await asyncio.sleep(2.0)
            await until(lambda: len(said()) >= 4)
            seconds = one.peers.monotonic() - began

    with caplog.at_level(logging.DEBUG):
        run(main())
    warned = [each.name.rpartition(".")[2] for each in said() if each.levelno == logging.WARNING]
    assert sorted(warned) == ["nodes_service", "peer_links"]
    # Each pause is at least half of one twice as long as the one before it, the longest 2.5 s.
    attempts = 2 + math.log2(1 + 2 * seconds / peer_links.PAUSE_SECONDS_MIN) + seconds
    assert len(said()) <= 2 * attempts, "with pauses that do not grow there would be a hundred"


def test_a_second_refusal_after_an_acceptance_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            for _ in range(2):
                two.peers.distrust(1)
                one.peers.send(2, b"closes the stream")
                await until(lambda: not one.peers.connected(2))
                await until(lambda: one.peers.connected(2))

    run(main())
    refused = [each for each in caplog.messages if "refuses: a frame of it" in each]
    assert len(refused) == 2


def test_a_node_calls_no_peer_at_its_own_address() -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            lost = msgspec.structs.replace(one.descriptor, node_id=3, store_id=store(3))
            one.peers.follow(msgspec.structs.replace(cluster(one, two), nodes=(
                one.descriptor, two.descriptor, lost
            )))  # fmt: skip
            assert list(one.peers._links) == [2]

    run(main())


def test_a_peer_that_stops_is_not_blamed(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            await two.close()
            await until(lambda: not one.peers.connected(2))
            await until(lambda: "lost the connection from node 2" in caplog.text)
            await two.listen()

    with caplog.at_level(logging.INFO):
        run(main())
    assert "bytes" not in caplog.text


def test_a_frame_that_is_too_large_is_told_where_it_came_from(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            one.peers.send(2, bytes(PEER_MESSAGE_BYTES_MAX + 1))
            await until(lambda: f"the limit is {PEER_MESSAGE_BYTES_MAX}" in caplog.text)
            await until(lambda: one.peers.connected(2))
            assert two.frames == []

    with caplog.at_level(logging.INFO):
        run(main())


def test_one_that_is_not_known_is_let_in_only_while_nobody_leads() -> None:
    """It may have been admitted after what is known here, and may be needed to elect a leader."""

    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            said = introduction(one, two, sender=100, store_id=store(7))
            assert await Stranger(one.address).say(said) == UNAVAILABLE
            one.peers.has_leader = lambda: False
            new = Stranger(one.address)
            await new.open(said)
            new.writer.write(framed(b"frame"))
            await until(lambda: one.frames == [(100, b"frame")])
            new.writer.close()

    run(main())


def test_a_second_stream_of_a_node_is_refused_while_the_first_one_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LIVE_SECONDS", 3600.0)  # whatever holds this machine up

    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            said = introduction(one, two)
            two.peers.send(1, b"here")
            await until(lambda: one.frames)
            assert await Stranger(one.address).say(said, b"forged") == UNAVAILABLE
            assert one.frames == [(2, b"here")]
            # One that stands still is replaced: its node may have lost it without knowing here.
            monkeypatch.setattr(module, "LIVE_SECONDS", 0.0)
            new = Stranger(one.address)
            await new.open(said)
            new.writer.write(framed(b"again"))
            await until(lambda: (2, b"again") in one.frames)
            new.writer.close()

    run(main())


def test_a_frame_whose_length_is_too_large_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with talkers(1, 3) as (one, three):
            one.peers.follow(cluster(one, Talker(2), three))
            stranger = Stranger(one.address)
            await stranger.open(introduction(one, Talker(2)))
            await until(lambda: 2 in one.peers._arrivals)
            stranger.writer.write(framed(b"good") + (PEER_MESSAGE_BYTES_MAX + 1).to_bytes(4, "big"))
            said = [streams.read_reply(frame) for frame in await stranger.frames()]
            assert isinstance(said[-1], StreamRefusal)
            assert said[-1].code == streams.MALFORMED
            assert one.frames == [(2, b"good")]

    with caplog.at_level(logging.INFO):
        run(main())
    assert "the stream of node 2 is closed: a frame of" in caplog.text


def test_callers_are_turned_away_before_there_is_a_node() -> None:
    async def main() -> None:
        one = Talker(1)
        await one.listen()
        try:
            assert await Stranger(one.address).say(b"") == UNAVAILABLE
        finally:
            await one.close()

    run(main())


@pytest.mark.parametrize("seed", range(3))
def test_noise(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Random first messages and frames, and good ones with a byte changed."""
    random = Random(seed)

    def spoiled(message: bytes) -> bytes:
        spoiled = bytearray(message)
        for _ in range(random.randint(1, 3)):
            spoiled[random.randrange(len(spoiled))] = random.randrange(256)
        return bytes(spoiled[: random.randint(1, len(spoiled))])

    async def main() -> None:
        async with talkers(1, 3) as (one, three):
            one.peers.follow(cluster(one, Talker(2), three))
            good = introduction(one, Talker(2))
            for _ in range(40):
                code = await Stranger(one.address).say(spoiled(good), encode([b"never"]), b"\xc1")
                assert code in {streams.REFUSED, streams.MALFORMED}
            assert not one.frames
            one.peers.send(3, b"unharmed")
            await until(lambda: three.frames[-1:] == [(1, b"unharmed")])

    with caplog.at_level(logging.WARNING):
        run(main())


@pytest.mark.parametrize("seed", range(3))
def test_noise_behind_a_good_introduction(seed: int) -> None:
    """Bytes that are no frames, and lengths that are lies."""
    random = Random(seed)

    async def main() -> None:
        async with talkers(1, 3) as (one, three):
            one.peers.follow(cluster(one, Talker(2), three))
            for _ in range(30):
                stranger = Stranger(one.address)
                await stranger.open(introduction(one, Talker(2)))
                stranger.writer.write(random.randbytes(random.randint(0, 300)))
                if random.random() < 0.5:
                    stranger.writer.write_eof()
                else:
                    stranger.writer.write(b"\xff" * 8)
                await stranger.frames()
                await until(lambda: 2 not in one.peers._arrivals)
            one.peers.send(3, b"unharmed")
            await until(lambda: three.frames[-1:] == [(1, b"unharmed")])

    run(main())

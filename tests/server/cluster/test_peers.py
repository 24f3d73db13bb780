"""Streams between nodes: order, reconnecting, limits, pauses."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from typing import Any

import pytest

from postroom.protocol import streams
from postroom.server.cluster import peer_links, peers
from postroom.server.cluster.dialing import NoAnswer
from postroom.server.cluster.peer_links import PeerLink
from tests.server.cluster.streams import (
    Talker,
    cluster,
    run,
    talkers,
    until,
)

# --- frames ---------------------------------------------------------------------------------------


def test_frames_arrive_in_order() -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            sent = [b"%d" % number for number in range(500)]
            for frame in sent[:250]:
                one.peers.send(2, frame)
            two.peers.send(1, b"hello")
            await until(lambda: two.frames)
            for frame in sent[250:]:
                one.peers.send(2, frame)
            await until(lambda: len(two.frames) == len(sent))
            assert two.frames == [(1, frame) for frame in sent]
            await until(lambda: one.frames == [(2, b"hello")])

    run(main())


def test_a_frame_leaves_before_send_returns() -> None:
    """It is on its way while the node syncs its own log."""

    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            link = one.peers._links[2]
            transport = link._stream._stream._transport  # type: ignore[union-attr]
            own = transport.get_extra_info("socket")
            before = bytes_acknowledged(own)
            one.peers.send(2, bytes(1000))
            assert not link._queue
            assert transport.get_write_buffer_size() == 0
            assert bytes_acknowledged(own) - before >= 1000  # the kernel has them
            await until(lambda: two.frames == [(1, bytes(1000))])

    run(main())


def bytes_acknowledged(own: Any) -> int:
    """Return ``tcpi_bytes_sent`` of the connection (linux/tcp.h)."""
    info: bytes = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return int.from_bytes(info[200:208], "little")


def test_frames_to_nobody_are_dropped() -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, _):
            one.peers.send(9, b"lost")
            assert not one.peers.connected(9)

    run(main())


def test_a_peer_connects_again_when_the_other_comes_back() -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            await two.close()
            await until(lambda: not one.peers.connected(2))
            one.peers.send(2, b"lost, or not")
            await two.listen()
            two.talk(cluster(one, two))
            await until(lambda: one.peers.connected(2) and two.peers.connected(1))
            one.peers.send(2, b"again")
            await until(lambda: (1, b"again") in two.frames)

    run(main())


def test_a_peer_that_moves_is_followed() -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            moved = Talker(2)
            await moved.listen()
            try:
                nodes = cluster(one, moved)
                one.peers.follow(nodes)
                moved.talk(nodes)
                await until(lambda: one.peers.connected(2) and moved.peers.connected(1))
                one.peers.send(2, b"there")
                await until(lambda: moved.frames == [(1, b"there")])
                assert two.frames == []
            finally:
                await moved.close()

    run(main())


def test_a_peer_that_has_moved_before_the_record_knows_is_followed() -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            nodes, moved = cluster(one, two), Talker(2)
            await two.close()
            await moved.listen()
            try:
                moved.talk(nodes)
                await until(lambda: one.peers.connected(2) and moved.peers.connected(1))
                one.peers.send(2, b"there")
                await until(lambda: moved.frames == [(1, b"there")])
                one.peers.follow(cluster(one, moved))  # now it does
                assert one.peers.connected(2)
                one.peers.follow(nodes)
                assert one.peers._links[2].address == two.address
            finally:
                await moved.close()
                await two.listen()

    run(main())


def test_a_peer_that_left_is_not_followed() -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, _):
            one.peers.follow(cluster(one))
            assert not one.peers.connected(2)

    run(main())


def test_frames_that_wait_for_a_peer_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_links, "PEER_QUEUE_BYTES_MAX", 1_000_000)
    monkeypatch.setattr(peers, "PEER_UNREAD_BYTES_MAX", 1_000_000)

    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            two.reads = False
            link = one.peers._links[2]
            for number in range(1000):
                one.peers.send(2, b"%06d" % number + bytes(100_000))
                await asyncio.sleep(0)
            assert link._bytes <= 1_000_000
            two.reads = True
            two.peers.on_frame(1, b"")
            await until(lambda: not link._queue)
            arrived = [frame for _, frame in two.frames]
            assert arrived == sorted(arrived)
            assert len(arrived) < 1000
            one.peers.send(2, bytes(5_000_000))  # larger than the limit, but alone
            await until(lambda: (1, bytes(5_000_000)) in two.frames)

    run(main())


def test_a_peer_that_does_not_read_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_links, "PEER_QUEUE_BYTES_MAX", 4_000_000)
    monkeypatch.setattr(peers, "PEER_UNREAD_BYTES_MAX", 1_000_000)

    async def main() -> None:
        async with talkers(1, 2, 3) as (one, two, three):
            two.reads = False
            for number in range(64):
                one.peers.send(2, bytes(1_000_000))
                one.peers.send(3, b"%02d" % number)
                await until(lambda number=number: len(three.frames) == number + 1)
            assert one.peers._links[2]._bytes <= 4_000_000
            assert two.peers.unread.bytes[1] < 8_000_000
            two.reads = True
            two.peers.on_frame(1, b"")
            one.peers.send(2, b"goes on")
            await until(lambda: two.frames)
            await until(lambda: one.peers.send(2, b"last") or (1, b"last") in two.frames)

    run(main())


# --- pauses ---------------------------------------------------------------------------------------


def test_a_refused_peer_pauses_for_longer_only_while_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The right node may be there after the wrong one has gone; it may be needed."""
    ends = [NoAnswer("why", streams.REFUSED)] * 9
    ends += [NoAnswer("why")] * 2
    pauses: list[float] = []
    real = asyncio.sleep

    async def talk(link: Any) -> None:
        raise ends.pop(0)

    async def sleep(seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():  # a client of another test
            await real(seconds)
            return
        pauses.append(seconds)
        if not ends:
            raise asyncio.CancelledError

    async def main() -> None:
        async with talkers(1, 2) as (one, _):
            link = one.peers._links[2]
            monkeypatch.setattr(PeerLink, "_talk", talk)
            monkeypatch.setattr(peer_links.asyncio, "sleep", sleep)
            link.close()
            link.state = peer_links.PeerLinkState.APART
            with pytest.raises(asyncio.CancelledError):
                await link._run()
            monkeypatch.undo()

    run(main())
    longest, soon = peer_links.LONGEST_REFUSED_PAUSE_SECONDS, peer_links.LONGEST_PAUSE_SECONDS
    assert longest / 2 <= pauses[8] <= longest
    assert max(pauses[9:]) <= soon


def test_a_clean_end_of_a_peer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Its end of the stream is no error then."""

    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            await until(lambda: one.peers.connected(2))
            with caplog.at_level(logging.INFO):
                await two.close()
                await until(lambda: any(
                    record.message.startswith("lost the connection to node 2")
                    for record in caplog.records
                ))  # fmt: skip

    run(main())

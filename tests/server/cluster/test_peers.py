"""Streams between nodes: order, reconnecting, limits; and whatever is wrong closes its stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import grpc
import msgspec
import pytest
from grpc import aio

from postroom.server.cluster import peers as module
from postroom.server.cluster.peers import MESSAGE_BYTES_MAX, STREAM, Introduction
from tests.server.cluster.streams import (
    CLUSTER,
    WAIT_SECONDS,
    Talker,
    cluster,
    store,
    talkers,
    until,
)

encode = msgspec.msgpack.encode
FRAMES_PER_MESSAGE_MAX = module.FRAMES_PER_MESSAGE_MAX


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 60))


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


def test_a_frame_is_handed_to_grpc_before_send_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            link = one.peers._links[2]
            one.peers.send(2, b"now")
            assert link._writing
            assert not link._queue
            await until(lambda: two.frames == [(1, b"now")])

    run(main())


def test_frames_to_nobody_are_dropped() -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, _):
            one.peers.send(9, b"lost")
            assert not one.peers.connected(9)

    run(main())


def test_it_connects_again_when_the_other_comes_back() -> None:
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


def test_who_moves_is_followed() -> None:
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


def test_who_has_moved_before_the_record_knows_is_followed() -> None:
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


def test_who_left_is_not_followed() -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, _):
            one.peers.follow(cluster(one))
            assert not one.peers.connected(2)

    run(main())


def test_what_waits_for_a_peer_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_BYTES_MAX", 1000)

    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            for number in range(1000):
                one.peers.send(2, b"%06d" % number)
            assert one.peers._links[2]._bytes <= 1000
            await until(lambda: len(two.frames) > 100)
            arrived = [frame for _, frame in two.frames]
            assert arrived == sorted(arrived)
            assert len(arrived) < 1000
            await until(lambda: not one.peers._links[2]._queue)
            one.peers.send(2, bytes(5000))  # larger than the limit, but alone
            await until(lambda: (1, bytes(5000)) in two.frames)

    run(main())


def test_a_peer_that_does_not_read_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "QUEUE_BYTES_MAX", 4_000_000)
    monkeypatch.setattr(module, "UNREAD_BYTES_MAX", 1_000_000)

    async def main() -> None:
        async with talkers(1, 2, 3) as (one, two, three):
            two.reads = False
            for number in range(64):
                one.peers.send(2, bytes(1_000_000))
                one.peers.send(3, b"%02d" % number)
                await until(lambda number=number: len(three.frames) == number + 1)
            assert one.peers._links[2]._bytes <= 4_000_000
            assert two.peers._unread_bytes < 8_000_000
            two.reads = True
            two.peers.on_frames()
            one.peers.send(2, b"goes on")
            await until(lambda: two.frames)
            await until(lambda: one.peers.send(2, b"last") or (1, b"last") in two.frames)

    run(main())


def test_a_late_word_of_an_old_stream_does_not_end_the_new_one() -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            link = one.peers._links[2]
            link._written(object(), RuntimeError("the old stream's"))
            one.peers.send(2, b"still there")
            await until(lambda: two.frames == [(1, b"still there")])
            assert not link._broken.is_set()

    run(main())


# --- what is wrong --------------------------------------------------------------------------------


REFUSED_CODES = {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INTERNAL}
"""The second is what gRPC says if the stream ends while something is being written."""


class Stranger:
    """Somebody who opens a stream to a node and says what it likes."""

    def __init__(self, address: str, options: tuple[tuple[str, Any], ...] = ()) -> None:
        self.channel = aio.insecure_channel(address, options=options)
        self.call = self.channel.stream_unary(STREAM)()

    async def say(self, *messages: bytes) -> grpc.StatusCode:
        """How the stream ends."""
        try:
            for message in messages:
                await self.call.write(message)
            await asyncio.wait_for(self.call, WAIT_SECONDS)
        except (aio.AioRpcError, asyncio.InvalidStateError):
            pass
        finally:
            await self.channel.close()
        return await self.call.code()


def introduction(one: Talker, who: Talker, /, **changes: Any) -> bytes:
    said = Introduction(1, CLUSTER, who.node_id, store(who.node_id), who.address, one.node_id)
    return encode(msgspec.structs.replace(said, **changes))


REFUSED = [
    ({"version": 2}, "version 2"),
    ({"cluster_id": b"d" * 16}, "another cluster"),
    ({"receiver": 3}, "it means node 3"),
    ({"store_id": store(9)}, "another disk"),
    ({"sender": 50}, "removed"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_who_is_not_a_node_of_this_cluster_is_refused(
    changes: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            said = introduction(one, two, **changes)
            code = await Stranger(one.address).say(said, encode([b"frame"]))
            assert code in REFUSED_CODES
            assert one.frames == []
            assert one.peers.connected(2)

    with caplog.at_level(logging.WARNING):
        run(main())
    assert reason in caplog.text


def test_a_refusal_is_logged_once_and_retried_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS_MAX", module.PAUSE_SECONDS_MIN)
    wrong = "it means node 3, this is node 2"

    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            three = msgspec.structs.replace(two.descriptor, node_id=3, store_id=store(3))
            one.peers.follow(msgspec.structs.replace(cluster(one, two), nodes=(
                one.descriptor, two.descriptor, three
            )))  # fmt: skip
            await asyncio.sleep(2.0)

    with caplog.at_level(logging.DEBUG):
        run(main())
    said = [each for each in caplog.records if wrong in each.getMessage()]
    warned = [each.name.rpartition(".")[2] for each in said if each.levelno == logging.WARNING]
    assert sorted(warned) == ["nodes_service", "peers"]
    assert 4 <= len(said) <= 24, "with pauses that do not grow there would be a hundred"


def test_who_is_refused_again_after_it_was_accepted_is_news(
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


def test_nobody_else_is_looked_for_at_the_own_address() -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            lost = msgspec.structs.replace(one.descriptor, node_id=3, store_id=store(3))
            one.peers.follow(msgspec.structs.replace(cluster(one, two), nodes=(
                one.descriptor, two.descriptor, lost
            )))  # fmt: skip
            assert list(one.peers._links) == [2]

    run(main())


def test_who_stops_is_not_suspected_of_anything(caplog: pytest.LogCaptureFixture) -> None:
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
            one.peers.send(2, bytes(MESSAGE_BYTES_MAX))
            await until(lambda: f"at most {MESSAGE_BYTES_MAX} bytes" in caplog.text)
            await until(lambda: one.peers.connected(2))
            assert two.frames == []

    with caplog.at_level(logging.INFO):
        run(main())


def test_one_that_was_admitted_lately_is_let_in() -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            stranger = Stranger(one.address)
            await stranger.call.write(introduction(one, two, sender=100, store_id=store(7)))
            await stranger.call.write(encode([b"frame"]))
            await until(lambda: one.frames == [(100, b"frame")])
            stranger.call.cancel()
            await stranger.channel.close()

    run(main())


MALFORMED = {
    "nothing": b"",
    "no list": encode("frames"),
    "no bytes": encode([1, 2]),
    "cut short": encode([bytes(100)])[:50],
    "too many": encode([b""] * (FRAMES_PER_MESSAGE_MAX + 1)),
    "more behind": encode([b"x"]) + b"\x01",
}


@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_frames_close_the_stream(
    message: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            stranger = Stranger(one.address)
            code = await stranger.say(introduction(one, two), encode([b"good"]), message)
            assert code in REFUSED_CODES
            assert one.frames == [(2, b"good")]
            one.peers.send(2, b"unharmed")
            await until(lambda: two.frames == [(1, b"unharmed")])

    with caplog.at_level(logging.WARNING):
        run(main())
    assert "the stream of node 2 is closed: malformed frames" in caplog.text


def test_a_message_that_is_too_large_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with talkers(1, 2) as (one, two):
            unlimited = (("grpc.max_send_message_length", -1),)
            stranger = Stranger(one.address, unlimited)
            code = await stranger.say(
                introduction(one, two), encode([bytes(MESSAGE_BYTES_MAX)]), encode([b"after it"])
            )
            assert code in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL}
            await until(lambda: "lost the connection from node 2" in caplog.text)
            assert one.frames == []

    with caplog.at_level(logging.INFO):
        run(main())


def test_nobody_is_listened_to_before_there_is_a_node() -> None:
    async def main() -> None:
        one = Talker(1)
        await one.listen()
        try:
            assert await Stranger(one.address).say(b"") is grpc.StatusCode.UNAVAILABLE
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
        async with talkers(1, 2) as (one, two):
            good = introduction(one, two)
            for _ in range(40):
                if random.random() < 0.5:
                    first, then = spoiled(good), encode([b"never"])
                else:
                    first, then = good, random.choice([spoiled(encode([b"", b"\x00"])), b"\xc1"])
                stranger = Stranger(one.address)
                assert await stranger.say(first, then, b"\xc1") in REFUSED_CODES
            assert (2, b"never") not in one.frames
            one.peers.send(2, b"unharmed")
            await until(lambda: two.frames[-1:] == [(1, b"unharmed")])

    with caplog.at_level(logging.WARNING):
        run(main())


# --- pauses ---------------------------------------------------------------------------------------


def failing(code: grpc.StatusCode) -> aio.AioRpcError:
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata(), details="why")


def test_who_is_refused_pauses_for_longer_only_while_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The right node may be there after the wrong one has gone; it may be needed."""
    ends = [failing(grpc.StatusCode.FAILED_PRECONDITION)] * 9
    ends += [failing(grpc.StatusCode.UNAVAILABLE)] * 2
    pauses: list[float] = []

    async def talk(link: Any) -> None:
        raise ends.pop(0)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if not ends:
            raise asyncio.CancelledError

    async def main() -> None:
        async with talkers(1, 2) as (one, _):
            link = one.peers._links[2]
            monkeypatch.setattr(module._Link, "_talk", talk)
            monkeypatch.setattr(module.asyncio, "sleep", sleep)
            with pytest.raises(asyncio.CancelledError):
                await link._run()
            monkeypatch.undo()

    run(main())
    longest, soon = module.REFUSED_PAUSE_SECONDS_MAX, module.PAUSE_SECONDS_MAX
    assert longest / 2 <= pauses[8] <= longest
    assert max(pauses[9:]) <= soon


def test_it_is_told_when_the_other_ends_in_good_order(caplog: pytest.LogCaptureFixture) -> None:
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

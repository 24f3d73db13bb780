"""A router and the nodes around it, all by hand: what it sends is read, what it hears is said."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)
from typing import Any

from postroom.client.routing.calls import RemoteCall
from postroom.client.routing.router import Router
from postroom.errors import (
    Unavailable,
)
from postroom.protocol import frames
from postroom.protocol.failures import NOT_LEASEHOLDER, WRONG_RANGE
from postroom.protocol.requests import REQUESTS, REVISION, Requests
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.requests import (
    Committed,
    CommitTransaction,
    Get,
    Put,
    Value,
)

NODES = [(1, "a:1"), (2, "b:1"), (3, "c:1")]
CLOCK = 1_700_000_000_000 << 16


class Asked(RemoteCall):
    """A request, and what was said to it."""

    __slots__ = ("answers", "error", "result")

    def __init__(self, request: Any, timeout_seconds: float | None = None) -> None:
        super().__init__(request, timeout_seconds)
        self.answers = 0
        self.result: Any = None
        self.error: BaseException | None = None

    def complete(self, result: Any, error: BaseException | None) -> None:
        self.answers += 1
        assert self.answers == 1, "answered twice"
        self.result, self.error = result, error


class Stream:
    """A node's end of a stream, and what has come in on it."""

    def __init__(self, world: World, link: int, address: str) -> None:
        self.world = world
        self.link = link
        self.address = address
        self.open = True
        self.hello: frames.Hello | None = None
        self.requests: dict[int, Any] = {}
        self.named: dict[int, tuple[int, int]] = {}
        self.withdrawn: list[int] = []
        self.looked_up = 0
        self.frames = 0

    def read(self) -> None:
        """Take what the router has."""
        while self.open and (frame := self.world.router.take(self.link)) is not None:
            message = frames.from_client(frame, self.world.decoder)
            self.frames += 1
            if isinstance(message, frames.Hello):
                assert self.hello is None
                self.hello = message
            else:
                self.requests |= dict(message.requests)
                for number, _ in message.requests:
                    self.named.pop(number, None)
                for number, range_id, generation in message.ranges:
                    self.named[number] = (range_id, generation)
                self.withdrawn += message.withdrawn
                self.looked_up += message.looks_up

    def say(self, *message: Any) -> None:
        self.world.router.received(self.link, frames.encode(message))
        self.world.read()

    def welcome(self, leader: int, requests_max: int = 100, *revision: int) -> None:
        """Welcome the client as a node of this version does, or of another ``revision``."""
        node = next(node for node, address in NODES if address == self.address)
        self.say(
            0, 1, self.world.clock(), node, leader, NODES, requests_max, *(revision or [REVISION])
        )

    def leads(self, *ranges: RangeDescriptor, leader: int = 1) -> None:
        """Welcome the client as the node that leads ``ranges``; ``leader`` leads the first one."""
        node = next(node for node, address in NODES if address == self.address)
        self.say(0, 1, self.world.clock(), node, leader, NODES, 100, REVISION, ranges)

    def answer(self, number: int, result: Any, *, lease: int = 1) -> None:
        del self.requests[number]
        self.say(1, self.world.clock(), lease, [(number, result)])

    def fail(self, number: int, name: str, extra: Any = None) -> None:
        del self.requests[number]
        self.say(1, self.world.clock(), 1, [(number, None, (name, "because", extra))])

    def redirect(self, number: int, leader: int | None, *ranges: RangeDescriptor) -> None:
        """Refuse a request, because ``leader`` leads the only range, or that of ``ranges``."""
        address = dict(NODES).get(leader or 0)
        extra = (leader or 0, address or "", *ranges) if address or ranges else None
        self.fail(number, NOT_LEASEHOLDER, extra)

    def misdirected(self, number: int, *ranges: RangeDescriptor) -> None:
        """Refuse a request, because it is for one of ``ranges``."""
        self.fail(number, WRONG_RANGE, ranges)

    def breaks(self) -> None:
        self.open = False
        self.world.router.disconnected(self.link, Unavailable("reset"))
        self.world.read()


class World:
    """A router, its port, and the time."""

    def __init__(
        self,
        addresses: list[str] | None = None,
        requests: Requests = REQUESTS,
        **options: Any,
    ) -> None:
        self.decoder = frames.decoder_of(requests.request)
        self.now = 10.0
        self.alarm_at = float("inf")
        self.streams: dict[int, Stream] = {}
        self.router = Router(addresses or ["a:1"], self, lambda: self.now, Random(5), **options)
        self.router.start()
        self.pass_time(0.0)

    def clock(self) -> int:
        return CLOCK + (int(self.now * 1000) << 16)

    # --- a port

    def open(self, link: int, address: str) -> None:
        self.streams[link] = Stream(self, link, address)

    def output(self, link: int) -> None:
        assert self.streams[link].open

    def close(self, link: int) -> None:
        self.streams[link].open = False

    def alarm(self, when: float) -> None:
        self.alarm_at = when

    # --- driving

    def read(self) -> None:
        for stream in self.streams.values():
            stream.read()
        lanes = self.router._lanes
        assert lanes.waiting() == sum(1 for _ in lanes.calls())

    def pass_time(self, seconds: float) -> None:
        """Let alarms ring; nodes that are looked up stay silent."""
        end = self.now + seconds
        while self.alarm_at <= end:
            self.now = max(self.now, self.alarm_at)
            self.alarm_at = float("inf")
            self.router.tick()
            self.read()
        self.now = end
        self.read()

    def to(self, address: str) -> Stream:
        """Return the open stream to an address."""
        found = [each for each in self.streams.values() if each.open and each.address == address]
        assert found, f"no stream to {address}"
        return found[-1]

    def opened(self, address: str) -> bool:
        return any(each.open and each.address == address for each in self.streams.values())

    def settle(self, address: str = "a:1") -> Stream:
        """Let a node welcome the client, as the leader."""
        stream = self.to(address)
        stream.welcome(leader=next(node for node, at in NODES if at == address))
        return stream

    def ask(self, request: Any, timeout_seconds: float | None = None) -> Asked:
        call = Asked(request, timeout_seconds)
        self.router.submit(call)
        self.read()
        return call


def commit(number: int = 1, *writes: Any) -> CommitTransaction[Any]:
    id_ = number.to_bytes(16, "big")
    return CommitTransaction(id_, CLOCK, 60.0, 0, b"k", [], [], list(writes) or [Put(b"k", b"v")])


COMMITTED = Committed(7, [])
VALUE = Value(b"v", 5)


GET = Get(b"k")


def only(stream_requests: dict[int, object]) -> int:
    """Return the number of the only request."""
    (number,) = stream_requests
    return number


def reconnect(world: World, address: str) -> None:
    """Break streams until one to ``address`` is open."""
    for _ in range(100):
        if world.opened(address):
            return
        for stream in [each for each in world.streams.values() if each.open]:
            stream.breaks()
        world.pass_time(0.05)
    raise AssertionError(f"no stream to {address}")

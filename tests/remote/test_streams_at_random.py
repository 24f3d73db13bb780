"""Clients and a node, with the real shells between them, over random wires.

The wires delay, split, stall and break. No client waits for ever, or for a timer that only hides a
lost wake-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

from postroom import limits
from postroom.client.remote import connection
from postroom.client.remote.connection import Streams
from postroom.client.routing.router import Router
from postroom.messaging.requests import AwaitQuiet, EnqueueMessage, ReapQueue
from postroom.ranges.nodes import DescribeNode
from postroom.ranges.requests import (
    CommitTransaction,
    Get,
    GetForUpdate,
    Increment,
    Now,
    Protect,
    Put,
    ReleaseLocks,
    ScanChanges,
    Unprotect,
)
from postroom.server.cluster.admission import Connections, NodeLimits
from postroom.server.cluster.native_server import NativeServer, ServedStream
from postroom.server.cluster.security import Security
from postroom.server.cluster.sessions import Sessions
from tests.client.stores import Store
from tests.remote.scripted_nodes import Asked

BUFFER_BYTES = 3000
REAL_DIAL = connection.dial
SOON_SECONDS = 6.0
"""A stream that broke unnoticed is given up, opened again, and all is asked for again by then."""

WAITS = {AwaitQuiet, GetForUpdate, ReapQueue, ScanChanges}


class Wire(asyncio.Transport):
    """One end of a connection. Written bytes lie in it until they are carried to the other end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.other: Wire
        self.protocol: Any = None
        self.written = bytearray()
        self.reads = True
        self.is_full = self.ends = self.is_lost = self._resumes = False
        self._loop = loop

    # --- a transport

    def write(self, data: Any) -> None:
        assert not self._resumes, "asyncio ends a connection twice that this write finds broken"
        if not (self.is_lost or self.ends):
            self.written += data
            if len(self.written) > BUFFER_BYTES and not self.is_full:
                self.is_full = True
                self.protocol.pause_writing()

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.ends or self.is_lost

    def close(self) -> None:
        self.ends = True

    def write_eof(self) -> None:
        self.ends = True

    def can_write_eof(self) -> bool:
        return True

    def abort(self) -> None:
        self.lose()
        self.other.lose()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del name
        return default

    # --- by hand

    def lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.written.clear()
            self._loop.call_soon(self.protocol.connection_lost, None)

    def carry(self, size: int) -> bool:
        """Let a number of bytes arrive; return whether anything happened."""
        if self.is_lost or not self.other.reads or not (self.written or self.ends):
            return False
        piece = bytes(self.written[:size])
        del self.written[:size]
        if piece:
            self.other.protocol.data_received(piece)
        if self.is_full and len(self.written) <= BUFFER_BYTES // 4 and not self.is_lost:
            self.is_full, self._resumes = False, True
            self.protocol.resume_writing()
            self._resumes = False
        if self.ends and not self.written:
            self.abort()
        return True


class History:
    """One client and one node, and what happens to them."""

    def __init__(self, store: Store, seed: int, patch: Callable[[Any, str, Any], None]) -> None:
        self.random = Random(seed)
        self.store = store
        self.clock = store.clock
        self.loop = asyncio.get_running_loop()
        self.ends: list[Wire] = []
        self.calls: list[Asked] = []
        self.cancelled: set[Asked] = set()
        self.alarm_at = float("inf")
        self.is_wanted = True
        store.node.on_wake = self._on_wake
        self.sessions = Sessions(
            store.node, NodeLimits(unread_bytes_max=4000, stream_requests_max=20)
        )
        nodes: Any = None  # for other nodes
        self.server = NativeServer("127.0.0.1:0", Security(None), nodes)
        self.server.sessions = self.sessions
        self.connections = Connections(self.clock.monotonic)
        patch(connection, "dial", self._dial)
        self.streams = Streams(None, None)
        self.streams.alarm = self._on_alarm  # type: ignore[method-assign]
        self.router = self.streams.router = Router(
            ["a:1"], self.streams, self.clock.monotonic, Random(seed)
        )
        self.transactions = 1
        self.released = 0
        self.router.start()

    def _on_wake(self, urgent: bool) -> None:
        del urgent
        self.is_wanted = True

    def _on_alarm(self, when: float) -> None:
        self.alarm_at = when

    async def _dial(self, address: str, context: Any, create: Callable[[], Any]) -> Any:
        if asyncio.get_running_loop() is not self.loop:  # another test's, in a thread of its own
            return await REAL_DIAL(address, context, create)
        await asyncio.sleep(0)
        here, there = Wire(self.loop), Wire(self.loop)
        here.other, there.other = there, here
        stream = here.protocol = create()
        taken_in = self.connections.accept("b", len(self.ends))
        assert taken_in is not None
        there.protocol = ServedStream(self.server, taken_in)
        there.protocol.connection_made(there)
        stream.connection_made(here)
        self.ends += [here, there]
        return stream

    # --- events

    def ask(self, request: Any, timeout_seconds: float | None = None) -> None:
        call = Asked(request, timeout_seconds)
        self.calls.append(call)
        self.router.submit(call)

    def transaction(self, number: int) -> bytes:
        return self.router.client + ((1 << 62) + number).to_bytes(8, "big")

    def request(self) -> Any:
        random, now = self.random, self.router.reading()
        key = b"%d" % random.randrange(4)
        kind = random.randrange(11)
        own = self.transaction(self.transactions)
        if kind < 2:
            self.transactions += 1
            own = self.transaction(self.transactions)
            write = random.choice(
                [Put(key, bytes(random.choice([1, 2000]))), EnqueueMessage(key, b"m"),
                 Increment(b"n")]
            )  # fmt: skip
            return CommitTransaction(own, now, 60.0, 0, b"k", [], [], [write])
        return [
            Get(key), Get(key), Now(), DescribeNode(), AwaitQuiet(),
            ScanChanges(b"a", b"b", now), ReapQueue(key, 5, 100, own, 60.0),
            GetForUpdate(b"locked " + key, now, own, 60.0),
            random.choice([Protect(now), Unprotect(now)]),
        ][kind - 2]  # fmt: skip

    def waiting(self) -> list[Asked]:
        return [each for each in self.calls if not (each.answers or each in self.cancelled)]

    def cancel(self, call: Asked) -> None:
        self.cancelled.add(call)
        self.router.cancel(call)

    def turn(self) -> bool:
        due = self.store.node.next_deadline()
        if not self.is_wanted and (due is None or due > self.clock.seconds):
            return False
        self.is_wanted = False
        self.store.node.turn()
        return True

    def tick(self) -> bool:
        if self.alarm_at > self.clock.seconds:
            return False
        self.alarm_at = float("inf")
        self.router.tick()
        return True

    async def step(self, *, calm: bool = False) -> None:
        random = self.random
        what = random.randrange(12 if calm else 16)
        if what < 4:
            again = random.randrange(2) and self.request()
            for _ in range(random.choice([1, 1, 5, 40])):
                self.ask(again or self.request(), random.choice([None, None, 0.01, 0.5]))
        elif what == 4 and self.waiting():
            for call in random.sample(self.waiting(), min(3, len(self.waiting()))):
                self.cancel(call)
        elif what < 10 and self.ends:
            random.choice(self.ends[-4:]).carry(random.choice([1, 7, 100, 3000, 100_000]))
        elif what == 10:
            self.turn()
        elif what == 11:
            await asyncio.sleep(0)
        elif what < 14:
            self.clock.seconds += random.choice([0.001, 0.1, 0.3])
            self.tick()
        elif what == 14 and self.ends and random.random() < 0.5:
            random.choice(self.ends[-2:]).abort()

    async def settle(self) -> None:
        """Do all that can happen without the clock."""
        quiet = 0
        while quiet < 4:  # a call made soon may make another one soon
            moved = [end.carry(100_000) for end in self.ends]
            moved += [self.turn(), self.tick()]
            await asyncio.sleep(0)
            quiet = 0 if any(moved) else quiet + 1

    async def pass_time(self, seconds: float, is_over: Callable[[], bool]) -> None:
        end = self.clock.seconds + seconds
        await self.settle()
        while self.clock.seconds < end and not is_over():
            self.clock.seconds += 0.05
            await self.settle()

    def end_waits(self) -> None:
        """Cancel the calls that wait for something that has not happened yet."""
        for call in self.waiting():
            if type(call.request) in WAITS:
                self.cancel(call)

    def release(self) -> None:
        """Release all that keeps others waiting."""
        for _ in range(self.transactions - self.released):
            self.released += 1
            self.ask(ReleaseLocks(self.transaction(self.released)))

    async def run(self) -> None:
        for _ in range(self.random.choice([60, 150])):
            await self.step()
        self.end_waits()
        self.release()
        await self.pass_time(SOON_SECONDS, lambda: not self.waiting())
        assert not self.waiting(), "what could be answered long ago waits"
        await self.without_the_clock()
        await self.pass_time(1.5, lambda: False)
        self.check()
        for _ in range(30):
            await self.step(calm=True)
        self.router.close()
        await self.settle()
        admission = self.sessions.admission
        assert (admission.requests, admission.bytes, admission.unread_bytes) == (0, 0, 0)

    async def without_the_clock(self) -> None:
        """Check that nothing is lost any more, and that no timer makes good for anything."""
        links = set(self.streams._links)
        for _ in range(2):
            for _ in range(60):
                await self.step(calm=True)
            await self.settle()
            assert all(end.reads for end in self.ends if not end.is_lost)
            assert all(type(call.request) in WAITS for call in self.waiting())
            self.end_waits()
            await self.settle()
            assert not self.sessions.admission.requests
            self.release()
            await self.settle()
            assert not self.waiting(), "what could be answered waits"
        assert links == set(self.streams._links)

    def check(self) -> None:
        admission = self.sessions.admission
        assert (admission.requests, admission.bytes, admission.unread_bytes) == (0, 0, 0)
        assert self.sessions.large_frames.bytes == 0
        assert self.server.unfinished.bytes == 0
        assert self.router.is_quiet()
        assert not sum(map(len, self.store.node.root.replica.waiting_for.values()))
        assert set(self.sessions._open) <= {self.router.client}
        assert self.router.next_deadline() > self.clock.seconds
        assert self.alarm_at <= self.router.next_deadline()


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_leave_no_client_waiting(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 6)
    # Not much less: a list of withdrawn requests has to fit into one stretch.
    monkeypatch.setattr(limits, "FRAME_STRETCH_BYTES", 1500)

    async def run(number: int) -> None:
        await History(Store(), number, monkeypatch.setattr).run()

    for number in range(5):  # each has a loop of its own: nothing of the one before goes on
        asyncio.run(run(100 * seed + number))

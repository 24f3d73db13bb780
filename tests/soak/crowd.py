"""Clients that want too much, each from a loopback address of its own: another principal.

=========== ==================================================================================
flooder     sends empty frames, withdrawals and descriptions for a moment, and then vanishes
program     many sessions at once, each with many requests under way, that end without a word
idle crowd  many sessions that are opened, say nothing for a while, and vanish
watchers    wait for changes of many keys that nobody writes, and vanish
bulk        commits what takes many turns: thousands of writes, and of spans that were read. The
            soak leaves it out: a reader of a snapshot on three nodes starves beside it
glutton     sends what would take a hundred times its bytes in memory, which is refused; and says
            Hello again under another id, which ends its stream
=========== ==================================================================================

The other clients of the soak get on beside them. The node keeps nothing for those who have gone:
descriptors, memory and threads are as they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from postroom.kv.clock import LOGICAL_BITS
from postroom.protocol import frames, streams
from postroom.ranges.nodes import DescribeNode
from postroom.ranges.requests import CommitTransaction, DeleteRange, Get, Put, ScanChanges
from tests.remote.client_names import secret_of
from tests.soak.slow import Stream, opened
from tests.soak.worker import Worker

FLOOD_SECONDS: Final = 0.3
PAUSE_SECONDS: Final = 3.0
PROGRAM_SESSIONS: Final = 20
PROGRAM_ROUNDS: Final = 3
IDLE_SESSIONS: Final = 30
IDLE_SECONDS: Final = 2.0

WATCHES: Final = 1000
BULK_ROUNDS: Final = 3
BULK_WRITES: Final = 5000
BULK_SPANS: Final = 20_000
GLUT_MESSAGES: Final = 40
GLUT_ELEMENTS: Final = 70_000
"""The number of elements in the headers of one message: more than they may have."""
GLUT_REFUSALS: Final = ("ValueTooLarge", "NotLeaseholder", "WrongRange", "ClockAhead")
"""A node that does not lead refuses it for that reason, or since it has not heard of that time.

A range may have been split meanwhile.
"""

_ADDRESSES: Final = {
    "flooder": "127.0.0.2", "program": "127.0.0.3", "idle": "127.0.0.4", "watchers": "127.0.0.5",
    "bulk": "127.0.0.6", "glutton": "127.0.0.7",
}  # fmt: skip


def _chunk(requests: list[tuple[int, object]], withdrawn: list[int], count: int = 1) -> bytes:
    return streams.framed(frames.encode((1, 0, requests, withdrawn))) * count


_FLOODS: Final = (
    _chunk([], [], 2000),
    _chunk([], list(range(1 << 20, (1 << 20) + 4000)), 4),
    _chunk([(number, DescribeNode()) for number in range(1, 200)], []),
)


def _just_now(session: Stream) -> int:
    """Return a timestamp that no node takes for the future."""
    return session.welcome.clock - (1000 << LOGICAL_BITS)


def _glut(session: Stream) -> bytes:
    """Return a commit of messages whose headers are many empty maps, which take 64 bytes each."""
    maps = b"\xdd" + GLUT_ELEMENTS.to_bytes(4, "big") + b"\x80" * GLUT_ELEMENTS
    message = b"\x95\xafenqueue_message\xc4\x01k\xc4\x01v\x81\xa1h" + maps + b"\x00"
    messages = b"\xdc" + GLUT_MESSAGES.to_bytes(2, "big") + message * GLUT_MESSAGES
    nothing: CommitTransaction[Any] = CommitTransaction(
        session.client + bytes(8), _just_now(session), 60.0, 0, b"k", [], [], []
    )
    commit = frames.encode(nothing)[:-1] + messages
    return b"\x95\x01\x00\x91\x92\x01" + commit + b"\x90\xc2"


class Crowd:
    """A crowd of connections and floods at the nodes of a soak.

    Args:
        addresses: of the nodes.
        goes_on: whether the soak does.
    """

    def __init__(self, addresses: Sequence[str], goes_on: Callable[[], bool]) -> None:
        self._addresses = addresses
        self._goes_on = goes_on

    async def flood(self, worker: Worker) -> None:
        """Send as much as the node takes, for a moment."""
        chunk = worker.random.choice(_FLOODS)
        async with self._sessions(worker, "flooder", 4) as sessions:
            until = time.monotonic() + FLOOD_SECONDS
            while time.monotonic() < until and self._goes_on():
                for each in sessions:
                    each.send(chunk)
                    each.drain()
                await asyncio.sleep(0.01)
        await self._pause(worker, PAUSE_SECONDS)

    async def program(self, worker: Worker) -> None:
        """Want something in many sessions at once."""
        asked = _chunk([(number, Get(b"soak/wide/000")) for number in range(1, 101)], [])
        async with self._sessions(worker, "program", PROGRAM_SESSIONS) as sessions:
            for _ in range(PROGRAM_ROUNDS):
                for each in sessions:
                    each.send(asked)
                for each in sessions:
                    await each.message()
        await self._pause(worker, PAUSE_SECONDS)

    async def idle(self, worker: Worker) -> None:
        """Hold many sessions, and say nothing."""
        async with self._sessions(worker, "idle", IDLE_SESSIONS):
            await self._pause(worker, IDLE_SECONDS)

    async def watch(self, worker: Worker) -> None:
        """Wait for what does not come."""
        async with self._sessions(worker, "watchers", 1) as (session,):
            at = session.welcome.clock
            keys = [b"soak/nobody/%04d" % number for number in range(WATCHES)]
            watches = [ScanChanges(key, key + b"\x00", at) for key in keys]
            await session.say(_chunk(list(enumerate(watches, 1)), []))
            await self._pause(worker, IDLE_SECONDS)

    async def bulk(self, worker: Worker) -> None:
        """Commit what takes many turns, and leaves nothing."""
        keys = [b"soak/bulk/%05d" % number for number in range(BULK_WRITES)]
        writes = [*[Put(key, b"") for key in keys], DeleteRange(b"soak/bulk/", b"soak/bulk0")]
        spans = [(b"soak/none/%06d" % n, b"soak/none/%06d\x00" % n) for n in range(BULK_SPANS)]
        async with self._sessions(worker, "bulk", 2) as sessions:
            for number in range(1, BULK_ROUNDS + 1):
                for each in sessions:
                    began = _just_now(each)
                    id_ = each.client + number.to_bytes(8, "big")
                    commit: CommitTransaction[Any] = CommitTransaction(
                        id_, began, 60.0, began - 1, b"soak/bulk", [], spans, list(writes)
                    )
                    await each.say(_chunk([(number, commit)], []))
                for each in sessions:
                    while not isinstance(await each.message(), frames.Answers):
                        pass
        await self._pause(worker, PAUSE_SECONDS)

    async def glut(self, worker: Worker) -> None:
        """Ask for far more memory than the bytes that are sent, and be another client at once."""
        async with self._sessions(worker, "glutton", 1) as (session,):
            await session.say(streams.framed(_glut(session)))
            while not isinstance(message := await session.message(), frames.Answers):
                pass
            refusals = [each.failure and each.failure[0] for each in message.answers]
            if len(refusals) != 1 or refusals[0] not in GLUT_REFUSALS:
                raise AssertionError(f"what takes too much memory is answered with {message}")
            again = frames.Hello(frames.PROTOCOL_VERSION, secret_of(b"glutton"), 1)
            await session.say(streams.framed(frames.encode(again)))
            while not isinstance(await session.message(), frames.Goodbye):
                pass
        await self._pause(worker, PAUSE_SECONDS)

    async def _pause(self, worker: Worker, seconds: float) -> None:
        worker.did()
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._goes_on():
            await asyncio.sleep(0.1)

    @contextlib.asynccontextmanager
    async def _sessions(self, worker: Worker, name: str, count: int) -> AsyncIterator[list[Stream]]:
        """Open so many of them to one node; they vanish."""
        address = worker.random.choice(self._addresses)
        with contextlib.ExitStack() as stack:
            sessions = []
            for _ in range(count):
                session = await opened(address, worker, _ADDRESSES[name])
                stack.callback(session.close)
                sessions.append(session)
            yield sessions

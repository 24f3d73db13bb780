"""A flood of what costs little to send: ``python flood.py ADDRESS KIND CONNECTIONS``.

It says ``began`` when all connections have sent something, reads and throws away what is answered,
and ends with its standard input.
"""

from __future__ import annotations

import itertools
import os
import selectors
import socket
import sys
import threading
from collections.abc import Callable

from postroom.protocol import frames, streams
from postroom.ranges.listing import ListRanges
from postroom.ranges.nodes import DescribeNode
from postroom.ranges.requests import Get, ReleaseLocks, Unprotect
from tests.remote.client_names import secret_of

CHUNK_BYTES = 256 * 1024
NUMBERS = 1 << 22
"""The numbers of requests: none comes again before it was answered."""
CLOCK_AHEAD = 1 << 62


class _Asks:
    """Frames of so many equal requests."""

    def __init__(self, request: object, count: int, *, clock: int = 0) -> None:
        self.request, self.count, self.clock = request, count, clock
        self.first = 0

    def __call__(self) -> bytes:
        self.first = (self.first + self.count) % NUMBERS
        requests = [(self.first + number, self.request) for number in range(self.count)]
        return frames.encode((1, self.clock, requests))


def always(*frame: object) -> Callable[[], bytes]:
    packed = frames.encode(frame)
    return lambda: packed


KINDS: dict[str, Callable[[], bytes]] = {
    "empty frames": always(1, 0),
    "look-ups": always(1, 0, [], [], True),
    "withdrawals": always(1, 0, [], list(range(4096))),
    "descriptions": _Asks(DescribeNode(), 4096),
    "listings": _Asks(ListRanges(b"", None), 4096),
    "gets": _Asks(Get(b"k"), 4096),
    "single gets": _Asks(Get(b"k"), 1),
    "what is not allowed": _Asks(ReleaseLocks(bytes(16)), 4096),
    "what is not protected": _Asks(Unprotect(7), 4096),
    "clocks ahead": _Asks(Get(b"k"), 4096, clock=CLOCK_AHEAD),
}
"""The maker of the next frame."""


def chunk(kind: str) -> bytes:
    """Return frames of a kind, as many as are sent at once."""
    make, found = KINDS[kind], bytearray()
    while len(found) < CHUNK_BYTES:
        found += streams.framed(make())
    return bytes(found)


class _Connection:
    """One client that never stops."""

    def __init__(self, address: str, number: int, chunks: list[bytes]) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.sendall(streams.opening_bytes(streams.Opening(streams.TALK)))
        self.socket.recv(65536)
        client = b"%05d%03d" % (os.getpid() % 100_000, number)
        hello = frames.encode(frames.Hello(frames.PROTOCOL_VERSION, secret_of(client), 1))
        self.socket.sendall(streams.framed(hello))
        self.socket.recv(65536)
        self.socket.setblocking(False)
        self.chunks = itertools.cycle(chunks)
        self.left = memoryview(b"")

    def go_on(self, events: int) -> None:
        if events & selectors.EVENT_READ and not self.socket.recv(1 << 20):
            raise ConnectionError("the node has ended the stream")
        if events & selectors.EVENT_WRITE:
            self.left = self.left or memoryview(next(self.chunks))
            self.left = self.left[self.socket.send(self.left) :]


def main(address: str, kind: str, connections: int) -> None:
    selector = selectors.DefaultSelector()
    chunks = [chunk(kind) for _ in range(20)]
    for number in range(connections):
        each = _Connection(address, number, chunks)
        selector.register(each.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, each)
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    sys.stdout.write("began\n")
    sys.stdout.flush()
    while not is_over.is_set():
        for key, events in selector.select(0.1):
            key.data.go_on(events)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

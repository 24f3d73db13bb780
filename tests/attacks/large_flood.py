"""A program that sends few requests, each of them large: ``large_flood.py ADDRESS KIND COUNT``.

There are so many sessions of one principal, which comes from an address of its own. Each waits for
an answer before it asks again. The program says ``began`` when each has had an answer to what it
wants, and ends with its standard input.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from postroom.messaging.requests import EnqueueUpdate
from postroom.protocol import frames, streams
from postroom.ranges.requests import CommitTransaction, DeleteRange, Put
from tests.remote.client_names import client_id, secret_of

HOST = "127.0.0.2"
WRITES = 100_000
SPANS = 100_000
KEYS = 1_000_000
FILLED_AT_ONCE = 50_000
RECEIVED_BYTES = 1 << 20
LIFE_SECONDS = 1.0
PATIENCE_SECONDS = 120.0


class Session:
    """One client's, over a plain socket."""

    def __init__(self, address: str, number: int) -> None:
        host, port = address.rsplit(":", 1)
        self.number = number
        name = b"L%04d%03d" % (os.getpid() % 10_000, number)
        self.client = client_id(name)
        self._socket = socket.create_connection((host, int(port)), 120, (HOST, 0))
        self._socket.sendall(streams.opening_bytes(streams.Opening(streams.TALK)))
        self._incoming = streams.Incoming(frames.FRAME_BYTES_MAX)
        self._frames: Iterator[bytes] = iter(())
        self._clock = 0
        self._receive()
        self._say(frames.Hello(frames.PROTOCOL_VERSION, secret_of(name), 1))
        self._asked = itertools.count(1)
        self._clock = self._message().clock

    def commit(self, *writes: Any, spans: Any = ()) -> Any:
        """Commit a transaction; return the answers of its writes, or the failure."""
        number = next(self._asked)
        id_ = self.client + number.to_bytes(8, "big")
        at = self._clock - 1 if spans else 0
        commit = CommitTransaction(
            id_, self._clock, 60.0, at, b"flood", [], list(spans), list(writes)
        )
        self._say((1, self._clock, [(number, commit)], [], False))
        while True:
            message = self._message()
            self._clock = max(self._clock, message.clock)
            for answer in getattr(message, "answers", ()):
                if answer.failure is not None:
                    return answer.failure
                return msgspec.msgpack.decode(answer.result)[1]

    def _say(self, message: Any) -> None:
        self._socket.settimeout(PATIENCE_SECONDS)
        self._socket.sendall(streams.framed(frames.encode(message)))
        self._socket.settimeout(LIFE_SECONDS)

    def _receive(self) -> bytes:
        """Return the next frame."""
        while True:
            for frame in self._frames:
                return frame
            try:
                data = self._socket.recv(RECEIVED_BYTES)
            except TimeoutError:  # a node that says nothing for long is gone
                self._say((1, self._clock))
                continue
            if not data:
                raise ConnectionError("the node has ended the stream")
            self._frames = self._incoming.feed(data)

    def _message(self) -> Any:
        message = frames.from_node(self._receive())
        if isinstance(message, frames.Goodbye):
            raise ConnectionError(str(message.failure))
        return message


def large_commits(session: Session, turn: int) -> None:
    """Write many keys in one transaction."""
    prefix = b"flood/%d/%d/" % (session.number, turn % 2)
    session.commit(*[Put(prefix + b"%06d" % number, b"v") for number in range(WRITES)])


def many_spans(session: Session, turn: int) -> None:
    """Write one key in a transaction that has read many spans."""
    spans = [(b"s/%07d" % n, b"s/%07d\x00" % n) for n in range(0, 2 * SPANS, 2)]
    session.commit(Put(b"flood/%d" % session.number, b"%d" % turn), spans=spans)


def fill(session: Session, turn: int) -> bytes:
    """Write the keys that are to be deleted; return what they begin with."""
    prefix = b"flood/%d/%d/" % (session.number, turn)
    for first in range(0, KEYS, FILLED_AT_ONCE):
        numbers = range(first, min(first + FILLED_AT_ONCE, KEYS))
        session.commit(*[Put(prefix + b"%07d" % number, b"v") for number in numbers])
    return prefix


def delete_alone(session: Session, prefix: bytes) -> None:
    """Delete as ``db.delete_range`` does."""
    position: bytes | None = prefix
    began = 0
    while position is not None:
        ((_, position, began),) = session.commit(DeleteRange(position, prefix + b"\xff", began))


def delete_in_a_transaction(session: Session, prefix: bytes) -> None:
    """Delete more than one transaction may, again and again: it is refused."""
    while True:
        name, *_ = session.commit(DeleteRange(prefix, prefix + b"\xff"))
        assert name == "TransactionTooLarge"


def delete_deferred(session: Session, prefix: bytes) -> None:
    """Defer the deletion."""
    session.commit(EnqueueUpdate(DeleteRange(prefix, prefix + b"\xff")))


KINDS: dict[str, Callable[[Session, int], None]] = {
    "large commits": large_commits,
    "many spans": many_spans,
}
"""The functions that send the requests of a session, by kind."""

DELETIONS: dict[str, Callable[[Session, bytes], None]] = {
    "deletion alone": delete_alone,
    "deletion in a transaction": delete_in_a_transaction,
    "deferred deletion": delete_deferred,
}
"""The functions that send the requests of a session to keys that it has written before, by kind."""


def _again_and_again(session: Session, kind: str, ready: threading.Barrier) -> None:
    for turn in itertools.count():
        KINDS[kind](session, turn)
        if not turn:
            ready.wait()


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(address: str, kind: str, count: int) -> None:
    """Flood until the standard input ends."""
    sessions = [Session(address, number) for number in range(count)]
    if kind in DELETIONS:
        prefixes = [fill(session, 0) for session in sessions]
        for pair in zip(sessions, prefixes, strict=True):
            threading.Thread(target=DELETIONS[kind], args=pair, daemon=True).start()
        _say("began")
    else:
        ready = threading.Barrier(count + 1)
        for session in sessions:
            arguments = session, kind, ready
            threading.Thread(target=_again_and_again, args=arguments, daemon=True).start()
        ready.wait()
        _say("began")
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

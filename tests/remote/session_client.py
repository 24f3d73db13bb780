"""The other end of a session, by hand."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from postroom.protocol import frames
from postroom.protocol.failures import Failure
from postroom.ranges.requests import (
    CommitTransaction,
)
from postroom.server.cluster.sessions import Sessions
from tests.client.stores import Store
from tests.remote.client_names import client_id, secret_of

OWN: Final = client_id(b"")
"""The id of a client without a name."""


class Client:
    """The other end of a session, by hand; its ``secret`` is made from its name."""

    def __init__(
        self,
        sessions: Sessions,
        name: bytes = b"",
        stream: int = 1,
        secret: bytes = b"",
        host: str = "somebody",
    ) -> None:
        self.told = 0
        self.session = sessions.open(host, self._tell)
        self.clock = sessions.node.clock.reading()
        self.frames: list[Any] = []
        self.answers: dict[int, Any] = {}
        self.failures: dict[int, Failure] = {}
        self._sessions = sessions
        self.say(0, frames.PROTOCOL_VERSION, secret or secret_of(name), stream)

    def _tell(self) -> None:
        self.told += 1

    def say(self, *message: Any) -> None:
        self.session.received(frames.encode(message))

    def ask(self, *requests: Any, first: int = 1, withdrawn: tuple[int, ...] = ()) -> None:
        self.say(1, self.clock, list(enumerate(requests, first)), withdrawn, False)

    def read(self) -> list[Any]:
        """Return the frames that have come since the last call."""
        messages = []
        while (frame := self.session.take()) is not None:
            messages.append(message := frames.from_node(frame))
            if isinstance(message, frames.Answers):
                self.clock = max(self.clock, message.clock)
                for answer in message.answers:
                    if answer.failure is None:
                        self.answers[answer.number] = msgspec.msgpack.decode(answer.result)
                    else:
                        self.failures[answer.number] = answer.failure
        self.frames += messages
        return messages


def commit(store: Store, number: int, *writes: Any, client: bytes = OWN) -> CommitTransaction[Any]:
    began = store.node.clock.reading()
    id_ = client + number.to_bytes(8, "big")
    return CommitTransaction(id_, began, 60.0, 0, b"k", [], [], list(writes))


def waiting(store: Store) -> int:
    return sum(map(len, store.node.root.replica.waiting_for.values()))

"""Clients of a node by their names, whose frames are carried by hand."""

from __future__ import annotations

import itertools
from typing import Any, Final

import msgspec

from postroom.protocol import frames
from postroom.protocol.failures import Failure
from postroom.protocol.requests import REVISION
from postroom.ranges.contract import Role, Write
from postroom.ranges.requests import CommitTransaction
from postroom.server.cluster.access import Access
from postroom.server.cluster.sessions import Sessions
from tests.client.stores import Store
from tests.remote.client_names import client_id, secret_of

_FAR: Final = 60.0


class Client:
    """A client of a store, with a stream.

    Attributes:
        answers: the failure of each answered request, by its number; ``None``: it has none.
        results: the results, as they came.
        goodbye: the failure with which the node has ended the stream; ``None``: it is open.
        welcomes: what the node has told it of itself.
    """

    def __init__(self, store: Store, sessions: Sessions, name: str, role: Role = Role.NONE) -> None:
        self._store, self._secret = store, secret_of(name.encode())
        self._id = client_id(name.encode())
        self._numbers = itertools.count(1)
        self._sessions, self._access = sessions, Access(role, f"token {name}", name=name)
        self.answers: dict[int, Failure | None] = {}
        self.results: dict[int, Any] = {}
        self.welcomes: list[frames.Welcome] = []
        self.connect()

    def connect(self) -> None:
        """Open a stream, in place of the one before."""
        self.goodbye: Failure | None = None
        self.session = self._sessions.open("somebody:1", lambda: None, self._access)
        hello = frames.Hello(frames.PROTOCOL_VERSION, self._secret, next(self._numbers), REVISION)
        self.session.received(frames.encode(hello))
        self.take()

    def own(self, request: Any) -> Any:
        """Return a request, or the commit of a write, in which its ids are this client's."""
        if isinstance(request, Write):
            return self.commit(request)
        changed = {
            name: self._id + bytes(8)
            for name in request.own_ids
            if getattr(request, name) is not None
        }
        return msgspec.structs.replace(request, **changed) if changed else request

    def commit(self, *writes: Any) -> CommitTransaction[Any]:
        """Return the commit of some writes."""
        id_ = self._id + next(self._numbers).to_bytes(8, "big")
        began = self._store.node.clock.reading()
        return CommitTransaction(id_, began, _FAR, 0, writes[0].anchor(), [], [], [*writes])

    def send(self, request: Any) -> int:
        """Send a request, or the commit of a write; return its number."""
        number = next(self._numbers)
        clock = self._store.node.clock.reading()
        frame = (1, clock, [(number, self.own(request))], [], False)
        self.session.received(frames.encode(frame))
        return number

    def ask(self, request: Any) -> Failure | None:
        """Send a request, and return the failure of its answer."""
        number = self.send(request)
        self._store.driver.settle()
        self.take()
        return self.answers[number]

    def take(self) -> None:
        """Take what the node has sent."""
        while (frame := self.session.take()) is not None:
            match frames.from_node(frame):
                case frames.Answers(answers=answers):
                    for each in answers:
                        self.answers[each.number] = each.failure
                        self.results[each.number] = msgspec.msgpack.decode(each.result)
                case frames.Goodbye(failure=failure):
                    self.goodbye = failure
                case frames.Welcome() as welcome:
                    self.welcomes.append(welcome)

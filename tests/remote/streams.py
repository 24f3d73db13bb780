"""A client of three nodes in one process: its router, whose frames are carried by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random  # noqa: TID251 (seeded)
from typing import Any

from postroom.client.routing.router import Router
from postroom.ranges.contract import Role
from postroom.ranges.requests import CommitTransaction, Put
from postroom.server.cluster.access import Access
from postroom.server.cluster.session import Session
from postroom.server.cluster.sessions import Sessions
from tests.remote.scripted_nodes import Asked
from tests.server.hosting import ThreeNodes


class Streams:
    """The port of a router that talks to three nodes; frames are carried by hand."""

    def __init__(self, nodes: ThreeNodes, role: Role = Role.WRITE) -> None:
        self._access = Access(role)
        self.nodes = nodes
        self.sessions = {f"n:{each}": Sessions(node) for each, node in nodes.nodes.items()}
        self._open: dict[int, Session] = {}
        self._alarm = math.inf
        monotonic = nodes.clock.monotonic
        self.router = Router(list(self.sessions), self, monotonic, Random(3))
        self.router.start()

    def open(self, link: int, address: str) -> None:
        self._open[link] = self.sessions[address].open("somebody", lambda: None, self._access)

    def output(self, link: int) -> None:
        """Do nothing: output is looked for all the time."""

    def close(self, link: int) -> None:
        self._open.pop(link).close()

    def alarm(self, when: float) -> None:
        self._alarm = min(self._alarm, when)

    def until(self, condition: Callable[[], Any], seconds: float = 20.0) -> None:
        self.nodes.until(lambda: self._carry() or condition(), seconds)

    def pass_time(self, seconds: float) -> None:
        """Let a time pass in which the client gives signs of life."""
        end = self.nodes.clock.seconds + seconds
        self.until(lambda: self.nodes.clock.seconds >= end, seconds + 1)

    def _carry(self) -> None:
        if self._alarm <= self.nodes.clock.seconds:
            self._alarm = math.inf
            self.router.tick()
        for link, session in list(self._open.items()):
            while link in self._open and (frame := self.router.take(link)) is not None:
                session.received(frame)
            while link in self._open and (frame := session.take()) is not None:
                self.router.received(link, frame)

    def ask(self, request: Any) -> Any:
        call = Asked(request)
        self.router.submit(call)
        self.until(lambda: call.answers)
        if call.error is not None:
            raise call.error
        return call.result

    def put(self, number: int, key: bytes, value: bytes) -> None:
        id_ = self.router.client + number.to_bytes(8, "big")
        began = self.router.reading()
        self.ask(CommitTransaction(id_, began, 60.0, 0, key, [], [], [Put(key, value)]))

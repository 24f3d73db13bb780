"""Floods, and programs with many sessions, beside a polite client that hardly waits for them.

In some truces twenty streams of one place want something of the leader all the time:

============ =====================================================================
empty frames    which ask for nothing
withdrawals     of requests that nobody has made
descriptions    of the node, many in each frame
large requests  commits of large values
reads, spans    commits that have read a lot
puts            commits that write a lot
============ =====================================================================

*Rule*: a request of another principal is answered within :data:`TURNS_MAX` turns of the leader.
Turns are small meanwhile: a request that waits for all these streams takes several times as many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Any, Final
from unittest.mock import patch

from postroom import limits
from postroom.client.database import CoreDatabase
from postroom.protocol import frames
from postroom.ranges.nodes import DescribeNode
from postroom.ranges.requests import CommitTransaction, Get, Put
from tests.sim.checkers import require
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.machine import Machine

SESSIONS: Final = 20
TURNS_MAX: Final = 40
"""The most turns of the leader in which a polite request is answered."""
ROUNDS: Final = 2
PATIENCE_SECONDS: Final = 10.0
BEGIN_SECONDS: Final = 0.02
"""The time by which every stream wants something."""
UNDER_WAY: Final = 2
"""The number of frames with requests that each stream has under way."""

_STEPS: Final = 200
_INTAKE_STEPS: Final = 4
"""The steps of a turn during a flood."""

_TINY: Final = frames.encode((1, 0))
_WITHDRAWALS: Final = frames.encode((1, 0, [], list(range(1 << 20, (1 << 20) + 500))))

Asked = tuple[list[bytes], list[Any]]
Flood = Callable[["_Stream"], Asked]
"""A function that makes what a stream sends next: frames without an answer, or requests."""


def _commit(stream: _Stream, *writes: Any, reads: Any = (), spans: Any = ()) -> Any:
    node = stream.machine.node
    assert node is not None
    stream.transactions += 1
    id_ = stream.client + stream.transactions.to_bytes(8, "big")
    at = max(node.root.replica.last_commit - 1, 1) if reads or spans else 0
    began = node.clock.reading()
    return CommitTransaction(id_, began, 60.0, at, b"k", list(reads), list(spans), list(writes))


def _spans(stream: _Stream) -> Asked:
    spans = [(b"flood/%04d" % n, b"flood/%04d\x00" % n) for n in range(0, 800, 2)]
    return [], [_commit(stream, Put(b"flood/spans", b""), spans=spans)]


def _reads(stream: _Stream) -> Asked:
    return [], [_commit(stream, Put(b"flood/reads", b""), reads=[b"%04d" % n for n in range(400)])]


def _puts(stream: _Stream) -> Asked:
    return [], [_commit(stream, *[Put(b"flood/puts/%d" % n, b"") for n in range(150)])]


def _large(stream: _Stream) -> Asked:
    return [], [_commit(stream, Put(b"flood/large", bytes(20_000)))]


FLOODS: Final[dict[str, Flood]] = {
    "empty frames": lambda _: ([_TINY] * 20, [Get(b"k")]),
    "withdrawals": lambda _: ([_WITHDRAWALS], [Get(b"k")]),
    "descriptions": lambda _: ([], [DescribeNode()] * 8),
    "large requests": _large,
    "reads": _reads,
    "spans": _spans,
    "puts": _puts,
}


class _Stream:
    """One session that asks again as soon as it is answered."""

    def __init__(
        self, cluster: Cluster, machine: Machine, flood: Flood, randomness: Random
    ) -> None:
        self.machine = machine
        identity = frames.draw_identity(randomness)
        self.client = identity.client
        self.transactions = self.answered = 0
        self._flood = flood
        self._numbers = 0
        self._asked: list[int] = []
        self._end, theirs = cluster.network.open_stream("flood", machine.name)
        self._end.on_bytes = self._received
        machine.accept(theirs)
        hello = frames.Hello(frames.PROTOCOL_VERSION, identity.secret, 1)
        self._end.send(frames.encode(hello))

    def _received(self, data: bytes) -> None:
        message = frames.from_node(data)
        if isinstance(message, frames.Answers):
            for _ in message.answers:
                self.answered += 1
                self._asked[0] -= 1
                if not self._asked[0]:
                    del self._asked[0]
        while self._end.is_open and self.machine.node and len(self._asked) < UNDER_WAY:
            self._ask()

    def _ask(self) -> None:
        unanswered, requests = self._flood(self)
        for frame in unanswered:
            self._end.send(frame)
        numbered = list(enumerate(requests, self._numbers + 1))
        self._numbers += len(requests)
        self._asked.append(len(requests))
        self._end.send(frames.encode((1, 0, numbered)))

    def close(self) -> None:
        """Vanish, with all that is under way."""
        self._end.close()


@contextmanager
def _under_way(cluster: Cluster, leader: Machine, name: str, chance: Random) -> Iterator[None]:
    small = {
        "TURN_STEPS_MAX": _STEPS, "INTAKE_STEPS_MAX": _INTAKE_STEPS,
        # A commit of others, of hundreds of keys, would take as many turns otherwise.
        "COMPLETED_AT_ONCE_MAX": max(_STEPS, limits.COMPLETED_AT_ONCE_MAX),
    }  # fmt: skip
    with patch.multiple(limits, **small):
        streams = [_Stream(cluster, leader, FLOODS[name], chance) for _ in range(SESSIONS)]
        cluster.agenda.run(BEGIN_SECONDS)
        yield
        told = f"{name} are answered, too"
        cluster.agenda.run_until(
            lambda: any(each.answered for each in streams), told, PATIENCE_SECONDS
        )
        for each in streams:
            each.close()


def check(
    cluster: Cluster, polite: CoreDatabase, name: str, chance: Random, turns_max: int = TURNS_MAX
) -> None:
    """Let a client ask for a few things beside a flood.

    Args:
        cluster: with a leader, in which nothing is broken.
        polite: a client of its own principal.
        name: of the flood.
        chance: for the ids of its clients.
        turns_max: more than :data:`TURNS_MAX` where nodes replicate in tiny pieces.

    Raises:
        Broken: something takes too many turns.
    """
    leader = cluster.leader()
    if leader is None:
        return
    with _under_way(cluster, leader, name, chance):
        for number in range(ROUNDS):
            for kind in ("put", "get"):
                is_put = kind == "put"
                call = polite.put(b"polite", b"%d" % number) if is_put else polite.get(b"polite")
                before = leader.turns
                cluster.run(call, f"a polite {kind} beside {name}", PATIENCE_SECONDS)
                turns = leader.turns - before
                told = f"a polite {kind} takes {turns} turns beside {SESSIONS} streams of {name}"
                require(turns <= turns_max, told)

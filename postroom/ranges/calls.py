"""What goes in and out of a replica: calls, and the commands that come of them.

::

    Call (a request, whom to tell) ──▶ evaluated, many together ──▶ LeasedWrites ──▶ applied
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import msgpack
import msgspec

from postroom import limits
from postroom.errors import Unavailable

if TYPE_CHECKING:  # clients load this module, and nothing of consensus
    from postroom.raft.state_machine import NodeId


class Call:
    """A request on its way, and whom to tell.

    Attributes:
        request: what is asked.
        complete: told the answer or the error, once; drivers have subclasses with a method instead.
        urgent: a client waits for it: a turn is wanted now. What is not urgent is upkeep, may wait
            a moment for company, and is evaluated after everything else.
        token: what it is in line for (:mod:`.waiting`); ``None``: nothing.
        cancelled: nobody wants the answer any more.
        owner: the client; ``None``: there is only one.
        principal: who answers for it, among whom turns are shared out.
    """

    owner: object = None
    principal: str = ""
    __slots__ = ("cancelled", "request", "token", "urgent")

    def __init__(self, request: Any, *, urgent: bool = True) -> None:
        self.request = request
        self.urgent = urgent
        self.token: object = None
        self.cancelled = False

    def complete(self, result: Any, error: BaseException | None) -> None:
        """The answer, or why there is none."""
        raise NotImplementedError


class NotLeaseholder(Unavailable):
    """Another node serves the range, or none does; nothing happened here.

    Attributes:
        leader: who leads, as far as this node knows; ``None``: nobody.
    """

    def __init__(self, leader: NodeId | None) -> None:
        known = "no node" if leader is None else f"node {leader}"
        super().__init__(
            f"this node does not serve the range, {known} leads it; nothing was changed: try again",
            retry_after=0.05,
        )
        self.leader = leader


class LeasedWrites(msgspec.Struct, frozen=True, array_like=True):
    """What a group replicates: raw writes, good only under one lease."""

    lease_sequence: int
    writes: dict[bytes, bytes | None]


encode = msgspec.msgpack.Encoder().encode


def encode_in_parts(command: LeasedWrites) -> Generator[None, None, bytes]:
    """``command`` in MessagePack, as a whole: the same bytes, made over several turns."""
    parts = [encode((command.lease_sequence, {}))[:-1], _map_header(len(command.writes))]
    items = iter(command.writes.items())
    while part := dict(islice(items, limits.COMPLETED_AT_ONCE_MAX)):
        parts.append(encode(part)[len(_map_header(len(part))) :])
        yield
    packed = b"".join(parts)
    yield
    return packed


def decode_in_parts(packed: memoryview) -> Generator[None, None, LeasedWrites]:
    """The command that ``packed`` is, over several turns."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(packed), strict_map_key=False)
    unpacker.feed(packed)
    unpacker.read_array_header()
    lease_sequence = unpacker.unpack()
    left = length = unpacker.read_map_header()
    writes: dict[bytes, bytes | None] = {}
    pairs = zip(unpacker, unpacker, strict=False)
    share = max(limits.COMPLETED_AT_ONCE_MAX // 4, 1)  # making them costs more than reading them
    while left:
        writes.update(islice(pairs, min(left, share)))
        if len(writes) + left == length:
            raise ValueError(f"{left} writes of a command are missing")
        left = length - len(writes)
        yield
    return LeasedWrites(lease_sequence, writes)


def _map_header(length: int) -> bytes:
    """With which a map begins, in MessagePack."""
    if length < 1 << 4:
        return bytes([0x80 | length])
    if length < 1 << 16:
        return b"\xde" + length.to_bytes(2, "big")
    return b"\xdf" + length.to_bytes(4, "big")


Result: TypeAlias = tuple[Call, Any, BaseException | None]


@dataclass(slots=True)
class Proposal:
    """What the leaseholder remembers of a command that it proposed.

    Attributes:
        lease_until: until when it may serve, on its monotonic clock, if the command is applied and
            says anything of the lease; 0: it does not.
        rejected: it was applied under another lease, to no effect.
        packed: the command as it is replicated, if that has been made already.
    """

    command: LeasedWrites
    results: list[Result]
    after: list[Callable[[], None]]
    last_commit: int
    lease_until: float = 0.0
    rejected: bool = False
    packed: bytes | None = None

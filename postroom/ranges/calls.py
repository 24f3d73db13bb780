"""The data that the stages of a replica pass on: calls, commands and proposals.

::

    Call (a request, a caller) ─▶ evaluated, many together ─▶ Proposal ─▶ LeasedWrites, applied
      ▲                                                           │
      └───────────────────────── answered ────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgpack
import msgspec

from postroom import limits
from postroom.errors import Unavailable
from postroom.kv.engine import WriteSet

if TYPE_CHECKING:
    from postroom.raft.interface import NodeId
    from postroom.ranges.descriptor import RangeDescriptor
    from postroom.ranges.held_answers import HeldAnswers


class Call:
    """A request on its way, with its caller.

    Attributes:
        request: the request.
        complete: called with the answer or the error, once; drivers override it in subclasses.
        urgent: whether a client waits for it and wants a turn now. Other calls are upkeep: they may
            wait a moment for company, and have a share of their own of each proposal.
        token: the token that it stands in line for (:mod:`.waiting`); ``None``: none.
        cancelled: whether the caller wants no answer any more.
        owner: the client; ``None``: there is only one.
        principal: the one who answers for the client. Principals take turns.
        taken_by: the part of the node that has taken it, if that has several ranges: a replica, as
            a rule; unset: the first one.
        within: the descriptor of a range that contains all that it concerns; ``None``: none is
            known.
        came_at: the timestamp at which its range has first met others that it awaits; unset: none.
    """

    owner: object = None
    principal: str = ""
    taken_by: CallAcceptor
    came_at: int
    __slots__ = ("came_at", "cancelled", "request", "taken_by", "token", "urgent", "within")

    def __init__(self, request: Any, *, urgent: bool = True) -> None:
        self.request = request
        self.urgent = urgent
        self.token: object = None
        self.within: RangeDescriptor | None = None
        self.cancelled = False

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Take the answer, or the error in its place."""
        raise NotImplementedError

    def complete_after(self, names: Sequence[bytes], result: Any, held: HeldAnswers) -> None:
        """Take the answer when other ranges have told all of some names."""
        held.hold(names, [self], result)


class CallAcceptor(Protocol):
    """The part of a node that has taken a call."""

    def cancel(self, call: Call) -> bool:
        """Forget a call that still waits; return false if it is too late for that."""


class NotLeaseholder(Unavailable):
    """Another node serves the range, or none does; nothing happened here.

    Attributes:
        leader: the leader, as far as this node knows; ``None``: there is none.
    """

    def __init__(self, leader: NodeId | None) -> None:
        known = "no node" if leader is None else f"node {leader}"
        super().__init__(
            f"this node does not serve the range, {known} leads it; nothing was changed: try again",
            retry_after=0.05,
        )
        self.leader = leader


class LeasedWrites(msgspec.Struct, frozen=True, array_like=True):
    """The command that a group replicates: raw writes, good only under one lease.

    Attributes:
        lease_sequence: the sequence number of that lease.
        writes: the raw writes.
        last_commit: a timestamp that no commit up to this command is above; 0: as before.
        sums: the sums of the companion after this command, packed; ``None``: as before.
    """

    lease_sequence: int
    writes: dict[bytes, bytes | None]
    last_commit: int = 0
    sums: bytes | None = None


encode = msgspec.msgpack.Encoder().encode

_COMMAND_HEADER: Final = bytes([0x90 | len(LeasedWrites.__struct_fields__)])
"""The byte with which the list of a command begins in MessagePack."""


def encode_in_parts(command: LeasedWrites) -> Generator[None, None, bytes]:
    """Encode ``command`` over several turns, into the same bytes as ``encode`` does."""
    sequence, writes, *rest = msgspec.structs.astuple(command)
    parts = [_COMMAND_HEADER, encode(sequence), _map_header(len(writes))]
    items = iter(writes.items())
    while part := dict(islice(items, limits.COMPLETED_AT_ONCE_MAX)):
        parts.append(encode(part)[len(_map_header(len(part))) :])
        yield
    packed = b"".join((*parts, *map(encode, rest)))
    yield
    return packed


def decode_in_parts(packed: memoryview) -> Generator[None, None, LeasedWrites]:
    """Decode a command over several turns."""
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
    return LeasedWrites(lease_sequence, writes, unpacker.unpack(), unpacker.unpack())


def _map_header(length: int) -> bytes:
    """Return the bytes with which a map of so many entries begins in MessagePack."""
    if length < 1 << 4:
        return bytes([0x80 | length])
    if length < 1 << 16:
        return b"\xde" + length.to_bytes(2, "big")
    return b"\xdf" + length.to_bytes(4, "big")


Result: TypeAlias = tuple[Call, Any, BaseException | None]


class Proposal(msgspec.Struct):
    """The leaseholder's memory of a command that it proposed.

    Attributes:
        command: the command.
        results: the calls, each with its answer or error.
        after: the actions to take on the leaseholder once the command is applied.
        last_commit: the timestamp of the last commit in it.
        lease_until: the time until which this node may serve, on its monotonic clock, if the
            command is applied and is about the lease; 0: it is not.
        rejected: whether it was applied under another lease, to no effect.
        packed: the command as it is replicated, if that has been made already.
    """

    command: LeasedWrites
    results: list[Result]
    after: list[Callable[[], None]]
    last_commit: int
    lease_until: float = 0.0
    rejected: bool = False
    packed: bytes | None = None


class Freeing:
    """The write sets to free.

    Python frees a dictionary as a whole: for a proposal of some hundred thousand writes, that takes
    as long as applying it.

    Attributes:
        left: the write sets that are not freed yet.
    """

    def __init__(self) -> None:
        self.left: list[WriteSet] = []

    def add(self, writes: WriteSet) -> None:
        """Free ``writes`` later if they are many. Small sets are freed by their owner."""
        if len(writes) > limits.COMPLETED_AT_ONCE_MAX:
            self.left.append(writes)

    def go_on(self) -> None:
        """Free one turn's share."""
        if not self.left:
            return
        writes = self.left[-1]
        for key in list(islice(reversed(writes), limits.COMPLETED_AT_ONCE_MAX)):
            del writes[key]
        if not writes:
            self.left.pop()

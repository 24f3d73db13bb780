"""What members say to each other, and how it is written: MessagePack, versioned, limited.

::

    frame = [version, wall clock, [[group id, message], ...], entries version]

A frame has the messages of all groups of a turn to one peer. The entries version says which entries
the sender can read (:data:`postroom.raft.journal.ENTRIES_VERSION`; programs that did not say: 0).

::

    candidate        voter           leader                  follower
        | -- PreVote --> |              | -- Append ----------> |   entries, or a heartbeat
        | <-- PreVoted - |              | <-- Appended -------- |
        | -- Vote -----> |              | -- Chunk -----------> |   of a snapshot
        | <-- Voted ---- |              | <-- ChunkTaken ------ |
                                        | -- TimeoutNow ------> |   lead in my place

Every message, answers included, carries its sender's term, so that a late answer of an earlier term
is known for what it is. A frame without messages says that its sender lives. The wall clock, in
milliseconds, is for comparing; nothing is decided by it here.

A frame that is malformed, too large or of another version is dropped whole; decoding has no other
effect, and runs no code that the bytes name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, TypeAlias

import msgspec

from postroom.limits import CHUNK_BYTES_MAX, COMMAND_BYTES_MAX, PEER_FRAME_BYTES_MAX
from postroom.raft.journal import ENTRIES_VERSION, is_payload
from postroom.raft.membership import Members

WIRE_VERSION: Final = 1
FRAME_BYTES: Final = 1024 * 1024
"""No more messages join a frame that has grown past this: a frame is at most that much longer than
its largest message."""


Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Payload: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1, max_length=COMMAND_BYTES_MAX + 1)]
Entry: TypeAlias = tuple[Count, Payload]
"""Term and payload; the index follows from the entry's place."""


class _Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What all messages share."""

    term: Count


class PreVote(_Message, tag=1, frozen=True):
    """Would you vote for me in ``term``, which I have not entered? (dissertation, section 9.6)."""

    last_index: Count
    last_term: Count


class PreVoted(_Message, tag=2, frozen=True):
    """The answer. Granted: ``term`` is the one asked about; refused: the voter's own."""

    granted: bool


class Vote(_Message, tag=3, frozen=True):
    """RequestVote (paper, figure 2).

    ``transfer``: the leader asked for this election, so whoever hears the leader answers it too
    (dissertation, section 4.2.3).
    """

    last_index: Count
    last_term: Count
    transfer: bool = False


class Voted(_Message, tag=4, frozen=True):
    """The answer to :class:`Vote`."""

    granted: bool


class Append(_Message, tag=5, frozen=True):
    """AppendEntries (paper, figure 2), and where the leader's own log begins.

    ``quiet``: there is nothing more to come, stop your timers and say so.
    """

    prev_index: Count
    prev_term: Count
    commit_index: Count
    base_index: Count
    entries: tuple[Entry, ...]
    quiet: bool = False


class Appended(_Message, tag=6, frozen=True):
    """The answer. Success: the logs agree up to ``index``; else: try again after ``index``.

    ``quiet``: my timers stand still. ``installing``: I am putting a snapshot in place and can
    not lead.
    """

    success: bool
    index: Count
    quiet: bool = False
    installing: bool = False


class Chunk(_Message, tag=7, frozen=True):
    """InstallSnapshot (paper, figure 13): chunk ``ordinal`` of the state after an entry.

    ``transfer`` counts the leader's transfers, so that none is mixed up with an earlier one.
    """

    transfer: Count
    index: Count
    index_term: Count
    members: Members
    ordinal: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
    data: Annotated[bytes, msgspec.Meta(max_length=CHUNK_BYTES_MAX)]
    final: bool


class ChunkTaken(_Message, tag=8, frozen=True):
    """The follower has the chunks of that transfer before ``next_ordinal``."""

    transfer: Count
    next_ordinal: Count


class TimeoutNow(_Message, tag=9, frozen=True):
    """Campaign at once: you have all that I have (dissertation, section 3.10)."""


Message: TypeAlias = (
    PreVote | PreVoted | Vote | Voted | Append | Appended | Chunk | ChunkTaken | TimeoutNow
)
Envelope: TypeAlias = tuple[Count, Message]
"""The group's id, and what is said to its member."""


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """Everything that one node says to another at once."""

    version: int
    wall_milliseconds: Count
    envelopes: list[Envelope]
    entries_version: Count = 0


class _Versioned(msgspec.Struct, array_like=True, frozen=True):
    version: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)
_version_decoder = msgspec.msgpack.Decoder(_Versioned)


def encode_frame(envelopes: Sequence[Envelope], wall_milliseconds: int = 0) -> bytes:
    """All messages of a turn to one peer, each with its group."""
    return _encoder.encode((WIRE_VERSION, wall_milliseconds, envelopes, ENTRIES_VERSION))


def frames_of(envelopes: Sequence[Envelope]) -> Iterator[Sequence[Envelope]]:
    """``envelopes`` cut where a frame would grow past ``FRAME_BYTES``."""
    first = size = 0
    for position, (_, message) in enumerate(envelopes):
        if size >= FRAME_BYTES:
            yield envelopes[first:position]
            first, size = position, 0
        size += _bytes_of(message)
    yield envelopes if first == 0 else envelopes[first:]


def _bytes_of(message: Message) -> int:
    if isinstance(message, Append):
        return sum(len(payload) for _, payload in message.entries)
    return len(message.data) if isinstance(message, Chunk) else 0


def decode_frame(frame: bytes) -> tuple[Frame | None, str]:
    """What ``frame`` says; nothing, and why, if it is not sound."""
    if len(frame) > PEER_FRAME_BYTES_MAX:
        return None, f"{len(frame)} bytes are too large"
    try:
        decoded = _decoder.decode(frame)
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        return None, f"unknown version {_version(frame)}" if _is_other(frame) else str(error)
    if decoded.version != WIRE_VERSION:
        return None, f"unknown version {decoded.version}"
    if all(_is_sound(message) for _, message in decoded.envelopes):
        return decoded, ""
    return None, "it contradicts itself"


def _is_other(frame: bytes) -> bool:
    return _version(frame) not in (None, WIRE_VERSION)


def _version(frame: bytes) -> int | None:
    try:
        return _version_decoder.decode(frame).version
    except (ValueError, RecursionError, msgspec.DecodeError):
        return None


def _is_sound(message: Message) -> bool:
    """What types cannot say: terms rise along a log and to the sender's; payloads are readable."""
    if isinstance(message, Chunk):
        return message.index_term <= message.term and message.members.is_sound
    if not isinstance(message, Append):
        return True
    term = message.prev_term
    for entry_term, payload in message.entries:
        if entry_term < term or not is_payload(payload):
            return False
        term = entry_term
    return term <= message.term

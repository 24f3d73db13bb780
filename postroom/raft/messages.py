"""The messages of members, and their encoding: MessagePack, versioned, limited.

::

    frame = [version, wall clock, [[group id, message], ...], entries version,
             wall clock heard, wall clock when it came]

A frame has the messages of all groups of a turn to one peer. The entries version says which entries
the sender can read (:data:`postroom.raft.journal.ENTRIES_VERSION`).

::

    candidate        voter           leader                  follower
        | -- PreVote --> |              | -- Append ----------> |   entries, or a heartbeat
        | <-- PreVoted - |              | <-- Appended -------- |
        | -- Vote -----> |              | -- Chunk -----------> |   of a snapshot
        | <-- Voted ---- |              | <-- ChunkTaken ------ |
                                        | -- TimeoutNow ------> |   lead in my place

Every message, answers included, carries its sender's term, which exposes a late answer of an
earlier term. A frame without messages says that its sender lives. The wall clocks, in
milliseconds, are for comparing (:class:`Clocks`); no decision here depends on them.

A frame that is malformed, too large or of another version is dropped whole; decoding has no other
effect, and runs no code that the bytes name. The number of a frame's items is known before it is
decoded (:mod:`.frames`). A message with a term or an index that no member can have reached is
refused (:func:`beyond_reach`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec

from postroom.limits import (
    APPENDED_ENTRIES_MAX,
    CHUNK_BYTES_MAX,
    COMMAND_BYTES_MAX,
    INDEX_JUMP_MAX,
    PEER_FRAME_BYTES_MAX,
    PEER_FRAME_MESSAGES_MAX,
    TERM_JUMP_MAX,
)
from postroom.raft.membership import Members
from postroom.raft.stored_log import ENTRIES_VERSION, is_payload

WIRE_VERSION: Final = 1
FRAME_BYTES: Final = 1024 * 1024
"""The bytes after which no more messages join a frame.

A frame is at most that much longer than its largest message.
"""
FRAME_ITEMS: Final = 16_384
FRAME_MESSAGES: Final = 2048
"""The number of items, roughly, and of messages after which no more messages join a frame.

The limits of received frames are above all of these.
"""
_MESSAGE_ITEMS: Final = 16
_ENTRY_ITEMS: Final = 3


Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Payload: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1, max_length=COMMAND_BYTES_MAX + 1)]
Entry: TypeAlias = tuple[Count, Payload]
"""The term and the payload; the index follows from the entry's place."""


class _Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The field that all messages share."""

    term: Count


class PreVote(_Message, tag=1, frozen=True):
    """The question before an election whether the receiver would vote for the sender in ``term``.

    The sender has not entered that term (dissertation, section 9.6).
    """

    last_index: Count
    last_term: Count


class PreVoted(_Message, tag=2, frozen=True):
    """The answer to :class:`PreVote`.

    Granted: ``term`` is the one asked about; refused: the voter's own.
    """

    granted: bool


class Vote(_Message, tag=3, frozen=True):
    """The request for a vote, RequestVote (paper, figure 2).

    ``transfer``: the leader asked for this election. A member that hears the leader answers it, too
    (dissertation, section 4.2.3).
    """

    last_index: Count
    last_term: Count
    transfer: bool = False


class Voted(_Message, tag=4, frozen=True):
    """The answer to :class:`Vote`."""

    granted: bool


class Append(_Message, tag=5, frozen=True):
    """The entries for a follower: AppendEntries (paper, figure 2), and where the log begins.

    ``quiet``: nothing more is to come; the follower stops its timers and says that it has.
    """

    prev_index: Count
    prev_term: Count
    commit_index: Count
    base_index: Count
    entries: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=APPENDED_ENTRIES_MAX)]
    quiet: bool = False


class Appended(_Message, tag=6, frozen=True):
    """The answer to :class:`Append`.

    Success: the logs agree up to ``index``; else: try again after ``index``.
    ``quiet``: the follower's timers stand still. ``installing``: the follower puts a snapshot in
    place and cannot lead.
    """

    success: bool
    index: Count
    quiet: bool = False
    installing: bool = False


class Chunk(_Message, tag=7, frozen=True):
    """A part of a snapshot, InstallSnapshot (paper, figure 13).

    It is chunk ``ordinal`` of the state after an entry. ``transfer`` counts the leader's transfers,
    to tell this one from earlier ones.
    """

    transfer: Count
    index: Count
    index_term: Count
    members: Members
    ordinal: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
    data: Annotated[bytes, msgspec.Meta(max_length=CHUNK_BYTES_MAX)]
    final: bool


class ChunkTaken(_Message, tag=8, frozen=True):
    """The answer to :class:`Chunk`: the follower has the chunks before ``next_ordinal``."""

    transfer: Count
    next_ordinal: Count


class TimeoutNow(_Message, tag=9, frozen=True):
    """The request to campaign at once: the receiver has the leader's whole log.

    See the dissertation, section 3.10.
    """


Message: TypeAlias = (
    PreVote | PreVoted | Vote | Voted | Append | Appended | Chunk | ChunkTaken | TimeoutNow
)
Envelope: TypeAlias = tuple[Count, Message]
"""The group's id, and the message to its member."""


class Clocks(NamedTuple):
    """The wall clocks that a frame tells, in milliseconds; 0: nothing was heard.

    Attributes:
        own: the sender's, when the frame left.
        heard: the receiver's, as its last frame told it.
        heard_at: the sender's, when that frame came.
    """

    own: int = 0
    heard: int = 0
    heard_at: int = 0


NO_CLOCKS: Final = Clocks()


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """The messages that one node sends to another at once."""

    version: int
    wall_milliseconds: Count
    envelopes: Annotated[list[Envelope], msgspec.Meta(max_length=PEER_FRAME_MESSAGES_MAX)]
    entries_version: Count
    heard_milliseconds: Count = 0
    heard_at_milliseconds: Count = 0

    @property
    def clocks(self) -> Clocks:
        """Return what the frame tells about wall clocks."""
        return Clocks(self.wall_milliseconds, self.heard_milliseconds, self.heard_at_milliseconds)


class _FrameVersion(msgspec.Struct, array_like=True, frozen=True):
    """The beginning of a frame of any version."""

    version: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)
_version_decoder = msgspec.msgpack.Decoder(_FrameVersion)


def encode_frame(envelopes: Sequence[Envelope], clocks: Clocks = NO_CLOCKS) -> bytes:
    """Encode all messages of a turn to one peer, each with its group."""
    own, heard, heard_at = clocks
    return _encoder.encode((WIRE_VERSION, own, envelopes, ENTRIES_VERSION, heard, heard_at))


def frames_of(envelopes: Sequence[Envelope]) -> Iterator[Sequence[Envelope]]:
    """Cut ``envelopes`` where a frame would exceed one of the limits of a frame."""
    if len(envelopes) == 1:
        yield envelopes
        return
    first = size = items = 0
    for index, (_, message) in enumerate(envelopes):
        if size >= FRAME_BYTES or items >= FRAME_ITEMS or index - first >= FRAME_MESSAGES:
            yield envelopes[first:index]
            first, size, items = index, 0, 0
        message_bytes, message_items = _measure(message)
        size += message_bytes
        items += message_items
    yield envelopes if first == 0 else envelopes[first:]


def _measure(message: Message) -> tuple[int, int]:
    """Return the bytes of the entries or of the data of a message, and about how many items it has.

    There may be a message for each of a thousand groups. It makes no generator.
    """
    if type(message) is Append:
        size = 0
        for _, payload in message.entries:
            size += len(payload)
        return size, _MESSAGE_ITEMS + _ENTRY_ITEMS * len(message.entries)
    if type(message) is Chunk:
        members = message.members
        return len(message.data), _MESSAGE_ITEMS + len(members.counted) + len(members.learners)
    return 0, _MESSAGE_ITEMS


def decode_frame(frame: bytes) -> tuple[Frame | None, str]:
    """Decode ``frame``, or return ``None`` and why it is not sound."""
    if len(frame) > PEER_FRAME_BYTES_MAX:
        return None, f"{len(frame)} bytes are too large"
    try:
        decoded = _decoder.decode(frame)
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        return None, f"unknown version {_version(frame)}" if _is_other(frame) else str(error)
    if decoded.version != WIRE_VERSION:
        return None, f"unknown version {decoded.version}"
    for _, message in decoded.envelopes:
        if type(message) is not Appended and not _is_sound(message):
            return None, "it contradicts itself"
    return decoded, ""


def _is_other(frame: bytes) -> bool:
    return _version(frame) not in (None, WIRE_VERSION)


def _version(frame: bytes) -> int | None:
    try:
        return _version_decoder.decode(frame).version
    except (ValueError, RecursionError, msgspec.DecodeError):
        return None


def _is_sound(message: Message) -> bool:
    """Check what types cannot say.

    Terms rise along a log and to the sender's term; payloads are readable.
    """
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


def beyond_reach(message: Message, term: int, last_index: int) -> str | None:
    """Return the term or index in ``message`` that no member can have reached, or ``None``.

    Terms and indices are numbers below 2^63, and a member adopts the higher one that it is told.
    One message that names the last of them would end a group for good: there would be no next term
    to hold an election in, after any number of restarts. A message may therefore be only so far
    ahead of what this member knows.

    * *Terms.* A term is entered by an election, and a member campaigns again only after its
      election time-out (0.5 s and more), when most others would vote for it. A member that was away
      while the others did nothing but hold elections for 97 days is behind by ``TERM_JUMP_MAX``. A
      forger of messages needs 2^39 of them to get to the end of all terms. Each makes the receiver
      sync its new term, which takes years.
    * *Indices.* A group that appends 100,000 entries a second gets ``INDEX_JUMP_MAX`` ahead of a
      new member in 89 years.

    Answers about a leader's own entries have a closer bound: :mod:`.replication`.

    Args:
        message: from another member.
        term: this member's.
        last_index: the last index of this member's log.
    """
    if message.term - term > TERM_JUMP_MAX:
        return f"term {message.term} cannot have been reached, here it is {term}"
    index = 0
    match message:
        case Append():
            index = max(message.prev_index, message.commit_index, message.base_index)
        case Appended() | Chunk():
            index = message.index
        case Vote() | PreVote():
            index = message.last_index
            if message.last_term > message.term:
                return (
                    f"it has an entry of term {message.last_term}, and asks in term {message.term}"
                )
        case _:
            pass
    if index - last_index > INDEX_JUMP_MAX:
        return f"entry {index} cannot have been reached, here the last is {last_index}"
    return None

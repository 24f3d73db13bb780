"""What members say to each other, and how it is written: MessagePack, versioned, limited.

::

    frame = [version, [[group id, message], ...]]        all groups of a turn, to one peer

    candidate        voter           leader                  follower
        | -- PreVote --> |              | -- Append ----------> |   entries, or a heartbeat
        | <-- PreVoted - |              | <-- Appended -------- |
        | -- Vote -----> |              | -- Chunk -----------> |   of a snapshot
        | <-- Voted ---- |              | <-- ChunkTaken ------ |

Every message, answers included, carries its sender's term, so that a late answer of an earlier term
is known for what it is. A frame that is malformed, too large or of another version is dropped
whole; decoding has no other effect, and runs no code that the bytes name.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias

import msgspec

from postroom.raft.journal import is_payload
from postroom.raft.state_machine import NodeId

logger = logging.getLogger(__name__)

WIRE_VERSION: Final = 1
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
COMMAND_BYTES_MAX: Final = 32 * 1024 * 1024
CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024
MEMBERS_MAX: Final = 64

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Payload: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1, max_length=COMMAND_BYTES_MAX + 1)]
Entry: TypeAlias = tuple[Count, Payload]
"""Term and payload; the index follows from the entry's place."""
Members: TypeAlias = Annotated[tuple[NodeId, ...], msgspec.Meta(max_length=MEMBERS_MAX)]


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
    """RequestVote (paper, figure 2)."""

    last_index: Count
    last_term: Count


class Voted(_Message, tag=4, frozen=True):
    """The answer to :class:`Vote`."""

    granted: bool


class Append(_Message, tag=5, frozen=True):
    """AppendEntries (paper, figure 2), and where the leader's own log begins."""

    prev_index: Count
    prev_term: Count
    commit_index: Count
    base_index: Count
    entries: tuple[Entry, ...]


class Appended(_Message, tag=6, frozen=True):
    """The answer. Success: the logs agree up to ``index``; else: try again after ``index``."""

    success: bool
    index: Count


class Chunk(_Message, tag=7, frozen=True):
    """InstallSnapshot (paper, figure 13): chunk ``ordinal`` of the state after an entry.

    ``transfer`` counts the leader's transfers, so that none is mixed up with an earlier one.
    """

    transfer: Count
    index: Count
    index_term: Count
    members: Members
    ordinal: Count
    data: Annotated[bytes, msgspec.Meta(max_length=CHUNK_BYTES_MAX)]
    final: bool


class ChunkTaken(_Message, tag=8, frozen=True):
    """The follower has the chunks of that transfer before ``next_ordinal``."""

    transfer: Count
    next_ordinal: Count


Message: TypeAlias = PreVote | PreVoted | Vote | Voted | Append | Appended | Chunk | ChunkTaken
Envelope: TypeAlias = tuple[Count, Message]
"""The group's id, and what is said to its member."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int, list[Envelope]])


def encode_frame(envelopes: Sequence[Envelope]) -> bytes:
    """All messages of a turn to one peer, each with its group."""
    return _encoder.encode((WIRE_VERSION, envelopes))


def decode_frame(frame: bytes, sender: NodeId) -> list[Envelope]:
    """The messages in ``frame``; none, with the reason logged, if it is not sound."""
    if len(frame) > FRAME_BYTES_MAX:
        logger.warning("dropped a frame of %d bytes from %s: too large", len(frame), sender)
        return []
    try:
        version, envelopes = _decoder.decode(frame)
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        logger.warning("dropped a malformed frame from %s: %s", sender, error)
        return []
    if version != WIRE_VERSION:
        logger.warning("dropped a frame of unknown version %d from %s", version, sender)
        return []
    if not all(_is_sound(message) for _, message in envelopes):
        logger.warning("dropped a malformed frame from %s: entries contradict each other", sender)
        return []
    return envelopes


def _is_sound(message: Message) -> bool:
    """What types cannot say: terms rise along a log and to the sender's; payloads are readable."""
    if isinstance(message, Chunk):
        return message.index_term <= message.term and len(message.members) > 0
    if not isinstance(message, Append):
        return True
    term = message.prev_term
    for entry_term, payload in message.entries:
        if entry_term < term or not is_payload(payload):
            return False
        term = entry_term
    return term <= message.term

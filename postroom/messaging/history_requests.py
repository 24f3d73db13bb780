"""The requests about the history of a message (:mod:`.history`), and their answers."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from postroom.limits import TRACED_COMMITS_MAX
from postroom.messaging.requests import MessageId
from postroom.ranges.contract import ConcernsStore, Read
from postroom.ranges.requests import Key, TimestampNumber
from postroom.ranges.rights import Verb


class TraceRecord(msgspec.Struct, frozen=True, array_like=True):
    """A place of a message, or of a deferred update, or a record of its way.

    Attributes:
        where: ``waits`` or ``outgoing`` (in an outbox), ``inbox``, ``consumed`` or ``left`` (an
            inbox), ``dead``.
        range_id: the range that has it.
        at: when it is due (``waits``), was delivered (``inbox``), has left (``consumed``,
            ``left``); 0: this is not stored.
        key: the recipient; of an update, the key that anchors it.
        is_update: whether it is a deferred update.
        transaction_id: the sender (in an outbox), or the transaction that holds it (``inbox``);
            empty: it is not known, or there is none.
        delivered_at: when a message that has left its inbox had been delivered; else 0.
        attempts: how many have failed.
        error: how the last of them ended; of a dead letter, its reason.
    """

    where: str
    range_id: int
    at: int
    key: bytes
    is_update: bool = False
    transaction_id: bytes = b""
    delivered_at: int = 0
    attempts: int = 0
    error: str = ""


class TraceMessage(ConcernsStore, Read, frozen=True, tag="trace_message"):
    """A request for what is stored of a message or an update.

    ``key`` is the inbox in which it is looked for; ``None``: all that have mail.
    """

    answer: ClassVar = list[TraceRecord]
    since: ClassVar = 2
    verbs: ClassVar = (Verb.READ,)

    id: MessageId
    key: Key | None = None


class FoundCommit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A COMMIT record: its timestamp, its range, its transaction and the key beside which it is."""

    timestamp: int
    range_id: int
    transaction_id: bytes
    anchor: bytes


class FindCommits(ConcernsStore, Read, frozen=True, tag="find_commits"):
    """A request for the COMMIT records with these timestamps, as far as they are kept."""

    answer: ClassVar = list[FoundCommit]
    since: ClassVar = 2
    verbs: ClassVar = (Verb.READ,)

    timestamps: Annotated[list[TimestampNumber], msgspec.Meta(max_length=TRACED_COMMITS_MAX)]

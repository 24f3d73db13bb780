"""Sending commits: what every write of a client ends in, alone or at the end of a transaction.

The anchor of a transaction is the key that its first write is about. Its COMMIT record is kept
beside that key, and by it a commit that is sent again finds out that it has happened already.
"""

from __future__ import annotations

from typing import Any

from postroom.client.lifetime import Event, Lifetime
from postroom.client.sender import Sender, send_again
from postroom.errors import CommitUnknown, Unavailable
from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.messaging.requests import CheckInbox, EnqueueUpdate
from postroom.ranges.requests import Committed, CommitTransaction


async def commit_one(sender: Sender, anchor: bytes, write: Any) -> Any:
    """Commits a transaction of one write; returns what that answers.

    Raises:
        CommitUnknown: it may have happened.
        Error: nothing was changed.
    """
    request = CommitTransaction(
        sender.next_id(), sender.reading(), TRANSACTION_SECONDS_MAX, 0, anchor, [], [], [write]
    )
    reply = await _answer(sender, request, again=True)
    return reply.answers[0] if reply.answers else None


async def send_for(
    lifetime: Lifetime, sender: Sender, request: CommitTransaction[Any]
) -> Committed:
    """Sends the commit of a transaction, and follows its state through it.

    Raises:
        CommitUnknown: it may have happened.
        Error: nothing was changed.
    """
    lifetime.to(Event.SEND)
    may_have_happened = lifetime.is_unknown
    try:
        reply = await _answer(sender, request, again=not may_have_happened)
    except CommitUnknown:
        lifetime.to(Event.LOST)
        raise
    except Exception as error:
        if may_have_happened and isinstance(error, Unavailable):
            lifetime.to(Event.LOST)
            raise CommitUnknown(
                "an earlier commit of this transaction may have happened, and the store cannot "
                "tell now: commit again with the same transaction id"
            ) from error
        lifetime.end(Event.REFUSED)
        raise
    except BaseException:  # cancelled: whether it has happened, another commit tells
        lifetime.to(Event.LOST)
        lifetime.release()
        raise
    lifetime.to(Event.MADE)
    return reply


async def _answer(sender: Sender, request: CommitTransaction[Any], *, again: bool) -> Committed:
    try:
        reply: Committed = await sender.send(request)
    except Unavailable as refusal:
        # After an earlier commit may have happened, this refuses only the question whether it has.
        if not again:
            raise
        reply = await send_again(sender, request, refusal)
    return reply


def anchor_of(writes: list[Any]) -> bytes:
    """The key that the first write is about; a check counts only if there is nothing else."""
    first = next((write for write in writes if type(write) is not CheckInbox), writes[0])
    request = first.request if isinstance(first, EnqueueUpdate) else first
    anchor: bytes = request.key if hasattr(request, "key") else request.start
    return anchor


__all__ = ["anchor_of", "commit_one", "send_for"]

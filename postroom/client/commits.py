"""The sending of commits: every write of a client ends here, alone or in a transaction.

The anchor of a transaction is the key of its first write. Its COMMIT record is stored beside that
key. A commit that is sent again finds the record and knows that it has happened already.
"""

from __future__ import annotations

from typing import Any, Final

from postroom.client.lifetime import Event, Lifetime
from postroom.client.sender import Sender, has_stopped, send_again
from postroom.errors import CommitUnknown, Invalid, Unavailable, shorten
from postroom.kv.clock import from_seconds
from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.ranges.requests import Committed, CommitTransaction

TRANSACTION_ID_BYTES: Final = 16
RETRY_ID_BYTES: Final = 24
"""The id of the transaction, and the timestamp at which it began."""
CLOCKS_APART_SECONDS: Final = 60.0
"""How far the timestamps that two clients have heard of may be apart."""


async def commit_one(sender: Sender, anchor: bytes, write: Any) -> Any:
    """Commit a transaction of one write; return the answer to the write.

    Raises:
        CommitUnknown: it may have happened.
        Error: nothing was changed.
    """
    request = alone(sender, anchor, write)
    try:
        reply: Committed = await sender.send(request)
    except Unavailable as refusal:
        reply = await send_again(sender, request, refusal)
    return reply.answers[0] if reply.answers else None


def alone(sender: Sender, anchor: bytes, write: Any) -> CommitTransaction[Any]:
    """Return the commit of a transaction of one write."""
    return CommitTransaction(
        sender.next_id(), sender.reading(), TRANSACTION_SECONDS_MAX, 0, anchor, [], [], [write]
    )


async def after_failure(
    lifetime: Lifetime, sender: Sender, request: CommitTransaction[Any], failure: BaseException
) -> Committed:
    """Return the answer to a commit that was sent and has failed, by sending it again.

    Args:
        lifetime: the lifetime of the transaction, which is being committed. Before an error is
            raised, its state is set.
        sender: the client's sender.
        request: the commit.
        failure: what was raised instead of an answer.

    Raises:
        CommitUnknown: it may have happened.
        Error: nothing was changed.
    """
    may_have_happened = lifetime.is_unknown
    try:
        # If an earlier commit may have happened, this failure does not tell whether it has.
        if may_have_happened or not isinstance(failure, Unavailable):
            raise failure
        reply: Committed = await send_again(sender, request, failure)
    except CommitUnknown:
        lifetime.to(Event.LOST)
        raise
    except Exception as error:
        if may_have_happened and isinstance(error, Unavailable):
            lifetime.to(Event.LOST)
            raise CommitUnknown(
                f"an earlier commit of this transaction may have happened; {error}"
                if has_stopped(sender, error)
                else "an earlier commit of this transaction may have happened, and the store "
                "cannot tell now: commit again with the same transaction id"
            ) from error
        lifetime.end(Event.REFUSED)
        raise
    except BaseException:  # cancelled: another commit tells whether it has happened
        lifetime.to(Event.LOST)
        lifetime.release()
        raise
    finally:
        del failure  # it refers to this frame, and both are to be freed at once
    return reply


def parsed_retry_id(given: bytes, now: int) -> tuple[bytes, int]:
    """Return the transaction's id, and the timestamp at which it began, of a ``retry_id``.

    Args:
        given: the ``retry_id`` of a transaction.
        now: about now, as a timestamp.

    Raises:
        TypeError, Invalid: it is no ``retry_id``.
    """
    if not isinstance(given, bytes):
        raise TypeError(f"retry_id is bytes, not {type(given).__name__}")
    began = int.from_bytes(given[TRANSACTION_ID_BYTES:], "big")
    if len(given) != RETRY_ID_BYTES or not 0 < began <= now + from_seconds(CLOCKS_APART_SECONDS):
        raise Invalid(
            f"{shorten(given)} is not the retry_id of a transaction; nothing was changed: pass "
            "tx.retry_id of the earlier try"
        )
    return given[:TRANSACTION_ID_BYTES], began


def anchor_of(writes: list[Any]) -> bytes:
    """Return the key of the first write; a check counts only if there is nothing else."""
    first = writes[0]
    if first.only_checks:
        first = next((write for write in writes if not write.only_checks), first)
    anchor: bytes = first.anchor()
    return anchor


__all__ = ["after_failure", "alone", "anchor_of", "commit_one", "parsed_retry_id"]

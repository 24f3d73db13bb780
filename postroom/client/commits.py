"""The sending of commits: every write of a client ends here, alone or in a transaction.

The anchor of a transaction is the key of its first write that is not only sent: the range of
another key would take part for that alone. The COMMIT record of the transaction is stored beside
that key. A commit that is sent again finds the record and knows that it has happened already.

A transaction that lost is tried again (:mod:`.retries`). The error of a try names the keys that
others have changed. ``Lost`` keeps them for the next try, which locks these, and the keys that the
last one wrote: it usually writes them again, and would lock them one by one. A span in which
something has changed is locked when a second try has lost on it; before that, only the keys in it
that had changed. All tries together have the age of the first one. In the end it is the oldest, and
wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from postroom.client.lifetime import Event, Lifetime
from postroom.client.sender import Sender, has_stopped, send_again
from postroom.errors import (
    CommitUnknown,
    Invalid,
    Retryable,
    TransactionConflict,
    Unavailable,
    shorten,
)
from postroom.kv.clock import from_seconds
from postroom.limits import (
    LOCKS_AT_ONCE_MAX,
    RETRY_BACKOFF_SECONDS_MAX,
    RETRY_SECONDS_MAX,
    TRANSACTION_SECONDS_MAX,
)
from postroom.ranges.contract import RANGE_ID_BYTES
from postroom.ranges.requests import Committed, CommitTransaction

TRANSACTION_ID_BYTES: Final = 16
RETRY_ID_BYTES: Final = 24
"""The id of the transaction, and the timestamp at which it began."""
CLOCKS_APART_SECONDS: Final = 60.0
"""The most that the timestamps may be apart that two clients have heard of."""
BACKOFF_SECONDS_FIRST: Final = 0.001
"""The first pause between two tries of a transaction or of a request, in seconds."""


async def commit_one(sender: Sender, anchor: bytes, write: Any) -> Any:
    """Commit a transaction of one write; return the answer to the write.

    Raises:
        CommitUnknown: it may have happened.
        Error: nothing was changed.
    """
    reply = await _sent(sender, alone(sender, anchor, write))
    return reply.answers[0] if reply.answers else None


async def commit_together(sender: Sender, writes: list[Any]) -> None:
    """Commit a transaction of some writes, at least one; the errors are those of one write."""
    await _sent(sender, alone(sender, writes[0].anchor(), *writes))


async def _sent(sender: Sender, request: CommitTransaction[Any]) -> Committed:
    try:
        reply: Committed = await sender.send(request)
    except Unavailable as refusal:
        reply = await send_again(sender, request, refusal)
    return reply


async def commit_in_ranges(
    sender: Sender, kind: Callable[[list[bytes]], Any], ids: Iterable[bytes]
) -> int:
    """Commit a write about records of no key in each range that has some; sum up the answers.

    Args:
        sender: the client's sender.
        kind: makes the write, about the records of one range.
        ids: the ids of the records, which begin with those of their ranges.

    Raises:
        Error: see :func:`commit_one`. What concerns other ranges may have happened.
    """
    by_range: dict[bytes, list[bytes]] = {}
    for id_ in ids:
        by_range.setdefault(id_[:RANGE_ID_BYTES], []).append(id_)
    every = [*by_range.values()] or [list[bytes]()]  # the store tells if it is closed
    answers = [await commit_one(sender, b"", kind(each)) for each in every]
    return sum(answers)


def alone(sender: Sender, anchor: bytes, *writes: Any) -> CommitTransaction[Any]:
    """Return the commit of a transaction of these writes, and nothing else."""
    return CommitTransaction(
        sender.next_id(), sender.reading(), TRANSACTION_SECONDS_MAX, 0, anchor, [], [], [*writes]
    )


async def repeated(sender: Sender, make: Callable[[], Any]) -> Any:
    """Return the answer to a request that may be repeated.

    If it may have happened (``CommitUnknown``), or has certainly not (``Retryable``), it is sent
    again, until the store answers, for a minute.

    Args:
        sender: the client's sender.
        make: makes the request, a new one for each try.

    Raises:
        CommitUnknown, Unavailable, TransactionConflict: it could not be done for a minute.
        Error: nothing was changed.
    """
    give_up = sender.monotonic() + RETRY_SECONDS_MAX
    backoff = BACKOFF_SECONDS_FIRST
    while True:
        try:
            return await sender.send(make())
        except (CommitUnknown, Retryable) as error:
            if sender.monotonic() > give_up or has_stopped(sender, error):
                raise
            await sender.sleep(backoff * sender.random.uniform(0.5, 1.0))
            backoff = min(2 * backoff, RETRY_BACKOFF_SECONDS_MAX)


async def repeat_one(sender: Sender, write: Any) -> Any:
    """Return the answer to a write that may be repeated; see :func:`repeated`."""
    anchor = write.anchor()
    reply: Committed = await repeated(sender, lambda: alone(sender, anchor, write))
    return reply.answers[0] if reply.answers else None


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
    """Return the key of the first write that is neither a check nor sent, if there is one."""
    first = writes[0]
    if len(writes) > 1 and (first.only_checks or not first.participates()):
        effects = [write for write in writes if not write.only_checks] or writes
        first = next((write for write in effects if write.participates()), effects[0])
    anchor: bytes = first.anchor()
    return anchor


T = TypeVar("T")

_WRITTEN_KEPT: Final = 100


class Lost:
    """The keys and spans that a transaction has lost on.

    Attributes:
        began: when the first try began, as a timestamp; 0 before that.
        keys, spans: what the next try locks.
        has_moved: whether the timestamp of one has moved, see :mod:`.reading`.
    """

    __slots__ = ("_seen", "began", "has_moved", "keys", "spans")

    def __init__(self) -> None:
        self.began = 0
        self.has_moved = False
        self.keys: dict[bytes, None] = {}
        self.spans: dict[tuple[bytes, bytes | None], None] = {}
        self._seen: set[tuple[bytes, bytes | None]] = set()

    def add(self, error: Retryable, written: Iterable[bytes]) -> bool:
        """Note a failed try; return whether it lost on something that it had not locked.

        Args:
            error: the error that ended it.
            written: the keys that it wanted to write.
        """
        if not (isinstance(error, TransactionConflict) and (error.keys or error.spans)):
            return False
        before = len(self.keys) + len(self.spans)
        new = {key: None for key in error.keys if key not in self.keys}
        self.spans |= {span: None for span in error.spans if span in self._seen}
        self._seen.update(error.spans)
        also = dict.fromkeys(list(written)[:_WRITTEN_KEPT])
        self.keys = _first({**new, **self.keys, **also})
        self.spans = _first(self.spans)
        return bool(new) or len(self.keys) + len(self.spans) > before


def _first(of: dict[T, None]) -> dict[T, None]:
    return dict.fromkeys(list(of)[:LOCKS_AT_ONCE_MAX])

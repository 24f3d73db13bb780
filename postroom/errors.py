"""Every error that Postroom raises at its callers.

::

    Error
    ├── Retryable                nothing happened; the same transaction may be tried again
    │   ├── TransactionConflict  another transaction changed what this one read, or won
    │   ├── OutboxFull           too much waits to leave a range
    │   └── Unavailable          no leader, no quorum, overloaded, no room (carries retry_after)
    ├── CommitUnknown            the commit may have happened; run() resolves it by itself
    ├── Invalid                  the caller must change the call; nothing happened
    │   ├── KeyTooLarge  ValueTooLarge  TransactionTooLarge  TransactionExpired  TransactionClosed
    │   ├── WrongType  Overflow  NotInTransaction  SnapshotTooOld
    │   └── DatabaseClosed       it was closed, or belongs to the parent of this process
    ├── ConditionFailed          the value was another one (carries actual); nothing happened
    ├── LeaseLost                a queue message is not held any more; nothing happened
    ├── StoreLocked  StoreCorrupted  VersionMismatch
    └── AccessDenied

Each message names the key (shortened), the limit or the state concerned, and what to do.
Arguments of the wrong Python type raise the built-in ``TypeError``, impossible ones ``ValueError``.
"""

from __future__ import annotations


class Error(Exception):
    """The root of all errors: ``except postroom.Error`` catches each error that Postroom raises."""


class Retryable(Error):
    """An error after which nothing has happened. ``run`` tries the transaction again by itself."""


class TransactionConflict(Retryable):
    """Another transaction changed what this one read, or holds what it asked for.

    Attributes:
        keys: what it lost on, as far as that is known: up to 128 keys.
        spans: the spans that it had scanned and in which something has changed, up to 128.
    """

    def __init__(
        self,
        message: str,
        keys: tuple[bytes, ...] = (),
        spans: tuple[tuple[bytes, bytes | None], ...] = (),
    ) -> None:
        super().__init__(message)
        self.keys = keys
        self.spans = spans


class Unavailable(Retryable):
    """The store cannot serve this now: no leader, no quorum, overloaded, or out of room.

    Attributes:
        retry_after: seconds after which trying again makes sense.
    """

    def __init__(self, message: str, retry_after: float = 0.1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OutboxFull(Retryable):
    """Too many messages and updates wait to leave a range, and the transaction would add some."""


class CommitUnknown(Error):
    """The commit may or may not have happened. Committing again with the same id tells which."""


class Invalid(Error):
    """The call can never succeed as it stands. Nothing happened."""


class DatabaseClosed(Invalid):
    """The database was closed, or this is the child of a fork, which has to open one of its own."""


class KeyTooLarge(Invalid):
    """A key is over the limit (``limits.KEY_BYTES_MAX``)."""


class ValueTooLarge(Invalid):
    """A value or a message is over its limit."""


class TransactionTooLarge(Invalid):
    """A transaction's writes and messages together are over the limit."""


class TransactionExpired(Invalid):
    """A transaction stayed open longer than it may. Begin a new one."""


class TransactionClosed(Invalid):
    """The transaction was committed or rolled back already."""


class WrongType(Invalid):
    """A stored value is not what the operation needs (an integer, say)."""


class Overflow(Invalid):
    """A result would leave the range of a 64-bit signed integer."""


class NoSuchQueue(Invalid):
    """A call names a queue that does not exist.

    Attributes:
        queue: the name.
    """

    def __init__(self, message: str, queue: str = "") -> None:
        super().__init__(message)
        self.queue = queue


class NotInTransaction(Invalid):
    """The operation works only inside a transaction."""


class SnapshotTooOld(Invalid):
    """The timestamp asked for has been garbage collected."""


class ConditionFailed(Error):
    """The key did not contain the expected value. Nothing happened.

    Attributes:
        actual: what it contains instead; ``None`` if nothing.
    """

    def __init__(self, message: str, actual: object = None) -> None:
        super().__init__(message)
        self.actual = actual


class LeaseLost(Error):
    """An attempt does not hold its queue message any more: its lease ran out, or was ended.

    Nothing happened: the writes that were to be committed with it are not there either. The
    consumer that holds the message now does the work; there is nothing to try again.
    """


class TaskFailed(Error):
    """The task of a message has failed for good: the message is dead, or was cancelled.

    Attributes:
        type: the name of the type of the exception; empty: no exception has ended the message.
        reason: its text.
        traceback: its traceback as text; empty: none is kept.
    """

    def __init__(
        self,
        message: str,
        *,
        type: str = "",  # noqa: A002 - the word of its users
        reason: str = "",
        traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.type = type
        self.reason = reason
        self.traceback = traceback


class StoreLocked(Error):
    """Another process (named in the message) has the data folder open.

    Attributes:
        address: the address at which that process serves the store; empty: it does not.
    """

    def __init__(self, message: str, address: str = "") -> None:
        super().__init__(message)
        self.address = address


class StoreCorrupted(Error):
    """The data folder does not contain what it must, or what it contains is damaged."""


class VersionMismatch(Error):
    """The data folder or the peer speaks a format that is not known here, or another engine's."""


class AccessDenied(Error):
    """An access that the file system's permissions, or the server, do not allow."""


def how_to_install(extra: str) -> str:
    """Return what to do if a library is missing.

    Postroom is installed from its source: there is no index to name it to.
    """
    return f'pip install ".[{extra}]" in a clone of Postroom\'s repository'


def shorten(key: bytes, bytes_max: int = 48) -> str:
    """Return ``key`` as it appears in a message: its ``repr``, cut if it is long."""
    if len(key) <= bytes_max:
        return repr(key)
    return f"{key[:bytes_max]!r}… ({len(key)} bytes)"

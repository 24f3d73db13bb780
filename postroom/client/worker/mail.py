"""The mail of one key, while a worker works on it.

A message whose function fails is postponed: for a second, then for two, four, up to five minutes.
After ``max_attempts`` it is a dead letter. The store keeps this, so it is true for each worker that
comes to the message. Messages behind it are worked off meanwhile, or wait for it (``hold``). ::

    function ─┬─ returned ────────▶ committed: the messages are consumed
              ├─ Reject(delay) ───▶ postponed
              ├─ Discard(reason) ─▶ a dead letter
              ├─ any other ───────▶ postponed, with the back-off; a dead letter after max_attempts
              └─ Retryable ───────▶ once more, for a minute; then the key is left alone, uncounted

An attempt at which the worker is killed counts as well. Messages that a function has got together
come one by one when they have failed, so that one of them does not take the others along. Errors
that say nothing about the message (no leader, no network, conflicts for a minute) are not counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from postroom.client.postponing import ANY_ATTEMPTS
from postroom.client.transaction import Transaction
from postroom.client.values import Message
from postroom.client.worker.calling import Callee, Function, FunctionCaller
from postroom.client.worker.calls import Running
from postroom.client.worker.failures import Failure, Failures
from postroom.client.worker.options import Options
from postroom.client.worker.outcomes import Outcome, Reject, outcome_of
from postroom.errors import (
    CommitUnknown,
    Error,
    Retryable,
    TransactionConflict,
    TransactionTooLarge,
    WrongType,
)
from postroom.limits import KEY_BYTES_MAX
from postroom.messaging.undelivered import reviving_letter

LOCK_PREFIX: Final = b"\x00postroom/worker/"
LOCK_PATIENCE_SECONDS: Final = 0.05
"""The time to wait for a lock, in seconds; if that is not enough, another worker has the key."""


def lock_key(key: bytes) -> bytes:
    """Return the key that a worker locks while it works on the inbox of ``key``."""
    if len(LOCK_PREFIX) + len(key) > KEY_BYTES_MAX:
        key = hashlib.sha256(key).digest()
    return LOCK_PREFIX + key


@dataclass(frozen=True, slots=True)
class InboxTask:
    """A function that is called with the mail of keys.

    Attributes:
        function: called with a message, or with a list of messages if ``batch`` is given.
        prefix: the prefix of the keys.
        batch: how many messages of a key it gets at most; ``None``: one, not in a list.
        hold: whether messages behind one that has failed wait for it.
        options: how they are worked off.
    """

    function: Function
    prefix: bytes
    batch: int | None
    hold: bool
    options: Options

    @property
    def name(self) -> str:
        """Return its name in the log."""
        return f"the task of inboxes {self.prefix!r}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, here and now."""
        return self.function(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Desk:
    """The things that are needed to work on the mail of any key.

    Attributes:
        task: the task.
        callee: its function.
        caller: calls it.
        failures: where failures are told.
        elsewhere: told of a key that another worker is busy with.
        leave_alone: told of a key whose mail could not be worked on, and why.
    """

    task: InboxTask
    callee: Callee
    caller: FunctionCaller
    failures: Failures
    elsewhere: Callable[[bytes], None]
    leave_alone: Callable[[bytes, Exception], None]


class Mail:
    """The mail of one key, while a worker works on it.

    Args:
        desk: how it is worked on.
        key: the recipient.
    """

    def __init__(self, desk: Desk, key: bytes) -> None:
        self._desk = desk
        self._task = desk.task
        self._key = key
        self._taken: list[Message] = []
        self._is_given_back = False

    async def work(self, running: Running) -> bool:
        """Work on the mail; return whether it was consumed, buried or postponed.

        A message that is postponed without a delay does not count.
        """

        async def failed(error: Exception) -> None:
            if not (running.is_stopped or running.is_lost):
                self._is_given_back = await self._give_back(error)

        desk = self._desk
        try:
            await desk.caller.call_with(desk.callee, self._take, failed, running)
        except (Retryable, CommitUnknown) as error:
            desk.leave_alone(self._key, error)
            return False
        except Exception as error:
            if running.is_stopped or running.is_lost:
                return False  # the mail stays in its inbox, or its outcome is stored already
            if not self._is_given_back and not await self._give_back(error):
                return False
            # run_ready does not try a key again whose messages come again at once.
            return not (isinstance(error, Reject) and error.delay is not None and not error.delay)
        return bool(self._taken)

    async def abandon(self, running: Running) -> bool:
        """Store a failure, since the function goes on although it was cancelled."""
        try:
            if running.is_stopped:
                return False
            error = TimeoutError(f"{running.given_up}; it goes on although it was cancelled")
            return await self._give_back(error)
        finally:
            running.release()

    async def _take(self, tx: Transaction) -> Any:
        self._is_given_back = False
        self._taken.clear()
        if not await tx.try_lock(lock_key(self._key), LOCK_PATIENCE_SECONDS):
            self._desk.elsewhere(self._key)
            return None
        self._taken.extend(await self._reap(tx))
        if not self._taken:
            return None
        return self._taken[0] if self._task.batch is None else list(self._taken)

    async def _reap(self, tx: Transaction) -> list[Message]:
        """Return the oldest messages of the key.

        Raises:
            WrongType: the codec cannot unpack one of them; ``_taken`` has their ids.
        """
        key, task = self._key, self._task
        try:
            most = task.options.max_attempts
            return list(await tx.reap_queue(key, task.batch or 1, max_attempts=most))
        except WrongType:
            ids = tx.reaped_ids(key)
            self._taken += [Message(key, None, None, id_, 0, ANY_ATTEMPTS) for id_ in ids]
            raise

    async def _give_back(self, error: Exception) -> bool:
        """Postpone or bury the messages that have failed; return whether nothing is left to store.

        There is nothing to store if the messages are gone, or if another worker has tried them
        meanwhile.
        """
        taken = list(self._taken)
        if not taken:
            self._desk.leave_alone(self._key, error)
            return False
        outcome = outcome_of(error)
        try:
            await self._write_down(taken, outcome)
        except TransactionConflict:
            return True
        except Error as other:
            self._desk.leave_alone(self._key, other)
            return False
        for each in taken:
            await self._desk.failures.tell(self._failure(each, error, outcome))
        return True

    def _failure(self, message: Message, error: Exception, outcome: Outcome) -> Failure:
        attempt, most = max(message.attempts, 0) + 1, self._task.options.max_attempts
        dead = outcome.dead or (most is not None and attempt >= most)
        revive = f"to revive it: {reviving_letter(message.letter_id)}"
        name = f"message {message.id} of {message.key!r}"
        return Failure(message, name, attempt, error, revive if dead else "")

    async def _write_down(self, taken: list[Message], outcome: Outcome) -> None:
        """Store an outcome in one transaction, or in several if it is too large for one."""
        task = self._task
        try:
            async with self._desk.caller.db.begin() as tx:
                if outcome.dead:
                    tx.bury(taken, outcome.reason)
                else:
                    tx.postpone(
                        taken, outcome.delay, outcome.reason,
                        hold=task.hold, max_attempts=task.options.max_attempts,
                    )  # fmt: skip
        except TransactionTooLarge:
            half = len(taken) // 2
            if not half:
                raise
            await self._write_down(taken[:half], outcome)
            await self._write_down(taken[half:], outcome)


__all__ = ["Desk", "InboxTask", "Mail", "lock_key"]

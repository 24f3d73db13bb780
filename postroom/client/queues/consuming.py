"""A consumer: it claims messages ahead of need, and hands them out one by one.

Whenever a caller asks for a message and none waits here, one claim is under way. The store answers
it as soon as something is ready for this consumer. Over the network the router sends it to the
leader, and again whenever the leader changes.

If the claim fails for good the consumer tries again, after longer and longer pauses. It ends only
when it is closed, or by an error that says that it cannot go on (the queue was dropped, the
database was closed, access is denied).

Its intake has the messages that it holds, and says how many more it may ask for.

::

    claimed ──▶ waiting ── taken ──▶ in hand ─┬─ settled, by this consumer or by anybody else
                   │                          └─ its lease has passed
                   └─ half of the lease has passed ──▶ given back, uncounted

*Credit* is how many messages a consumer may hold without having settled them. A message whose lease
has passed belongs to another consumer, and takes no credit any more.

*Pace.* Messages that wait here age: their lease runs. A consumer that takes a hundred messages and
needs a second for each would lose most of them. Each loss counts as a failed attempt of a message
that no function has seen. Thus the consumer asks for one message first. After a batch that took
less than a quarter of a lease it asks for twice as many. After a batch that took longer than half
of a lease it asks for half as many. A message that still waits when half of its lease has passed is
given back, as if it had not been claimed.

The code is plain and synchronous. Several threads may call its methods, since many threads may work
on the messages of one consumer.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from itertools import islice
from typing import Final, TypeAlias

from postroom.client import arguments
from postroom.client.bridge import wake_up_for
from postroom.client.codec import Packing
from postroom.client.commits import alone, commit_one, commit_together
from postroom.client.pages import Stream
from postroom.client.queues.claims import claim, over
from postroom.client.queues.messages import AnyMessage, QueueMessage, SettlingCalls
from postroom.client.queues.placing import home_of_attempt, in_ranges
from postroom.client.sender import Sender, has_stopped, post
from postroom.errors import Error, Retryable, Unavailable
from postroom.limits import IN_HAND_MAX
from postroom.log_once import LogOnce
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection
from postroom.messaging.queues.requests import KeepResult, RejectMessages

_Waiting: TypeAlias = tuple[QueueMessage, float, float]
"""A message that waits, when it is given back, and when its lease passes."""


class Intake:
    """The messages of one consumer.

    Args:
        credit: how many it may hold at a time.
    """

    def __init__(self, credit: int) -> None:
        self._credit = credit
        self._waiting: deque[_Waiting] = deque()
        self._in_hand: dict[AnyMessage, float] = {}
        self._none_passes_before = math.inf
        """No lease of a message that waits or is in hand passes before."""
        self._lock = threading.Lock()
        self._batch = 1
        self._began = 0.0
        self._lease_seconds = 0.0

    def wanted(self, now: float) -> int:
        """Return how many messages to ask for now; 0: no credit is left, or some messages wait."""
        with self._lock:
            if self._waiting:
                return 0
            if self._none_passes_before <= now:
                self._in_hand = {one: until for one, until in self._in_hand.items() if until > now}
                self._none_passes_before = min(self._in_hand.values(), default=math.inf)
            self._pace(now)
            return min(self._batch, self._credit - len(self._in_hand))

    def _pace(self, now: float) -> None:
        if not self._lease_seconds:
            return
        took, lease = now - self._began, self._lease_seconds
        self._lease_seconds = 0.0
        if took > lease / 2:
            self._batch = max(self._batch // 2, 1)
        elif took < lease / 4:
            self._batch = min(2 * self._batch, self._credit)

    def in_hand(self, most: int) -> list[AnyMessage]:
        """Return the messages that have been in hand for longest."""
        with self._lock:
            return list(islice(self._in_hand, most))

    def frees_at(self) -> float | None:
        """Return when the first lease in hand passes; ``None``: nothing is in hand."""
        with self._lock:
            return min(self._in_hand.values(), default=None)

    def claimed(self, messages: list[QueueMessage], lease_seconds: list[float], now: float) -> None:
        """Add claimed messages.

        Args:
            messages: in the order in which they are to be handed out.
            lease_seconds: for how long each of them is held.
            now: the client's monotonic clock, in seconds.
        """
        with self._lock:
            self._waiting.extend(
                (message, now + seconds / 2, now + seconds)
                for message, seconds in zip(messages, lease_seconds, strict=True)
            )
            if messages:
                self._began, self._lease_seconds = now, min(lease_seconds)
                passes = now + self._lease_seconds
                self._none_passes_before = min(self._none_passes_before, passes)

    def take(self, now: float) -> QueueMessage | None:
        """Return the next message to work on; ``None``: there is none that is fresh enough."""
        with self._lock:
            if not self._waiting or self._waiting[0][1] <= now:
                return None
            message, _, until = self._waiting.popleft()
            self._in_hand[message] = until
            return message

    def take_back(self) -> list[QueueMessage]:
        """Return all waiting messages, and forget them: the caller gives them back."""
        with self._lock:
            late = [message for message, _, _ in self._waiting]
            self._waiting.clear()
            return late

    def settled(self, message: AnyMessage) -> None:
        """Free the credit of a message."""
        with self._lock:
            self._in_hand.pop(message, None)

    def extended(self, message: AnyMessage, until: float) -> None:
        """Note that the lease of a message passes at ``until``."""
        with self._lock:
            if message in self._in_hand:
                self._in_hand[message] = until
                self._none_passes_before = min(self._none_passes_before, until)

    @property
    def waiting(self) -> int:
        """Return how many messages wait to be taken."""
        return len(self._waiting)


PAUSE_SECONDS_FIRST: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0
LEASE_SECONDS_MIN: Final = 0.001
OWN_SECONDS: Final = 0.1
"""The time after which a consumer without credit asks what others have settled, in seconds.

It asks only if it has settled nothing itself in this time.
"""

_log = logging.getLogger("postroom.queues")


class Consumer:
    """One consumer of a queue.

    Args:
        sender, codec: the client's.
        queue: the name of the queue.
        selection: which messages it takes.
        credit: how many it may hold without having settled them.
        home: settles messages outside transactions.
    """

    def __init__(
        self,
        sender: Sender,
        codec: Packing,
        queue: str,
        selection: ClaimSelection,
        credit: int,
        home: SettlingCalls,
    ) -> None:
        self._sender = sender
        self._codec = codec
        self._queue = queue
        self._selection = selection
        self._home = home
        self._id = sender.next_id()
        self._intake = Intake(credit)
        self._freed = wake_up_for(sender)
        self._pause = PAUSE_SECONDS_FIRST
        self._said = LogOnce()

    async def next(self, patience: float | None = None) -> QueueMessage | None:
        """Return the next message, as soon as there is one.

        Args:
            patience: seconds to wait; 0: only what is ready now; ``None``: for ever.

        Returns:
            ``None`` if there was none in that time.

        Raises:
            Invalid, AccessDenied: the consumer cannot go on.
            Retryable: the store cannot be reached; only with ``patience``.
        """
        give_up = None if patience is None else self._sender.monotonic() + patience
        while True:
            message = self.at_hand()
            if message is not None:
                return message
            await self.give_back()
            if not await self._more(give_up):
                return None

    def at_hand(self) -> QueueMessage | None:
        """Return the next claimed message; ``None``: there is none to be handed out at once."""
        return self._intake.take(self._sender.monotonic())

    async def _more(self, give_up: float | None) -> bool:
        """Ask for more, or wait for credit; return false if the time is over."""
        now = self._sender.monotonic()
        left = None if give_up is None else max(give_up - now, 0.0)
        wanted = self._intake.wanted(now)
        if wanted:
            return await self._claim(wanted, left) or left is None
        if left == 0.0:
            return False
        frees_at = self._intake.frees_at()
        pause = LONGEST_PAUSE_SECONDS if frees_at is None else max(frees_at - now, 0.0)
        pause = pause if left is None else min(pause, left)
        if await self._freed.wait(min(pause, OWN_SECONDS)) or pause <= OWN_SECONDS:
            return True
        try:
            await self._ask_what_is_over(min(pause, LONGEST_PAUSE_SECONDS))
        except Retryable as error:
            if left is not None:
                raise
            await self._recover(error)
        return True

    async def _ask_what_is_over(self, patience: float) -> None:
        """Learn of messages in hand that other clients have settled; wait for the first one."""
        in_hand = self._intake.in_hand(IN_HAND_MAX)
        attempts = [message.attempt() for message in in_hand]
        if attempts:
            for index in await over(self._sender, self._queue, self._id, attempts, patience):
                self._intake.settled(in_hand[index])

    async def _claim(self, wanted: int, left: float | None) -> bool:
        """Claim messages; return whether there is something to hand out."""
        request = ClaimQueue(self._queue, self._id, wanted, self._selection, wait=left != 0.0)
        try:
            found = await claim(self._sender, request, left or None)
        except Retryable as error:
            if left is not None:
                raise
            await self._recover(error)
            return False
        self._pause = PAUSE_SECONDS_FIRST
        now = self._sender.monotonic()
        queue, codec, home = self._queue, self._codec, self._home
        messages = [QueueMessage(queue, each, codec, home, self, now) for each in found]
        lasts = [max(each.lasts / 1000, LEASE_SECONDS_MIN) for each in found]
        self._intake.claimed(messages, lasts, now)
        return bool(messages)

    async def _recover(self, error: Retryable) -> None:
        """Pause before the next request.

        Raises:
            Retryable: the store has stopped, and another request is useless.
        """
        if has_stopped(self._sender, error):
            raise error
        self._said.log(
            _log, "trouble", self._sender.monotonic(),
            "a consumer of queue %s tries again: %s", self._queue, str(error),
        )  # fmt: skip
        least = error.retry_after if isinstance(error, Unavailable) else 0.0
        await self._sender.sleep(max(least, self._pause * self._sender.random.uniform(0.5, 1.0)))
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def settled(self, message: AnyMessage) -> None:
        """Free the credit of a message."""
        self._intake.settled(message)
        self._freed.say()

    def extended(self, message: AnyMessage) -> None:
        """Note that the lease of a message was extended."""
        self._intake.extended(message, message.held_until)

    # --- giving back

    async def give_back(self) -> None:
        """Give back the messages that wait here, as if they had not been claimed.

        A message that cannot be given back comes back when its lease has passed.
        """
        await self._reject(self._returned())

    async def reject(
        self,
        message: QueueMessage,
        delay: float | None,
        reason: str,
        *,
        dead: bool,
        with_result: KeepResult | None = None,
    ) -> None:
        """Reject a message that was handed out. For layers on top, such as workers.

        Args:
            message: the message.
            delay, reason, dead: as for :meth:`.Queue.reject`.
            with_result: the request to keep its failure; ``None``: it is not kept.

        Raises:
            LeaseLost: its attempt has passed. Nothing was changed.
        """
        try:
            request = RejectMessages(self._queue, [message.attempt()], delay, dead, reason)
            writes = [request] if with_result is None else [with_result, request]
            await commit_together(self._sender, writes)
        finally:
            message.settled()

    async def give_back_at_once(self, message: QueueMessage) -> None:
        """Give back a message that was handed out and will not be worked on."""
        await self._reject(
            [RejectMessages(self._queue, [message.attempt()], delay=0.0, uncounted=True)]
        )
        message.settled()

    async def _reject(self, requests: list[RejectMessages]) -> None:
        for done, request in enumerate(requests):
            try:
                with suppress(Error):
                    await commit_one(self._sender, request.anchor(), request)
            except BaseException:  # no caller waits, but the rest has to be sent
                for each in requests[done:]:
                    post(self._sender, alone(self._sender, each.anchor(), each))
                raise

    def _returned(self) -> list[RejectMessages]:
        late = self._intake.take_back()
        return [
            RejectMessages(self._queue, together, delay=0.0, uncounted=True)
            for attempts in arguments.attempts(late)
            for together in in_ranges(self._sender, attempts, home_of_attempt)
        ]

    @property
    def waiting(self) -> int:
        """Return how many messages wait to be handed out."""
        return self._intake.waiting


class Received(Stream[QueueMessage]):
    """The messages of a consumer as a stream; those that wait here are handed out at once.

    Args:
        consumer: the consumer, which now belongs to the stream.
        timeout: the stream ends when no message has come for so many seconds; ``None``: never.
    """

    def __init__(self, consumer: Consumer, timeout: float | None = None) -> None:
        super().__init__(received(consumer, timeout))
        self._at_hand = consumer.at_hand

    async def __anext__(self) -> QueueMessage:
        if self._waiting is None and not self._closed:
            message = self._at_hand()
            if message is not None:
                return message
        return await super().__anext__()


async def received(
    consumer: Consumer, timeout: float | None = None
) -> AsyncGenerator[QueueMessage, None]:
    """Return the messages of a consumer, until none has come for ``timeout`` seconds.

    Messages that were not handed out are given back at the end.
    """
    try:
        while True:
            message = await consumer.next(timeout)
            if message is not None:
                yield message
            elif timeout is not None:
                return
    finally:
        await consumer.give_back()

"""The calls of a database about its queues, waiting and dead messages, and itself; for asyncio.

:class:`postroom.aio.Database` has these calls and those for the data of applications.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, Self

from postroom.client import arguments, values
from postroom.client.access import AccessCalls
from postroom.client.codec import Packing
from postroom.client.commits import commit_in_ranges, commit_one, repeat_one
from postroom.client.history import MessageTrace, traces_of
from postroom.client.pages import stored_letters, stored_schedule
from postroom.client.queues.messages import QueueInfo, info_of
from postroom.client.queues.queue import Queue
from postroom.client.sender import Sender
from postroom.client.values import DeadLetter, InboxInfo, Scheduled, Status
from postroom.errors import Invalid
from postroom.kv.clock import Timestamp
from postroom.limits import (
    ATTEMPTS_MAX_DEFAULT,
    POSITION_NAME_CHARACTERS_MAX,
    POSITION_SECONDS,
    POSITION_SECONDS_MAX,
)
from postroom.messaging.queues.definition_requests import (
    CreateQueue,
    QueueDefinition,
    QueueSettings,
)
from postroom.messaging.queues.queries import ReadQueues
from postroom.messaging.requests import (
    AwaitQuiet,
    CancelScheduled,
    DiscardDeadLetters,
    Inbox,
    ListInboxes,
    ReplayDeadLetters,
)
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges import settings
from postroom.ranges.lease_moves import MoveLease
from postroom.ranges.listing import ListRanges, RangeInfo
from postroom.ranges.protections import KeepPosition
from postroom.ranges.settings import ChangeSetting, ReadSettings, SettingValue
from postroom.ranges.split.requests import AwaitSplit, NewRangeId, PrepareSplit


class Administration:
    """An open store, as its operator sees it."""

    def __init__(
        self,
        sender: Sender,
        codec: Packing,
        status: Callable[[Sender], Awaitable[Status]],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self._sender = sender
        self.codec = codec
        self._status = status
        self._close = close

    @property
    def sender(self) -> Sender:
        """Return the sender that reaches the store, for layers on top, such as workers."""
        return self._sender

    # --- queues

    async def create_queue(  # noqa: PLR0913 - each argument is a setting
        self,
        name: str,
        *,
        ack_wait: float = 30.0,
        min_backoff: float | None = None,
        max_backoff: float | None = None,
        max_attempts: int | None = ATTEMPTS_MAX_DEFAULT,
        purge_after: float = 86400.0,
        archive: bool = False,
        batch_size: int = 10,
        cache_size: int = 10_000,
        poller_interval: float = 30.0,
        max_rate: float | None = None,
        max_concurrency: int | None = None,
        order: Literal["none", "group"] = "none",
        on_duplicate: Literal["ignore", "error", "replace"] = "ignore",
        dead_letter_queue: str | None = None,
        group_max_rate: float | None = None,
        group_max_concurrency: int | None = None,
    ) -> Queue:
        """Make a queue.

        If one of that name exists with the same settings, nothing happens; other settings are an
        error.

        Args:
            name: text, 256 bytes at most.
            ack_wait: seconds that a consumer may hold a message before it is fired again; doubled
                for each attempt, and varied by a tenth.
            min_backoff: the shortest wait before a message is fired again, in seconds.
            max_backoff: the longest one; ``None``: an hour.
            max_attempts: a message is dead after this many failed attempts (16 by default);
                ``None``: never.
            purge_after: seconds that an acknowledged message is kept; 0: it is deleted at once.
            archive: whether acknowledged messages are archived instead, and never purged.
            batch_size: how many messages one answer hands to a consumer at most.
            cache_size: how many messages are kept in memory.
            poller_interval: seconds after which the store looks for due messages even if no timer
                has rung.
            max_rate: messages a second; ``None``: any number.
            max_concurrency: how many all consumers together may hold at a time; ``None``: any
                number.
            order: ``"group"``: in a group one message at a time, in order; ``"none"``: by time and
                priority.
            on_duplicate: the effect of a message whose kind and id exist already: it is left out
                (``"ignore"``), its transaction fails (``"error"``), or it replaces one that was not
                fired yet (``"replace"``).
            dead_letter_queue: the queue that gets dead messages, instead of this queue's own dead
                letters.
            group_max_rate: messages a second of each group; ``None``: any number.
            group_max_concurrency: how many messages of each group may be held at a time; ``None``:
                any number.

        Returns:
            The queue.

        Raises:
            TypeError, Invalid: a setting is not valid, or differs from that of the existing queue.
                The error names it; nothing happened.
        """
        given = {each: value for each, value in locals().items() if each not in {"self", "name"}}
        queue = self.queue(name)
        request = CreateQueue(queue.name, QueueSettings(**arguments.settings(given)))
        await commit_one(self._sender, request.anchor(), request)
        return queue

    def queue(self, name: str) -> Queue:
        """Return the queue of that name.

        The store is not asked: if there is no such queue, the first call raises ``Invalid``.

        A plain call, also with asyncio: it is not awaited.

        Args:
            name: its name.
        """
        return Queue(self._sender, self.codec, name)

    async def queues(self, *, after: str = "", limit: int | None = None) -> list[QueueInfo]:
        """Return the queues with their settings, in the order of their names.

        Args:
            after: the queues behind this name, which may be that of no queue.
            limit: how many at most; ``None``: all.
        """
        most = 0 if limit is None else arguments.count(limit, "limit")
        request = ReadQueues("", arguments.queue_name(after) if after else "", most)
        found: list[QueueDefinition] = await self._sender.send(request)
        return [info_of(each) for each in found if not each.dropped]

    # --- waiting messages and updates

    async def inboxes(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int = 100,
        ready: bool = False,
        by_key: bool = False,
    ) -> list[InboxInfo]:
        """Return the keys in ``[start, end)`` with waiting messages, the oldest message first.

        The cost depends on the limit, except for the first such request of a minute: it looks at
        all inboxes. With ``by_key`` a request looks only at the keys that it returns.

        Args:
            start: first key.
            end: first key after the span; ``None``: no bound.
            limit: how many keys at most.
            ready: whether to leave out keys that are held up by a postponed message.
            by_key: whether to return them in the order of the keys. The next request begins after
                the last key.

        Raises:
            Invalid: the result is more than one answer holds, 10,000 keys or 16 MiB of them: ask
                for fewer, or for parts of the span.
        """
        start, end = arguments.span(start, end)
        found: list[Inbox] = await self._sender.send(
            ListInboxes(start, end, arguments.count(limit, "limit"), bool(ready), bool(by_key))
        )
        return [
            InboxInfo(each.key, each.messages, Timestamp(each.oldest), each.held_up)
            for each in found
        ]

    async def dead_letters(self, *, limit: int = 100) -> list[DeadLetter]:
        """Return up to ``limit`` dead letters, the oldest first.

        These are messages and updates that could not be delivered, carried out or processed.

        Args:
            limit: how many at most.

        Raises:
            WrongType: the codec cannot unpack one of the messages.
        """
        found = await stored_letters(self._sender, arguments.count(limit, "limit"))
        return [values.dead_letter(each, self.codec) for each in found]

    async def replay(self, dead_letter_ids: Iterable[str]) -> int:
        """Try dead letters again; return how many there were.

        Args:
            dead_letter_ids: those of :meth:`dead_letters`.

        Raises:
            ValueError: an id is not valid.
            Unavailable, CommitUnknown: see ``put``.
        """
        ids = values.dead_letter_ids(dead_letter_ids)
        return await commit_in_ranges(self._sender, ReplayDeadLetters, ids)

    async def discard(self, dead_letter_ids: Iterable[str]) -> int:
        """Give dead letters up for good; return how many there were.

        Args:
            dead_letter_ids: those of :meth:`dead_letters`.

        Raises:
            ValueError: an id is not valid.
            Unavailable, CommitUnknown: see ``put``.
        """
        ids = values.dead_letter_ids(dead_letter_ids)
        return await commit_in_ranges(self._sender, DiscardDeadLetters, ids)

    async def scheduled(
        self, start: bytes = b"", end: bytes | None = None, *, limit: int = 100
    ) -> list[Scheduled]:
        """Return the messages and updates for keys in ``[start, end)`` that wait for their time.

        Postponed messages are included.

        Args:
            start: first key.
            end: first key after the span; ``None``: no bound.
            limit: how many at most; those that are due first come first.

        Raises:
            WrongType: the codec cannot unpack one of the messages.
        """
        start, end = arguments.span(start, end)
        most = arguments.count(limit, "limit")
        found = await stored_schedule(self._sender, start, end, most)
        return [values.scheduled(each, self.codec) for each in found]

    async def cancel(self, ids: Iterable[str]) -> int:
        """Cancel messages and updates that wait for their time.

        Args:
            ids: those of :meth:`scheduled`.

        Returns:
            How many were cancelled. Those that were delivered, carried out or cancelled before do
            not count. Each of them is either cancelled or takes place.

        Raises:
            ValueError: an id is not valid.
            Unavailable, CommitUnknown: see ``put``.
        """
        found = values.scheduled_ids(ids)
        return await commit_in_ranges(self._sender, CancelScheduled, found)

    async def drain(self, timeout: float = 30.0) -> None:
        """Wait until every outbox entry that is due has been delivered or carried out.

        Args:
            timeout: seconds.

        Raises:
            TimeoutError: some entries were still due after that time, or no node could tell. The
                error names the ranges.
        """
        seconds = arguments.number(timeout, "timeout")
        end = self._sender.monotonic() + seconds
        try:
            await self._sender.send(AwaitQuiet(), seconds)
            # An update that has left one range may wait in another one.
            await self._sender.send(AwaitQuiet(), max(end - self._sender.monotonic(), 0.0))
        except DeadlineExceeded as error:
            asked = str(error) or "the store"
            raise TimeoutError(
                f"outbox entries of {asked} were still due after {timeout:g} s, or no node could "
                "tell"
            ) from None

    async def trace(
        self,
        id: str | bytes,  # noqa: A002 - the id of a message is called id everywhere
        *,
        key: bytes | None = None,
        queue: str | None = None,
    ) -> list[MessageTrace]:
        """Return the time lines of the messages with an id; empty: the store knows none.

        The id of a message of an inbox is unique; queues may have several messages of one id. With
        the key of its inbox a message is found faster, and longer after it was consumed.

        Args:
            id: the id of a message, of something scheduled, or of a dead letter.
            key: the key of its inbox.
            queue: look in this queue only.

        Raises:
            Invalid: the id is too long; or there is no such queue.
        """
        of_key = None if key is None else arguments.key(key)
        return await traces_of(self._sender, id, of_key, queue)

    # --- readers that come back later

    async def keep_position(self, name: str, at: int, *, seconds: float = POSITION_SECONDS) -> None:
        """Keep all changes after ``at`` readable, for a reader that comes back later.

        The reader can go on with ``watch(after=at)``, whatever was restarted meanwhile. Garbage
        collection does not pass the oldest position, so forget a position that is not needed any
        more.

        Args:
            name: the name of the reader, 128 characters at most. It has one position: the last that
                was kept.
            at: a timestamp from :meth:`now`, a change or a commit.
            seconds: how long, a week at most, from when this position was kept first.

        Raises:
            SnapshotTooOld: something after ``at`` is collected already. The position before stays.
            Invalid: there are 1,000 positions already; or ``at`` lies in the future.
            Unavailable, CommitUnknown: it could not be done for a minute.
        """
        timestamp = arguments.timestamp(at)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"seconds is a number, not {type(seconds).__name__}")
        if not 0 < seconds <= POSITION_SECONDS_MAX:
            raise Invalid(
                f"a position is kept for {POSITION_SECONDS_MAX:g} seconds (a week) at most, not "
                f"{seconds:g}; nothing was changed: keep it anew before its time is over"
            )
        request = KeepPosition(_position_name(name), timestamp, float(seconds))
        await repeat_one(self._sender, request)

    async def forget_position(self, name: str) -> bool:
        """Forget the position of a reader that will not come back; return whether it had one.

        Args:
            name: the name of the reader.

        Raises:
            Unavailable, CommitUnknown: it could not be done for a minute.
        """
        return bool(await repeat_one(self._sender, KeepPosition(_position_name(name), 0, 0.0)))

    # --- the store itself

    @property
    def access(self) -> AccessCalls:
        """Return the calls that grant and revoke rights of clients, and read the audit log.

        For layers on top.
        """
        return AccessCalls(self._sender)

    async def ranges(self, start: bytes = b"", end: bytes | None = None) -> list[RangeInfo]:
        """Return the ranges that contain a part of ``[start, end)``, in the order of their keys.

        Args:
            start: first key.
            end: first key after the span; ``None``: no bound.
        """
        ranges: list[RangeInfo] = await self._sender.send(ListRanges(*arguments.span(start, end)))
        return ranges

    async def move_lease(self, range_id: int, node_id: int) -> RangeInfo:
        """Have a node lead a range; return the range, once the node does.

        The lease stays there for a minute at least, while the node can lead.

        Args:
            range_id: the id of the range.
            node_id: the id of the node, which has a copy of the range.

        Raises:
            Invalid: there is no such range, or the node has no copy of it.
            Unavailable: the node does not answer, or lags behind. The lease stays where it is.
            AccessDenied: this client is no administrator.
        """
        range_id = arguments.count(range_id, "range_id")
        node_id = arguments.count(node_id, "node_id")
        moved: RangeInfo = await self._sender.send(MoveLease(range_id, node_id))
        return moved

    async def configure_ranges(self, *, split_bytes: int | None = None) -> int:
        """Change the settings of all ranges, for layers on top.

        Args:
            split_bytes: a range that holds more bytes is split; 0: never; ``None``: as before.

        Returns:
            The bytes from which ranges are split; 0: they are not.

        Raises:
            Invalid: fewer than 1 MiB.
            Unavailable, CommitUnknown: see ``put``.
            AccessDenied: this client is no administrator.
        """
        if split_bytes is not None:
            arguments.count(split_bytes, "split_bytes", 0)
            return int((await self.change_setting(settings.SPLIT_BYTES, split_bytes)).value)
        found = {each.name: each for each in await self.settings()}
        return int(found[settings.SPLIT_BYTES].value)

    async def settings(self) -> list[SettingValue]:
        """Return the settings that change while the store runs, for layers on top.

        Raises:
            Unavailable: see ``get``.
            AccessDenied: this client is no administrator.
        """
        found: list[SettingValue] = await self._sender.send(ReadSettings())
        return found

    async def change_setting(self, name: str, value: float | None) -> SettingValue:
        """Change a setting on all nodes within seconds, for layers on top; return it.

        Args:
            name: the name, as ``postroom settings list`` shows it.
            value: bytes or seconds; infinite seconds turn ``slow`` off; ``None``: as the nodes were
                started.

        Raises:
            Invalid: there is no such setting, or the value is out of its range.
            Unavailable, CommitUnknown: see ``put``.
            AccessDenied: this client is no administrator.
        """
        if value is not None:
            arguments.number(value, "value")
        settings.check(name, value)
        changed: SettingValue = await self._sender.send(ChangeSetting(name, value))
        return changed

    async def split(self, key: bytes) -> RangeInfo:
        """Split a range in two, and wait for it; return the range that begins at ``key`` then.

        No values are copied, and the store serves meanwhile. If the range has a million messages
        of queues that are not done, this may take a minute.

        Args:
            key: the first key of the new range.

        Raises:
            Invalid: a range begins there already, or the range cannot be split: an image is being
                restored into it.
            Unavailable: another split of the range is under way; or a node runs an older version.
        """
        key = arguments.key(key)
        range_id: int = await self._sender.send(NewRangeId())
        await self._sender.send(PrepareSplit(key, range_id))
        made: RangeInfo = await self._sender.send(AwaitSplit(key))
        return made

    async def status(self) -> Status:
        """Return the status of the store: sums over all messages, the leader, and the services."""
        return await self._status(self._sender)

    async def close(self) -> None:
        """Wait for calls under way, then close the store.

        Any further call but this raises ``DatabaseClosed``; another ``close`` does nothing.
        """
        await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _position_name(name: Any) -> str:
    """Return the name of a position, which is text that can be stored."""
    return arguments.name(name, "the name of a position", POSITION_NAME_CHARACTERS_MAX)

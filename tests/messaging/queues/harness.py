"""A store whose queues are driven by requests alone, and whose clock is moved by hand."""

from __future__ import annotations

import itertools
from typing import Any, Final

import msgspec

from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.messaging.queues.claim_requests import (
    Claimed,
    ClaimQueue,
    ClaimSelection,
    StoredQueueMessage,
)
from postroom.messaging.queues.definition_requests import (
    CreateQueue,
    DropQueue,
    QueueSettings,
    UpdateQueue,
)
from postroom.messaging.queues.maintenance import LearnDefinitions
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.queries import (
    ListQueueMessages,
    QueueStats,
    ReadQueueMessage,
    ReadQueues,
    ReadQueueStats,
)
from postroom.messaging.queues.range_queues import RangeQueues
from postroom.messaging.queues.requests import (
    Acknowledge,
    Attempt,
    CancelMessages,
    EnqueueInQueue,
    Extend,
    RejectMessages,
    ReplayMessages,
    Reschedule,
    WhenDone,
)
from postroom.ranges.requests import Committed, CommitTransaction
from postroom.server.node import Node
from tests.client.hand_driver import Running
from tests.client.stores import Store

ANY: Final = ClaimSelection()
Q: Final = "emails"


_UNSTABLE: Final = (
    "lateness_p50", "lateness_p99", "oldest", "oldest_age", "consumers", "retried", "failures",
    "trouble", "longest_held",
)  # fmt: skip


class Queues:
    """A store, and who asks it.

    Attributes:
        store: has the clock and the engine.
        anchor: the anchor of transactions.
    """

    def __init__(self, **options: Any) -> None:
        self.store = Store(**options)
        self.anchor = b"anchor"
        self._numbers = itertools.count(1)

    def consumer(self, number: int, client: bytes | None = None) -> bytes:
        """Return the id of a consumer of a client; of the store's own, if none is given."""
        own = client or self.store.driver.next_id()[:8]
        return own + number.to_bytes(8, "big")

    # --- asking

    def send(self, request: Any) -> Any:
        """Send a request, and wait for the answer."""

        async def ask() -> Any:
            return await self.store.driver.send(request)

        return self.store.driver.run(ask())

    def start(self, request: Any) -> Running[Any]:
        """Send a request, and do not wait."""

        async def ask() -> Any:
            return await self.store.driver.send(request)

        return self.store.driver.start(ask())

    def transaction(self, *writes: Any) -> CommitTransaction[Any]:
        """Make a transaction that only writes."""
        driver = self.store.driver
        now: Any = driver.now()
        return CommitTransaction(driver.next_id(), now, 60.0, 0, self.anchor, [], [], list(writes))

    def commit(self, *writes: Any) -> list[Any]:
        """Commit; return what each write answered."""
        committed: Committed = self.send(self.transaction(*writes))
        return committed.answers or [None] * len(writes)

    def create(self, name: str = Q, **settings: Any) -> None:
        self.commit(CreateQueue(name, QueueSettings(**settings)))

    def update(self, name: str = Q, *, paused: bool | None = None, **settings: Any) -> None:
        self.commit(UpdateQueue(name, settings, paused))

    def drop(self, name: str = Q) -> None:
        self.commit(DropQueue(name))

    # --- messages

    def message(self, payload: bytes = b"", name: str = Q, **options: Any) -> EnqueueInQueue:
        id_ = options.pop("id", None)
        seconds = options.pop("after", 0)
        if seconds:
            options["due"] = self.now() + from_seconds(seconds)
        is_unique = id_ is None
        id_ = id_ or b"made up %d" % next(self._numbers)
        key = options.pop("key", id_)
        kind = options.pop("kind", "")
        return EnqueueInQueue(name, key, kind, id_, payload, is_unique=is_unique, **options)

    def enqueue(self, *payloads: bytes, name: str = Q, **options: Any) -> list[Any]:
        return self.commit(*(self.message(payload, name, **options) for payload in payloads))

    def claim_request(self, messages_max: int = 1, **options: Any) -> ClaimQueue:
        name = options.pop("name", Q)
        consumer = options.pop("consumer", None) or self.consumer(1)
        selection = options.pop("selection", ANY)
        return ClaimQueue(name, consumer, messages_max, selection, **options)

    def claim(self, messages_max: int = 1, **options: Any) -> list[StoredQueueMessage]:
        claimed: Claimed = self.send(self.claim_request(messages_max, **options))
        return claimed.messages

    def payloads(self, messages_max: int = 100, **options: Any) -> list[bytes]:
        return [each.payload for each in self.claim(messages_max, **options)]

    def acknowledge(self, *messages: StoredQueueMessage, name: str = Q) -> Any:
        return self.commit(Acknowledge(name, [attempt(each) for each in messages]))[0]

    def acknowledge_id(self, *ids: bytes, kind: str = "") -> Any:
        return self.commit(Acknowledge(Q, [by_id(id_, kind) for id_ in ids]))[0]

    def reject(self, *messages: StoredQueueMessage, **options: Any) -> Any:
        return self.commit(RejectMessages(Q, [attempt(each) for each in messages], **options))[0]

    def extend(self, message: StoredQueueMessage, seconds: float) -> Any:
        return self.commit(Extend(Q, [attempt(message)], seconds))[0]

    def reschedule(self, *ids: bytes, **options: Any) -> Any:
        return self.commit(Reschedule(Q, [by_id(id_) for id_ in ids], **options))[0]

    def cancel(self, *ids: bytes) -> Any:
        return self.commit(CancelMessages(Q, [by_id(id_) for id_ in ids]))[0]

    def replay(self, *ids: bytes) -> Any:
        return self.commit(ReplayMessages(Q, [by_id(id_) for id_ in ids]))[0]

    def when_done(self, group: str, message: EnqueueInQueue) -> None:
        self.commit(WhenDone(Q, group, message))

    # --- looking

    def get(self, id_: bytes, name: str = Q, kind: str | None = None) -> list[StoredQueueMessage]:
        found: list[StoredQueueMessage] = self.send(ReadQueueMessage(name, id_, kind))
        return found

    def list(self, state: str = "", name: str = Q, **options: Any) -> list[StoredQueueMessage]:
        """List all pages of messages."""
        messages: list[StoredQueueMessage] = []
        after = b""
        while True:
            page = self.send(ListQueueMessages(name, state, after, **options))
            messages += page.messages
            after = page.next
            if not after:
                return messages

    def stats(self, name: str = Q) -> QueueStats:
        stats: QueueStats = self.send(ReadQueueStats(name))
        return stats

    def counts(self, name: str = Q) -> dict[str, int]:
        """Return the counters that are not zero."""
        counted = msgspec.structs.asdict(self.stats(name))
        for unstable in _UNSTABLE:
            del counted[unstable]
        return {counter: number for counter, number in counted.items() if number}

    def names(self) -> list[str]:
        return [each.name for each in self.send(ReadQueues())]

    def now(self) -> int:
        now: Any = self.store.driver.now()
        return int(now)

    # --- inside

    @property
    def range_queues(self) -> RangeQueues:
        return queues_of(self.store.driver.node)

    def manager(self, name: str = Q) -> Manager:
        return self.range_queues._by_name[name]

    def stored(self) -> dict[bytes, bytes]:
        """Return the stored records of queues, but for definitions and numbers."""
        content = dict(self.store.driver.node.engine.iterate(b"\x03", b"\x07"))
        return {key: value for key, value in content.items() if is_of_a_queue(key)}

    def pass_time(self, seconds: float) -> None:
        self.store.driver.advance(seconds)


def queues_of(node: Node) -> RangeQueues:
    """Return the queues of a node's range."""
    commands = node.root.replica.registry.commands
    learn: Any = commands[LearnDefinitions]
    queues: RangeQueues = learn.__self__
    return queues


def is_of_a_queue(key: bytes) -> bool:
    """Return whether an engine key belongs to the messages of a queue."""
    if key[:1] == keys.RANGE:
        return key[9:10] == keys.QUEUES and key[10:14] != keys.u32(0)
    if key[:1] != keys.DATA:
        return False
    end = key.index(keys.END_OF_KEY, 1) + 2
    return key[end : end + 1] in {keys.QUEUE_BODY, keys.QUEUE_STATE, keys.QUEUE_POINTER}


def attempt(message: StoredQueueMessage) -> Attempt:
    """Return the attempt by which a message was claimed."""
    return Attempt(*message.locator, message.epoch)


def by_id(id_: bytes, kind: str = "") -> Attempt:
    """Return the attempt that names a message by its id, whoever holds it."""
    return Attempt(b"", kind, id_, -1, by_id=True)

"""Jobs: messages of queues, worked off by consumers that fail in every way.

Producers note what they enqueue, in the same transaction; a consumer notes what it has done in the
transaction that acknowledges it, under a name of its own. At the end each job that was sent is done
once, or is still in its queue. (Jepsen's ``tests/kafka.clj`` is the model: it tells, case by case,
what may be seen of a queue.)

While it runs:

* No attempt (message and epoch) is handed out twice, but for what was given back uncounted.
* Nothing is fired before its time, whatever the clocks do.
* A lease that ran out had its time, as the monotonic clock tells (of a store that was not opened
  anew meanwhile: then its consumers have gone).
* A consumer that lost a lease is told so, and has changed nothing.
* In an ordered queue all that were sent before, to the same group, are done when one is fired.

The content of the disk is checked besides (``checkers.check_queues``): counters, limits, places.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from postroom.client.database import CoreDatabase
from postroom.client.queues.claims import claim
from postroom.errors import LeaseLost, Unavailable
from postroom.kv.clock import from_seconds
from postroom.messaging.queues.advance import TIME_IS_OVER
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection, StoredQueueMessage
from postroom.messaging.queues.definition_requests import CreateQueue, QueueSettings
from postroom.messaging.queues.queries import ListQueueMessages
from postroom.messaging.queues.requests import (
    Acknowledge,
    Attempt,
    EnqueueInQueue,
    Extend,
    RejectMessages,
)
from postroom.ranges.checks import unpacked
from postroom.ranges.requests import Committed, CommitTransaction, Put
from tests.sim.sender import LocalProcess
from tests.sim.workloads.workload import Client, pairs

PLAIN: Final = "jobs"
LANES: Final = "lanes"
ACK_WAIT: Final = 0.4
GROUPS: Final = 3
PRODUCERS: Final = 2
KINDS: Final = ("a", "b")
TRIES: Final = 40
LATE_SECONDS: Final = 5 * ACK_WAIT
"""The delay of a late producer: another attempt may be under way."""

Schedules: TypeAlias = dict[str, dict[bytes, int]]


class Jobs:
    """A workload of queues."""

    clients = 6
    queues: Sequence[str] = (PLAIN, PLAIN, LANES)
    """The queues from which producers choose."""
    max_concurrency: int | None = 5
    """The number of messages of the plain queue that may be held at a time."""

    def __init__(self) -> None:
        self._claimed: set[tuple[str, bytes, int]] = set()
        self._given_back: set[tuple[str, bytes, int]] = set()
        self._asked_at: dict[tuple[str, bytes, int], float] = {}
        self._sent: Schedules = defaultdict(dict)
        """The jobs of answered commits by group of the ordered queue, with first schedules."""
        self._ended: set[bytes] = set()

    async def setup(self, db: CoreDatabase) -> None:
        """Create two queues."""
        plain = QueueSettings(
            ack_wait=ACK_WAIT, max_backoff=1.0, max_attempts=None, purge_after=0.5,
            max_concurrency=self.max_concurrency, cache_size=8,
        )  # fmt: skip
        lanes = QueueSettings(
            ack_wait=ACK_WAIT, max_backoff=0.5, max_attempts=None, order="group", cache_size=8
        )
        await commit(db, CreateQueue(PLAIN, plain), CreateQueue(LANES, lanes))

    async def start(self, client: Client) -> None:
        """Enqueue with the first clients, work with the others."""
        while client.goes_on():
            if client.number < PRODUCERS:
                await client.attempt(self._produce(client))
                await client.pause(0.1)
            else:
                await client.attempt(self._work(client))
            await client.pause()

    # --- producers

    async def _produce(self, client: Client) -> None:
        choose = client.random.choice
        jobs, writes = [], list[Any]()
        for number in range(client.random.randint(1, 4)):
            name = b"%s-%d" % (client.token(), number)
            delay = choose([0, 0, 0.003, 0.3])
            due = await client.db.now() + from_seconds(delay) if delay else 0
            queue = choose(self.queues)
            group = str(client.random.randrange(GROUPS)) if queue == LANES else ""
            key = choose([name, b"key/%d" % client.random.randrange(3)])
            request = EnqueueInQueue(
                queue, key, choose(KINDS), name, name, {"due": due}, 0, due, group
            )
            writes += [*self._enqueued(client, request), Put(b"job sent/" + name, queue.encode())]
            jobs.append((queue, group, name, due))
        committed = await self._commit(client, *writes)
        for queue, group, name, due in jobs:
            if queue == LANES:
                self._sent[group][name] = max(due, committed.timestamp)

    def _enqueued(self, client: Client, request: EnqueueInQueue) -> list[Any]:
        """Return the writes that enqueue a message."""
        del client
        return [request]

    async def _commit(self, client: Client, *writes: Any) -> Committed:
        """Commit the writes of a client."""
        return await commit(client.db, *writes)

    # --- workers

    async def _work(self, client: Client) -> None:
        choose = client.random.choice
        queue = choose([PLAIN, LANES])
        sender = client.db._sender
        consumer = sender.next_id()[:8] + client.life.to_bytes(8, "big")
        kinds = choose([None, None, KINDS[:1], KINDS[1:]])
        known = await self._known(client) if queue == LANES else {}
        wait = choose([True, False])
        request = ClaimQueue(
            queue, consumer, choose([1, 2, 5]), ClaimSelection(kinds=kinds), wait,
            choose([1 << 30, 10]),
        )  # fmt: skip
        asked_at = sender.monotonic()
        claimed = await claim(sender, request, choose([0.05, 0.5]))
        for message in claimed:
            self._check_claimed(client, queue, message, asked_at)
            if kinds is not None:
                assert message.kind in kinds, f"{message} came to who takes {kinds}"
        for message in claimed:
            if queue == LANES:
                await self._check_order(client, message, known)
            why = await self._settle(client, queue, message)
            held = sender.monotonic() - asked_at
            is_early = held < ACK_WAIT and isinstance(sender, LocalProcess)
            assert not (is_early and TIME_IS_OVER in why), f"after {held} s: {why}"

    async def _known(self, client: Client) -> Schedules:
        """Return the jobs of the ordered queue that were sent, by group, with first schedules."""
        del client
        return {group: dict(jobs) for group, jobs in self._sent.items()}

    def _check_claimed(
        self, client: Client, queue: str, message: StoredQueueMessage, asked_at: float
    ) -> None:
        attempt = (queue, message.payload, message.epoch)
        assert attempt not in self._claimed or attempt in self._given_back, f"{attempt} came twice"
        self._given_back.discard(attempt)
        self._claimed.add(attempt)
        assert message.payload not in self._ended, f"{attempt} came though it was acknowledged"
        assert message.scheduled <= message.fired_at, f"{attempt} came before its time"
        headers = unpacked(message.headers)
        assert headers is not None
        if not message.epoch:
            assert message.scheduled >= headers["due"], f"{attempt} came too early"
        self._asked_at[attempt] = asked_at
        before = self._asked_at.get((queue, message.payload, message.epoch - 1))
        in_process = isinstance(client.db._sender, LocalProcess)
        if before is not None and in_process and message.last_error == TIME_IS_OVER:
            held = client.db._sender.monotonic() - before
            assert held >= ACK_WAIT, f"{attempt} came again after {held} s"

    async def _check_order(
        self, client: Client, message: StoredQueueMessage, known: Schedules
    ) -> None:
        """Check that earlier messages of the group are done.

        They were committed before the claim was sent, and due before.
        """
        for job, first in known.get(message.group, {}).items():
            if first < message.first_scheduled:
                done = await pairs(client.db, b"job done/" + job + b"/")
                assert done, f"{message} overtook {job!r} in the group {message.group}"

    async def _settle(self, client: Client, queue: str, message: StoredQueueMessage) -> str:
        """Do the work, or fail at it; return why the lease was lost, if it was."""
        try:
            await self._try_to_settle(client, queue, message)
        except LeaseLost as error:
            return str(error)
        return ""

    async def _try_to_settle(self, client: Client, queue: str, message: StoredQueueMessage) -> None:
        what = client.random.choice(
            ["done"] * 6 + ["reject", "back", "late", "late", "late", "forget", "longer"]
        )
        named = await self._named(client, queue, message)
        mark, of = b"%s/%s" % (message.payload, client.token()), queue.encode()
        done = Put(b"job done/" + mark, of), Acknowledge(queue, named)
        if what == "reject":
            delay = client.random.choice([None, 0.0, 0.1])
            rejected = RejectMessages(queue, named, delay, reason="no")
            await self._commit(client, Put(b"job rejected/" + mark, of), rejected)
        elif what == "back":
            self._given_back.add((queue, message.payload, message.epoch))
            await self._commit(client, RejectMessages(queue, named, uncounted=True))
        elif what != "forget":
            if what == "longer":
                await self._commit(client, Extend(queue, named, 1.0))
            await client.pause(LATE_SECONDS if what in {"late", "longer"} else 0.01)
            is_over = (queue, message.payload, message.epoch + 1) in self._claimed
            await self._commit(client, *done)
            assert not is_over, f"{message} was ended by an attempt that was over"
            self._ended.add(message.payload)

    async def _named(
        self, client: Client, queue: str, message: StoredQueueMessage
    ) -> list[Attempt]:
        """Return the attempt of a message."""
        del client, queue
        return [Attempt(*message.locator, message.epoch)]

    async def check(self, db: CoreDatabase) -> None:
        """Check that each sent message is done once, or is still there."""
        left = [
            message.payload
            for queue in dict.fromkeys(self.queues)
            for state in ("", "dead")
            for message in await listed(db, queue, state)
        ]
        sent = [key.removeprefix(b"job sent/") for key, _ in await pairs(db, b"job sent/")]
        done = [key.split(b"/")[1] for key, _ in await pairs(db, b"job done/")]
        assert sorted(done + left) == sorted(sent), f"sent: {sent}, done: {done}, left: {left}"
        assert self._ended <= set(done), "what was acknowledged is not done"
        for queue in dict.fromkeys(self.queues):
            await self._check_counters(db, queue)

    async def _check_counters(self, db: CoreDatabase, queue: str) -> None:
        """Check that the queue has counted what was sent, done and rejected."""
        stats = await db.queue(queue).stats()
        counted = [stats.enqueued, stats.acknowledged, stats.rejected]
        found = [
            sum(value == queue.encode() for _, value in await pairs(db, prefix))
            for prefix in (b"job sent/", b"job done/", b"job rejected/")
        ]
        assert counted == found, f"{found} of {queue} were sent, done and rejected: {stats}"


async def commit(db: CoreDatabase, *writes: Any, anchor: bytes = b"jobs") -> Committed:
    """Commit, and try again while nothing has happened."""
    sender = db._sender
    for _ in range(TRIES):
        try:
            id_, began = sender.next_id(), int(await db.now())
            request = CommitTransaction(id_, began, 60.0, 0, anchor, [], [], list(writes))
            committed: Committed = await sender.send(request)
        except Unavailable as error:
            await sender.sleep(max(error.retry_after, 0.01))
        else:
            return committed
    raise Unavailable("nobody has answered for long")


async def listed(db: CoreDatabase, queue: str, state: str) -> list[StoredQueueMessage]:
    """Return the messages of a queue in a state; ``""``: the live ones."""
    found: list[StoredQueueMessage] = []
    after = b""
    while True:
        page = await db._sender.send(ListQueueMessages(queue, state, after, messages_max=50))
        found += page.messages
        after = page.next
        if not after:
            return found

"""Copies of stores: read as an image, restored into another one; and what can be seen of one."""

from __future__ import annotations

import uuid
from importlib.util import find_spec
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import postroom
from postroom.client.sync import CoreDatabase
from postroom.kv import keys
from postroom.messaging import image_entries as entries
from tests.client.stores import Store

IMAGE = b"image"


def read(db: CoreDatabase) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Return the image of now: its timestamp, and all entries, in order."""
    with db.hold(whole=True) as at:
        found = [
            (each.name, each.stored)
            for table in ("range_image", "image")
            for page in db.bulk.records(table, at=at)
            for each in page
        ]
        counted = db.images.check(at=at)
    assert not counted.wrong
    assert sum(counted.tables.values()) == len(found)
    return int(at), found


def restore(
    db: CoreDatabase, at: int, found: list[tuple[bytes, bytes]], chunk: int = 100, parts: int = 3
) -> None:
    """Restore an image, in a few parts, and open the store."""
    begun = db.images.begin(uuid.uuid4().bytes, IMAGE, at)
    assert begun is not None
    there = db.images.read().parts
    size = len(found) // parts + 1
    for part in range(parts):
        if part in there:
            continue
        mine = found[part * size : (part + 1) * size]
        for first in range(0, len(mine), chunk):
            names, stored = zip(*mine[first : first + chunk], strict=True)
            begun.send(list(names), list(stored))
        begun.end_part(part, len(mine))
    counted = db.images.check()
    assert not counted.wrong
    assert sum(counted.tables.values()) == len(found)
    begun.end(parts, len(found))


def shown(store: Store) -> dict[bytes, bytes]:
    """Return all stored entries that belong to an image."""
    return {
        place: entry[1]
        for place, stored in store.dump().items()
        if place[:1] >= keys.RANGE and (entry := entries.shown(place, stored)) is not None
    }


def seen(db: CoreDatabase, queues: list[str]) -> dict[str, Any]:
    """Return what can be read of a store."""
    found: dict[str, Any] = {"data": list(db.scan())}
    found["inboxes"] = sorted(db.inboxes(limit=1000))
    found["messages"] = [
        (info.key, [_message(each) for each in db.peek(info.key, 1000)])
        for info in found["inboxes"]
    ]
    found["scheduled"] = db.scheduled(limit=1000)
    found["letters"] = db.dead_letters(limit=1000)
    found["sums"] = [db.accounting(prefix) for prefix in (b"sales", b"sales/eu")]
    found["queues"] = db.queues()
    for name in queues:
        queue = db.queue(name)
        for state in ("scheduled", "ready", "leased", "done", "archived", "dead"):
            found[f"{name} {state}"] = [_queue_fields(each) for each in queue.messages(state, 1000)]
        found[f"{name} schedules"] = queue.schedules()
        stats = queue.stats()
        names = ("enqueued", "fired", "retried", "acknowledged", "rejected", "expired", "dead")
        found[f"{name} stats"] = [getattr(stats, each) for each in names]
    return found


def _message(each: postroom.Message) -> tuple[Any, ...]:
    return (
        each.id, each.value, each.headers, each.sent_at, each.delivered_at, each.attempts,
        each.last_error,
    )  # fmt: skip


def _queue_fields(each: Any) -> tuple[Any, ...]:
    return (
        each.id, each.kind, each.key, each.payload, each.headers, each.priority, each.group,
        each.created_at, each.first_scheduled, each.scheduled, each.epoch, each.leased_until,
        each.last_error, each.state, each.done_at,
    )  # fmt: skip


class Workload:
    """A workload that does a little of everything, by a seed."""

    QUEUES = ("mail", "jobs", "graves")

    def __init__(
        self,
        db: CoreDatabase,
        seed: int,
        delays: tuple[float | None, ...] = (None, None, 5.0, 3600.0),
    ) -> None:
        self._db = db
        self._delays = delays
        self._random = Random(seed)
        self._number = 0
        db.create_queue("graves")
        db.create_queue("mail", max_attempts=2, archive=True, ack_wait=20)
        db.create_queue("jobs", order="group", dead_letter_queue="graves", max_attempts=2)
        if find_spec("cronsim"):
            db.queue("mail").schedule("hourly", cron="0 * * * *", payload=b"tick")
        self._acts = (
            self._put, self._send, self._defer, self._reap, self._try_in_vain, self._enqueue,
            self._enqueue, self._consume, self._delete, self._count,
        )  # fmt: skip

    def step(self) -> None:
        """Carry out one more act."""
        self._number += 1
        self._random.choice(self._acts)()

    def _key(self) -> bytes:
        return self._random.choice([b"a", b"b\x00c", b"c/\xff", b"d" * 40, b""])

    def _delay(self) -> float | None:
        return self._random.choice(self._delays)

    def _value(self) -> bytes:
        return b"%d" % self._number * self._random.choice([1, 1, 50])

    def _put(self) -> None:
        self._db.put(self._key(), self._value())

    def _delete(self) -> None:
        self._db.delete(self._key())

    def _count(self) -> None:
        self._db.increment(b"count/%d" % self._random.randrange(3), self._number)

    def _send(self) -> None:
        with self._db.begin() as tx:
            for _ in range(self._random.randrange(1, 4)):
                headers = self._random.choice([None, {"n": self._number, "b": b"\x00"}])
                deliver_at = self._delay()
                tx.enqueue_message(
                    self._key(), self._value(), headers=headers, deliver_at=deliver_at
                )

    def _defer(self) -> None:
        update = self._random.choice(
            [
                postroom.Put(b"deferred", self._value()),
                postroom.Increment(b"a"),  # perhaps no integer: a dead letter
                postroom.Accounting(b"sales/eu/berlin", {"orders": 1, "cents": self._number}),
            ]
        )
        with self._db.begin() as tx:
            tx.enqueue_update(update, execute_at=self._delay())

    def _reap(self) -> None:
        with self._db.begin() as tx:
            tx.reap_queue(self._key(), 2)

    def _try_in_vain(self) -> None:
        with self._db.begin() as tx:
            reaped = tx.reap_queue(self._key(), 1)
            if not reaped:
                return
            if self._random.random() < 0.3:
                tx.bury(list(reaped), "no")
            else:
                hold = self._random.random() < 0.5
                tx.postpone(list(reaped), delay=600, reason="not yet", hold=hold)

    def _enqueue(self) -> None:
        name = self._random.choice(["mail", "jobs"])
        group = self._random.choice(["", "g", "h"])
        with self._db.begin() as tx:
            tx.enqueue(
                name, self._value(), id=f"{self._random.randrange(30)}",
                kind=self._random.choice(["", "k"]),
                key=self._random.choice([None, b"a", b"elsewhere"]),
                deliver_at=self._delay(), priority=self._random.choice([0, -5, 100]), group=group,
                headers=self._random.choice([None, {"h": 1}]),
            )  # fmt: skip
            if group and self._random.random() < 0.3:
                after = postroom.Enqueue("graves", b"after", id=f"after {self._number}")
                tx.when_done(name, group, enqueue=after)

    def _consume(self) -> None:
        queue = self._db.queue(self._random.choice(["mail", "jobs"]))
        for message in queue.claim(3):
            act = self._random.randrange(4)
            if act < 2:
                message.acknowledge()
            elif act == 2:
                message.reject(self._random.choice([0, 300]), reason="no")
            else:
                message.reject(dead=True, reason="never")

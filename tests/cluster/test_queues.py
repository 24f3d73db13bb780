"""Queues on three real nodes: consumers and workers go on when the leader is killed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import postroom
from tests.cluster.harness import cluster

MESSAGES = 60
WAIT_SECONDS = 120.0
ACK_WAIT_SECONDS = 30.0
"""A time longer than an election and a transaction take on a busy machine."""
HELD_SECONDS = 600.0
"""A time longer than the test takes."""


def await_acknowledged(q: postroom.Queue, messages: int) -> None:
    give_up = time.monotonic() + WAIT_SECONDS
    while q.stats().acknowledged < messages:
        assert time.monotonic() < give_up, q.stats()
        threading.Event().wait(0.1)


def test_streams_and_workers_move_to_the_new_leader(tmp_path: Path) -> None:
    """Each message has its effect once, though the leader is killed in the middle.

    A lease that the old leader granted is still held.
    """
    with cluster(tmp_path, 3) as three, three.connect() as db, three.connect() as consumers:
        q = db.create_queue("q", ack_wait=ACK_WAIT_SECONDS)
        holding = db.create_queue("holding", ack_wait=HELD_SECONDS)
        with db.begin() as tx:
            tx.enqueue("holding", b"", id="held")
        (held,) = holding.claim(1, wait=WAIT_SECONDS)
        seen: list[Any] = []

        def consume() -> None:
            for message in consumers.queue("q").receive(kinds="stream"):
                with consumers.begin() as tx:
                    tx.increment(b"stream")
                    tx.acknowledge("q", message)
                seen.append(message.id)
                if message.payload == b"last":
                    return

        worker = postroom.Worker(consumers)

        @worker.task("q", "work")
        def work(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
            tx.enqueue_update(postroom.Increment(b"work"))

        threads = [threading.Thread(target=consume), threading.Thread(target=worker.run)]
        for thread in threads:
            thread.start()

        def send(number: int, tx: postroom.Transaction) -> None:
            payload = b"last" if number == MESSAGES - 1 else b""
            tx.enqueue("q", payload, kind="stream", id=str(number), priority=number)
            tx.enqueue("q", b"", kind="work", id=str(number))

        for number in range(MESSAGES):
            if number == MESSAGES // 2:
                three.leader(db).kill()
            db.run(lambda tx, number=number: send(number, tx))
        held.acknowledge()
        threads[0].join(WAIT_SECONDS)
        await_acknowledged(q, 2 * MESSAGES)
        worker.stop()
        threads[1].join(WAIT_SECONDS)
        assert not any(thread.is_alive() for thread in threads)
        db.drain()
        assert q.stats().acknowledged == 2 * MESSAGES
        assert holding.stats().acknowledged == 1
        assert postroom.integer(db.get(b"stream")) == MESSAGES
        assert postroom.integer(db.get(b"work")) == MESSAGES

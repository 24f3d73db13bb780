"""A worker: functions that are called with messages, in transactions that acknowledge them.

Each picture of an album becomes a task. When all of an album are done, one more is enqueued, in the
write of the last acknowledgement. One attempt in three fails, and is tried again.

Run it: python examples/worker_thumbnails.py
"""

from __future__ import annotations

import logging

import postroom
import postroom.aio
import postroom.testing

PICTURES = 9

worker = postroom.Worker()


@worker.task(queue="pictures", kind="thumbnail", concurrency=4, max_attempts=5)
def thumbnail(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
    """Make one thumbnail. The writes and the acknowledgement commit together."""
    number = int(message.payload)
    if message.epoch == 0 and number % 3 == 0:
        raise OSError("the disk hiccups")  # tried again, after the back-off of the queue
    tx.put(b"thumbnail/%d" % number, b"small picture %d" % number)
    tx.enqueue_update(postroom.Increment(b"thumbnails"))


@worker.task(queue="pictures", kind="album")
async def album(message: postroom.aio.QueueMessage, tx: postroom.aio.Transaction) -> None:
    """Store the album: it is called once, when all pictures of it are done."""
    names = [key async for key, _ in tx.scan(*postroom.prefix(b"thumbnail/"))]
    tx.put(b"album/" + message.payload, b"%d pictures" % len(names))


def main() -> None:
    logging.getLogger("postroom.worker").setLevel(logging.ERROR)  # failures are on purpose here
    with postroom.testing.Store() as store:  # in memory, with a clock that can be moved
        db = store.db
        worker.bind(db)
        db.create_queue("pictures", ack_wait=60)
        with db.begin() as tx:
            for number in range(PICTURES):
                thumbnail.enqueue(tx, b"%d" % number, group="holidays")
            tx.when_done("pictures", "holidays", album.message(b"holidays"))

        first = worker.run_until_idle()
        assert db.get(b"album/holidays") is None
        store.advance(60)  # the back-off of those that failed is over
        second = worker.run_until_idle()
        print(f"{first} attempts, then {second}: {db.get(b'album/holidays').decode()}")
        assert db.get(b"album/holidays") == b"%d pictures" % PICTURES
        assert db.queue("pictures").stats().acknowledged == PICTURES + 1


if __name__ == "__main__":
    main()

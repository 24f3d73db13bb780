"""Competing consumers: four workers share one inbox, and no job is done twice.

``reap_queue`` gives each worker messages that no other one holds. They are gone when the worker's
transaction commits, together with its result; if the worker fails, they are free again.

Run it: python examples/work_queue.py
"""

from __future__ import annotations

import asyncio

import postroom
import postroom.aio

JOBS = b"jobs/square"
COUNT = 200
WAIT_SECONDS = 1.0


async def square_some(tx: postroom.aio.Transaction) -> int:
    """Take up to ten jobs, store their results, and return how many there were."""
    jobs = await tx.reap_queue(JOBS, 10, wait=WAIT_SECONDS)
    for job in jobs:
        number = int(job.value)
        tx.put(b"square/%d" % number, b"%d" % number**2)
    if jobs:
        await tx.increment(b"done", len(jobs))
    return len(jobs)


async def work(db: postroom.aio.Database, all_sent: asyncio.Event) -> int:
    """Work until all is sent, and there is nothing to do for a second."""
    done = 0
    while True:
        is_last = all_sent.is_set()  # read before looking for jobs: later ones would be left
        taken = await db.run(square_some)
        if is_last and not taken:
            return done
        done += taken


async def main() -> None:
    async with await postroom.aio.open(":memory:") as db:
        all_sent = asyncio.Event()
        workers = [asyncio.create_task(work(db, all_sent)) for _ in range(4)]  # they wait for mail
        for number in range(COUNT):
            async with db.begin() as tx:
                tx.enqueue_message(JOBS, b"%d" % number)
        all_sent.set()
        done = await asyncio.gather(*workers)

        print(f"four workers did {done} jobs")
        results = [int(value) async for _, value in db.scan(*postroom.prefix(b"square/"))]
        assert sum(done) == COUNT
        assert postroom.integer(await db.get(b"done")) == COUNT
        assert sorted(results) == [number**2 for number in range(COUNT)]


if __name__ == "__main__":
    asyncio.run(main())

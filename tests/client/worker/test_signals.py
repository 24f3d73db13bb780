"""Signals stop workers: the second one ends a process that hangs, and what it held goes back."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import postroom
from tests.client.worker.running import WAIT_SECONDS

PROGRAM = """
import asyncio, ctypes, sys, threading, time
import postroom, postroom.aio

def hang(message, tx):
    tx.put(b"k", b"v")
    print("hangs", flush=True)
    threading.Event().wait(1000)

async def sleep(message, tx):
    tx.put(b"k", b"v")
    print("hangs", flush=True)
    await asyncio.sleep(1000)

async def disobey(message, tx):
    tx.put(b"k", b"v")
    print("hangs", flush=True)
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass

async def block(message, tx):
    print("hangs", flush=True)
    time.sleep(1000)

async def deadlock(message, tx):
    # The main thread waits, and nothing wakes it: it runs no handlers of signals.
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
    libc.pthread_mutex_init(mutex, None)
    print("hangs", flush=True)
    while True:
        libc.pthread_mutex_lock(mutex)

path, form, function = sys.argv[1], sys.argv[2], globals()[sys.argv[3]]

def sync():
    with postroom.open(path) as db:
        worker = postroom.Worker(db)
        worker.task("q", concurrency=2)(function)
        worker.run()

async def aio():
    async with await postroom.aio.open(path) as db:
        worker = postroom.aio.Worker(db)
        worker.task("q", concurrency=2)(function)
        await worker.run(signals=True)

if form == "sync":
    sync()
else:
    asyncio.run(aio())
"""


@pytest.mark.parametrize("form", ["sync", "aio"])
@pytest.mark.parametrize("function", ["hang", "sleep", "disobey", "block", "deadlock"])
def test_the_second_signal_ends_a_process_whose_task_hangs(
    tmp_path: Path, form: str, function: str
) -> None:
    path = tmp_path / "store"
    with postroom.open(path) as db:
        db.create_queue("q", ack_wait=600)
        with db.begin() as tx:
            tx.enqueue("q", b"")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), form, function],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "hangs\n"
            process.send_signal(signal.SIGTERM)
            if function != "block":  # there both come at one moment
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.3)  # it finishes what it has begun
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=WAIT_SECONDS)
            took = time.monotonic() - began
        finally:
            process.kill()
    assert took < 5, "a second, on a machine that has nothing else to do"
    with postroom.open(path) as db:
        stats = db.queue("q").stats()
        assert db.get(b"k") is None
        (again,) = db.queue("q").claim(1, wait=WAIT_SECONDS)
        if function not in {"block", "deadlock"}:  # there nothing runs that could give it back
            assert again.epoch == 0
            assert stats.leased == 0


ALONE = """
import asyncio, multiprocessing, os, signal, sys, time
import postroom.aio

async def main():
    loop, came = asyncio.get_running_loop(), []
    def wait_for(signals):
        async def wait():
            while came != signals:
                await asyncio.sleep(0.01)
        return asyncio.wait_for(wait(), 60)
    before = signal.getsignal(signal.SIGTERM)
    async with await postroom.aio.open(":memory:") as db:
        ready = []
        def run():
            worker = postroom.aio.Worker(db)
            worker.inbox(b"k")(lambda message, tx: None)
            return asyncio.ensure_future(worker.run(signals=True, ready=lambda: ready.append(1)))
        def all_ready(number):
            async def wait():
                while len(ready) < number:
                    await asyncio.sleep(0.01)
            return asyncio.wait_for(wait(), 60)
        %s
    assert signal.getsignal(signal.SIGTERM) is before
    print("ended", flush=True)

asyncio.run(main())
"""


def ends_well(steps: str) -> None:
    lines = ("\n" + 8 * " ").join(steps.strip().splitlines())
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", ALONE % lines],
        capture_output=True, text=True, timeout=2 * WAIT_SECONDS, check=False,
    )  # fmt: skip
    assert ended.stdout == "ended\n", ended.stderr


def test_a_signal_stops_all_workers_of_a_loop() -> None:
    ends_well("""
runs = [run(), run()]
await all_ready(2)
os.kill(os.getpid(), signal.SIGTERM)
await asyncio.wait_for(asyncio.gather(*runs), 60)
""")


def test_a_worker_that_ends_leaves_signals_to_the_others() -> None:
    ends_well("""
first = run()
await all_ready(1)
second = run()
await all_ready(2)
first.cancel()
await asyncio.wait({first})
os.kill(os.getpid(), signal.SIGTERM)
await asyncio.wait_for(second, 60)
""")


def test_handlers_of_a_loop_are_told_of_their_signals_beside_a_worker() -> None:
    ends_well("""
loop.add_signal_handler(signal.SIGUSR1, came.append, 1)
running = run()
await all_ready(1)
os.kill(os.getpid(), signal.SIGUSR1)
await wait_for([1])
loop.add_signal_handler(signal.SIGUSR2, came.append, 2)
os.kill(os.getpid(), signal.SIGUSR2)
await wait_for([1, 2])
os.kill(os.getpid(), signal.SIGTERM)
await asyncio.wait_for(running, 60)
os.kill(os.getpid(), signal.SIGUSR1)
await wait_for([1, 2, 1])
""")


def test_a_signal_to_the_child_of_a_fork_ends_the_child_alone() -> None:
    ends_well("""
running = run()
await all_ready(1)
child = os.fork()
if not child:
    time.sleep(60)
    os._exit(7)
os.kill(child, signal.SIGTERM)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
await asyncio.sleep(0.1)
assert not running.done()
os.kill(os.getpid(), signal.SIGTERM)
await asyncio.wait_for(running, 60)
""")

"""A database in the child of a fork is the parent's: it refuses everything, and spoils nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import importlib.util, multiprocessing, os, sys, threading
import postroom

def refused(call):
    try:
        call()
    except postroom.Invalid as error:
        text = str(error)
        assert "opened before the process was forked; nothing was changed" in text, text
        assert "multiprocessing's spawn" in text, text
    else:
        raise SystemExit("it was not refused")

def use(db, tx):
    for call in (
        lambda: db.put(b"child", b"1"), lambda: db.get(b"a"), lambda: list(db.scan()), db.now,
        lambda: db.increment(b"n"), lambda: db.run(lambda tx: tx.put(b"child", b"1")),
        db.status, tx.commit,
    ):
        refused(call)
    db.close()

db = postroom.open(sys.argv[1])
db.put(b"a", b"1")
tx = db.begin()
tx.get_for_update(b"a")
tx.put(b"child", b"1")
stop = threading.Event()
busy = [threading.Thread(target=lambda: [db.increment(b"n") for _ in iter(stop.is_set, True)])
        for _ in range(3)]
for each in busy:
    each.start()
for number in range(8):  # forked while others hold whatever locks there are
    child = os.fork()
    if child == 0:
        use(db, tx)
        del db, tx
        if importlib.util.find_spec("plyvel") is None:
            os._exit(7)  # RocksDB would wait for its threads, which only the parent has
        sys.exit(7)  # with all that an interpreter does at its end
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
process = multiprocessing.get_context("fork").Process(target=use, args=(db, tx))
process.start()
process.join()
assert process.exitcode == 0
stop.set()
for each in busy:
    each.join()
tx.commit()
db.put(b"after", b"1")
db.close()
with postroom.open(sys.argv[1]) as db:
    assert db.get_many([b"a", b"child", b"after"]) == [b"1", b"1", b"1"]
    assert postroom.integer(db.get(b"n")) > 0
print("well")
"""

_ASYNCIO = """
import asyncio, os, sys
import postroom, postroom.aio

async def main():
    async with await postroom.aio.open(sys.argv[1]) as db:
        await db.put(b"a", b"1")
        child = os.fork()
        if child == 0:
            try:
                await db.put(b"a", b"child")
            except postroom.Invalid as error:
                os._exit(7 if "before the process was forked" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert await db.get(b"a") == b"1"
    print("well")

asyncio.run(main())
"""


def run(program: str, folder: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("well\n", "", 0)


def test_children_are_refused_and_the_parent_goes_on(tmp_path: Path) -> None:
    run(_PROGRAM, tmp_path / "store")


def test_children_of_a_program_on_asyncio_are_refused(tmp_path: Path) -> None:
    run(_ASYNCIO, tmp_path / "store")


def test_memory_is_forked_no_better(tmp_path: Path) -> None:
    program = _PROGRAM.replace("sys.argv[1]", '":memory:"')
    run(program.partition("with postroom.open")[0] + 'print("well")', tmp_path)

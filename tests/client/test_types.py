"""The verdict of a type checker on programs: right ones pass, wrong ones fail at their fault."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

_PROGRAM = """
import datetime

import postroom
import postroom.aio


def blocking(tx: postroom.Transaction, key: bytes, by: int = 1) -> str:
    tx.enqueue_message(key, b"m", deliver_at=datetime.timedelta(days=1))
    tx.enqueue_message(key, b"m", deliver_at=datetime.datetime.now(datetime.UTC))
    tx.enqueue_message(key, b"m", deliver_at=5)
    tx.enqueue_message(key, b"m", deliver_at=0.5)
    tx.enqueue_message(key, b"m", deliver_at="tomorrow")  # refused: arg-type
    tx.enqueue_update(postroom.Increment(key), execute_at=datetime.timedelta(days=1))
    day = datetime.date(2030, 1, 1)
    tx.enqueue_update(postroom.Increment(key), execute_at=day)  # refused: arg-type
    return str(tx.increment(key, by))


async def suspending(tx: postroom.aio.Transaction, key: bytes, by: int = 1) -> str:
    tx.enqueue_message(key, b"m", deliver_at=datetime.timedelta(days=1))
    tx.enqueue_message(key, b"m", deliver_at="tomorrow")  # refused: arg-type
    return str(await tx.increment(key, by))


def no_coroutine(tx: postroom.aio.Transaction) -> None:
    tx.put(b"a", b"1")


def use(db: postroom.Database) -> None:
    text: str = db.run(blocking, b"k")
    text = db.run(blocking, b"k", by=2)
    number: int = db.run(blocking, b"k")  # refused: arg-type assignment
    db.run(blocking)  # refused: call-arg arg-type
    db.run(blocking, "k")  # refused: arg-type
    db.run(blocking, b"k", to=2)  # refused: call-arg arg-type
    db.run(suspending, b"k")  # refused: arg-type
    db.run(lambda tx: tx.increment(b"n"))


async def use_async(db: postroom.aio.Database) -> None:
    text: str = await db.run(suspending, b"k", by=2)
    await db.run(suspending, "k")  # refused: arg-type
    await db.run(blocking, b"k")  # refused: arg-type
    await db.run(no_coroutine)  # refused: arg-type func-returns-value
    await db.run(lambda tx: tx.increment(b"n"))


@postroom.transactional
def joining(tx: postroom.Transaction, key: bytes) -> int:
    return tx.increment(key)


@postroom.aio.transactional
async def joining_async(tx: postroom.aio.Transaction, key: bytes) -> int:
    return await tx.increment(key)


@postroom.transactional  # refused: arg-type call-overload type-var misc
def no_coroutine_either(tx: postroom.aio.Transaction) -> None:
    tx.put(b"a", b"1")


def join(db: postroom.Database, tx: postroom.Transaction, other: postroom.aio.Database) -> None:
    number: int = joining(db, b"k")
    number = joining(tx, key=b"k")
    joining(db, "k")  # refused: arg-type
    joining(other, b"k")  # refused: arg-type
    joining(b"k")  # refused: call-arg arg-type


async def join_async(db: postroom.aio.Database, other: postroom.Database) -> None:
    number: int = await joining_async(db, b"k")
    async with db.begin() as tx:
        number = await joining_async(tx, b"k")
    await joining_async(other, b"k")  # refused: arg-type
"""


def test_the_two_forms_do_not_mix(tmp_path: Path) -> None:
    """The line of each mistake is marked with the codes that checkers may give it."""
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    command = [
        sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"),
        "--cache-dir", str(tmp_path / "cache"), "--no-error-summary", str(program),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert not done.stderr
    refused: dict[int, set[str]] = {}
    for line, code in re.findall(r"program\.py:(\d+): error: .*\[([\w-]+)\]", done.stdout):
        refused.setdefault(int(line), set()).add(code)
    expected = {
        number: set(match[1].split())
        for number, line in enumerate(_PROGRAM.splitlines(), 1)
        if (match := re.search(r"# refused: (.*)", line))
    }
    assert refused.keys() == expected.keys(), done.stdout
    assert all(refused[line] & expected[line] for line in expected), done.stdout

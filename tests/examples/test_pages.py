"""The programs in the documentation run, and do what the pages say."""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import postroom

DOCS = Path(__file__).parents[2] / "docs"
PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)


def run(page: str, db: postroom.Database) -> dict[str, Any]:
    """Run all programs of a page, one after the other; return the names that they define."""
    names: dict[str, Any] = {"postroom": postroom, "db": db}
    programs = PROGRAM.findall((DOCS / page).read_text())
    assert programs
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for program in programs:
            exec(compile(program, page, "exec"), names)
    return names


@pytest.fixture
def db() -> Iterator[postroom.Database]:
    with postroom.open(":memory:") as db:
        yield db


def test_codecs(db: postroom.Database) -> None:
    run("codecs.md", db)


def test_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first two programs, which need no cluster."""
    monkeypatch.chdir(tmp_path)
    for program in PROGRAM.findall((DOCS.parent / "README.md").read_text())[:2]:
        exec(compile(program, "README.md", "exec"), {})
    with postroom.open("data/mail") as db:
        assert db.get(b"welcomed/alice") == b"yes"


def test_queues(db: postroom.Database) -> None:
    run("queues.md", db)
    assert db.get(b"mailed/alice@example.org") == b"yes"
    assert db.queue("emails").stats().dead == 0


def test_web_applications() -> None:
    """The programs that need a framework are left out."""
    names: dict[str, Any] = {"postroom": postroom}
    programs = PROGRAM.findall((DOCS / "web-applications.md").read_text())
    own = [each for each in programs if "fastapi" not in each and "django" not in each]
    assert len(own) == 2
    for program in own:
        exec(compile(program, "web-applications.md", "exec"), names)


def test_two_threads_of_a_web_application_that_come_first_share_one_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = (DOCS / "web-applications.md").read_text()
    (program,) = [each for each in PROGRAM.findall(text) if "django" in each]
    names: dict[str, Any] = {}
    exec(program.partition("# shop/views.py")[0], names)
    both = threading.Barrier(2)
    opened: list[object] = []

    def connect(*_: object, **__: object) -> object:
        with contextlib.suppress(threading.BrokenBarrierError):  # one alone waits in vain
            both.wait(0.2)
        opened.append(object())
        return opened[-1]

    monkeypatch.setattr(postroom, "connect", connect)
    with ThreadPoolExecutor(2) as pool:
        found = [each.result() for each in [pool.submit(names["db"]) for _ in range(2)]]
    assert found == opened * 2


def test_short_work(db: postroom.Database) -> None:
    names = run("workers.md", db)
    assert postroom.integer(db.get(b"orders")) == 1
    db.run(names["count_order"], b"17")
    assert postroom.integer(db.get(b"orders")) == 1
    assert db.get(b"shipped/order 17") == b"yes"
    assert [message.value for message in db.peek(b"customer")] == [b"on its way: order 17"]


class Payments:
    """Another service, which counts what it is asked by its keys."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails = True

    def charge(self, order: bytes, *, idempotency_key: str) -> None:
        del order
        self.asked.append(idempotency_key)
        if self.fails:
            self.fails = False
            raise OSError("the line is cut")


def test_an_effect_outside_has_the_same_key_each_time(db: postroom.Database) -> None:
    charge, payments = run("workers.md", db)["charge"], Payments()
    with db.begin() as tx:
        tx.enqueue_message(b"charges", b"17")
    db.drain()
    with pytest.raises(OSError, match="cut"):
        db.run(charge, payments)
    db.run(charge, payments)
    assert len(payments.asked) == 2
    assert len(set(payments.asked)) == 1
    assert db.get(b"charged/17") == payments.asked[0].encode()

"""Kinds of work in chaos, the middle of each, and its end: each row exactly once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import postroom
from postroom import Timestamp
from tests.pipeline.chaos.program import READ_PARTS

PER_TRANSACTION = 50


def _cuts(prefix: bytes, *of_queries: bytes) -> tuple[bytes, ...]:
    """Return keys among those of the rows, and of queries, at which ranges may be split."""
    return (*of_queries, *(prefix + b"%07d" % number for number in (50, 100, 170, 300, 1000)))


class Work:
    """One kind, in one store.

    Args:
        db: the store.
        folder: of the program.
        rows: how many there are.

    Attributes:
        steps_most: of a work that tells its steps: how many it has, about; 0: it tells none.
        moment_seconds: when it is in the middle, so long passes until somebody dies, at the most.
        steps: how many it has told in this life of the program.
        kill_after: how many it must have told before somebody dies.
        name: of the program's work.
        again: whether the program is started anew until it has done its work.
        endless: it never ends by itself: it has done its work when :meth:`check` says so.
        stages: it writes rows, or loads them.
        cuts: the keys at which its ranges may be split meanwhile.
    """

    steps_most: ClassVar[int] = 0
    moment_seconds: ClassVar[float] = 1.0
    name = ""
    again = True
    endless = False
    stages = True
    cuts: ClassVar[tuple[bytes, ...]] = ()

    def __init__(self, db: postroom.Database, folder: Path, rows: int) -> None:
        self.db = db
        self.folder = folder
        self.rows = rows
        self.steps: Callable[[], int] = lambda: 0
        self.kill_after = 0

    def prepare(self) -> None:
        """Prepare the store before the program begins."""

    def go_on(self) -> None:
        """Change the store, as others do: called for each life and after each strike."""

    def arguments(self) -> list[str]:
        """Return the arguments of the program."""
        return ["--rows", str(self.rows)]

    def has_begun(self) -> bool:
        """Return whether it is in the middle."""
        staging = self.db.staging.read()
        return bool(staging.attempts or staging.loads)

    def progress(self) -> object:
        """Return a value that is another one when the program has gone on."""
        staging = self.db.staging.read()
        return staging.attempts, staging.loads, sum(1 for _ in self.db.scan())

    def check(self) -> None:
        """Check the store after the end.

        Raises:
            AssertionError: a row is missing, or there twice.
        """
        raise NotImplementedError

    def counted(self, prefix: bytes) -> dict[bytes, int]:
        """Return the sums of the increments."""
        pairs = self.db.scan(prefix, prefix + b"\xff")
        return {key[len(prefix) :]: postroom.integer(value) for key, value in pairs}

    def expected(self) -> dict[bytes, int]:
        return {b"%07d" % number: 1 for number in range(self.rows)}


class Read(Work):
    """A data frame at one timestamp, while the store changes."""

    name = "read"
    stages = False
    cuts = tuple(b"in/%d/%07d" % (part, number) for part in range(READ_PARTS) for number in (0, 99))

    def prepare(self) -> None:
        self._fill(b"then")
        self._held = self.db.hold()
        self.at: Timestamp = self._held.__enter__()

    def _fill(self, value: bytes) -> None:
        for first in range(0, self.rows, PER_TRANSACTION):
            with self.db.begin() as tx:
                for number in range(first, min(first + PER_TRANSACTION, self.rows)):
                    tx.put(self._key(number), value)

    def _key(self, number: int) -> bytes:
        return b"in/%d/%07d" % (number % READ_PARTS, number)

    def go_on(self) -> None:
        with self.db.begin() as tx:
            for number in range(0, self.rows, 7):
                tx.put(self._key(number), b"later")

    def arguments(self) -> list[str]:
        return ["--at", str(int(self.at))]

    def has_begun(self) -> bool:
        return any((self.folder / "read").rglob("*.parquet"))

    def progress(self) -> object:
        return sum(1 for _ in self.folder.rglob("*"))

    def check(self) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415 - needs the extra

        found = pq.read_table(self.folder / "read").to_pydict()
        expected = sorted(self._key(number).decode() for number in range(self.rows))
        assert sorted(found["key"]) == expected
        assert set(found["value"]) == {"then"}
        self._held.__exit__(None, None, None)


class Stream(Work):
    """Changes of a store become changes of a store."""

    name = "stream"
    endless = True
    cuts = _cuts(b"out/", b"4", b"9", b"c", b"in/3")

    def prepare(self) -> None:
        """Keep the history, however long the program is down."""
        self._written = 0
        self._seen = 0
        self._held = self.db.hold()
        self.at: Timestamp = self._held.__enter__()

    def arguments(self) -> list[str]:
        return ["--rows", str(max(self.rows // 6, 1)), "--at", str(int(self.at))]  # rows of a batch

    def go_on(self) -> None:
        """Make a quarter of the changes, each to a key that many others change, too."""
        end = min(self._written + self.rows // 4, self.rows)
        for number in range(self._written, end):
            self.db.put(b"in/%d" % (number % 17), b"%07d" % number)
        self._written = end

    def has_begun(self) -> bool:
        before, self._seen = self._seen, len(self.counted(b"out/"))
        staged = bool(self.db.staging.read().attempts)
        return staged or self._seen > before or self._seen == self._written  # between batches

    def check(self) -> None:
        while self._written < self.rows:
            self.go_on()
        assert self.counted(b"out/") == self.expected()


class Follow(Stream):
    """Changes of a store become rows of files, in a table whose log tells which files count."""

    name = "follow"
    stages = False
    cuts = tuple(b"in/%d" % number for number in range(17))

    def has_begun(self) -> bool:
        return bool(self._found())

    def progress(self) -> object:
        return len(self._found())

    def _found(self) -> list[tuple[str, str, int]]:
        """Return the key, the value and the timestamp of each row."""
        import pyarrow.parquet as pq  # noqa: PLC0415 - needs the extra

        table = self.folder / "followed"
        log = (table / "_spark_metadata").glob("[0-9]*")  # the ninth has the eight before, too
        files = {
            json.loads(line)["path"] for each in log for line in each.read_text().split("\n")[1:]
        }
        return [
            (row["key"], row["value"], row["timestamp"])
            for name in files
            for row in pq.read_table(table / Path(name).name).to_pylist()
        ]

    def check(self) -> None:
        while self._written < self.rows:
            self.go_on()
        found = sorted(self._found(), key=lambda row: row[2])
        assert [int(value) for _, value, _ in found] == [*range(self.rows)]
        assert all(key == f"in/{int(value) % 17}" for key, value, _ in found)


class Write(Work):
    """A data frame that is a batch."""

    name = "write"
    cuts = _cuts(b"w/", b"a", b"batch", b"c")

    def check(self) -> None:
        assert self.counted(b"w/") == self.expected()


class Once(Work):
    """A data frame that is written once: it may have failed, as a whole."""

    name = "once"
    cuts = _cuts(b"o/", b"\x40", b"\x80", b"\xc0")
    again = False

    def check(self) -> None:
        self.db.staging.sweep(0.0)
        found = self.counted(b"o/")
        assert found in ({}, self.expected())


class Load(Work):
    """A bulk load that is resumed."""

    name = "load"
    cuts = _cuts(b"l/")

    def has_begun(self) -> bool:
        return any(self.db.scan(b"l/", b"l0"))

    def check(self) -> None:
        found = dict(self.db.scan(b"l/", b"l0"))
        keys = [b"l/%07d" % number for number in range(self.rows)]
        assert found == {key: key for key in keys}


WORKS: dict[str, type[Work]] = {
    each.name: each for each in (Read, Stream, Follow, Write, Once, Load)
}

__all__: list[Any] = ["WORKS", "Work"]

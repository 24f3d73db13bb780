"""The remains of a soak in its folders when all clients have gone, each accounted for.

In a run of minutes the tables of a store grow, and rightly so: old versions, COMMIT records and
reaped messages stay for 75 seconds. There is no allowance for a number of files. Each folder is
opened, and all that it holds has to be accounted for:

* records that must go one day are on a list of garbage
  (:func:`tests.sim.checkers.check_garbage`), and no list is older than what is kept, and the
  collector's way there;
* the values that the clients write are there for good, and are few;
* the tables are no larger than what they hold, and what LevelDB may leave in them until it next
  compacts. Their number fits their bytes.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

from postroom.kv import keys, versions
from postroom.kv.clock import from_seconds
from postroom.kv.engine import DEFAULT_BUDGET
from postroom.kv.opening import open_engine
from postroom.ranges.transactions.one_range import RECORD_SECONDS
from tests.sim import checkers
from tests.sim.store_rules import contents_of, joined
from tests.soak.work import SWEPT

TABLE_SUFFIXES: Final = (".ldb", ".sst")
COLLECTED_SECONDS: Final = RECORD_SECONDS + 30.0
"""The time by which all that nobody can ask for any more is collected, on a busy machine too."""
VALUES_MAX: Final = 500 + SWEPT
"""A killed node's tables are of a moment before, perhaps of the middle of a sweep."""
UNCOMPACTED_BYTES: Final = 6 * DEFAULT_BUDGET.write_buffer_bytes
"""Memtables that were flushed, and not merged with anything yet: LevelDB begins with four."""
UNCOMPACTED_TABLES: Final = 12
"""The number of tables with which it stops writing (``kL0_StopWritesTrigger``)."""
TABLE_BYTES: Final = 1024 * 1024
"""A table has 16 MiB, or less where it would lie over too much of the next level."""


def is_table(path: Path) -> bool:
    """Return whether it is a file of an engine that grows with what is stored."""
    return path.suffix in TABLE_SUFFIXES


def look_through(folder: Path) -> tuple[list[str], list[str]]:
    """Look through all stores in ``folder``; return a line each, and what ought not to be there."""
    told, wrong = [], []
    for current in sorted(folder.rglob("CURRENT")):
        line, found = _look_at(current.parent)
        name = current.parent.relative_to(folder)
        told.append(f"{name}: {line}")
        wrong += [f"{name}: {each}" for each in found]
    return told, (wrong if told else ["no store was found"])


def _look_at(store: Path) -> tuple[str, list[str]]:
    tables = [path.stat().st_size for path in store.rglob("*") if is_table(path)]
    engine = open_engine(store, create=False, replays=True)
    try:
        contents = contents_of(engine)  # type: ignore[arg-type]  # reads all that it asks
        spaces, lists = _sizes(engine)
    finally:
        engine.close()
    held, taken = sum(spaces.values()), sum(tables)
    wrong = [each for content in contents for each in _broken(content)]
    wrong += _left_over(joined(contents), lists)
    if taken > 2 * held + UNCOMPACTED_BYTES:
        wrong.append(f"tables of {taken} bytes for {held} bytes that are there")
    if len(tables) > UNCOMPACTED_TABLES + taken / TABLE_BYTES:
        wrong.append(f"{len(tables)} tables for {taken} bytes")
    told = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in spaces.most_common(5))
    return f"{len(tables)} tables, {taken / 1e6:.1f} MB, for {held / 1e6:.1f} MB ({told})", wrong


def _broken(content: checkers.Content) -> list[str]:
    wrong = []
    for check in (
        checkers.check_conservation, checkers.check_index, checkers.check_once,
        checkers.check_garbage, checkers.check_queues,
    ):  # fmt: skip
        try:
            check(content)
        except checkers.Broken as error:
            wrong.append(f"range {content.descriptor.range_id}: {error}")
    return wrong


def _left_over(content: checkers.Content, lists: list[bytes]) -> list[str]:
    wrong = []
    there = sum(found[0][0] != versions.TOMBSTONE for found in content.versions.values() if found)
    if there > VALUES_MAX:
        wrong.append(f"{there} values, of which nobody writes so many")
    newest = int.from_bytes(content.newest, "big")
    oldest = min((int.from_bytes(stamp, "big") for stamp in lists), default=newest)
    if newest - oldest > from_seconds(COLLECTED_SECONDS):
        age = (newest - oldest) / from_seconds(1.0)
        wrong.append(f"garbage of {age:.0f} s ago is not collected")
    return wrong


def _sizes(engine: Any) -> tuple[Counter[str], list[bytes]]:
    """Return bytes by what they are, and the timestamps of the lists of garbage."""
    spaces, lists = Counter[str](), []
    for raw, stored in engine.iterate(b"", b"\xff" * 9):
        kind = _kind(raw)
        spaces[kind] += len(raw) + len(stored)
        if kind == "garbage lists":
            lists.append(raw[10:18])
    return spaces, lists


def _kind(raw: bytes) -> str:
    if raw[:1] == keys.DATA:
        return _OF_DATA.get(raw[raw.index(keys.END_OF_KEY, 1) + 2 :][:1], "other data")
    if raw[:1] == keys.RANGE:
        return _OF_RANGE.get(raw[9:10], "records of ranges")
    return _SPACES.get(raw[:1], "of the store")


_OF_DATA: Final = {
    keys.HEAD: "values", keys.HISTORY: "history", keys.INBOX: "messages", keys.REAPED: "reaped",
    keys.QUEUE_BODY: "bodies of queues", keys.QUEUE_STATE: "states of queues",
}  # fmt: skip
_OF_RANGE: Final = {keys.GARBAGE: "garbage lists", keys.QUEUES: "places of queues"}
_SPACES: Final = {keys.TRANSACTION: "COMMIT records", keys.MAIL: "index of inboxes"}

"""A run of the archive that is killed before any of its steps, and is run again: nothing is lost,
and nothing is there twice. What Spark does is done by hand here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import postroom
import postroom.testing
from postroom.errors import Invalid
from postroom.kv import keys
from postroom.messaging.requests import Delivered
from postroom.pipeline.jobs import archive, report
from postroom.pipeline.jobs.archive import lists, run
from postroom.pipeline.jobs.archive import manifest as manifests
from postroom.pipeline.jobs.archive.folders import LocalFolder
from postroom.pipeline.jobs.archive.manifest import Gap, Kept
from postroom.pipeline.jobs.archive.run import ArchiveResult, Run, Settings, latest
from postroom.pipeline.jobs.archive.writing import Span
from postroom.pipeline.jobs.job import JobFailed
from tests.client.stores import Store

GC_TTL = 80.0
"""History is kept for less."""
STEPS = ["identity", "files of queues", "files of inboxes", "fewer files", "manifest", "number",
         "trimming", "tidying"]  # fmt: skip


class Killed(BaseException):
    """As good as kill -9."""


class ByHand:
    """Writes files of a line a message."""

    def __init__(self, db: postroom.Database, root: Path, name: str) -> None:
        self._db, self._root, self._name, self._number = db, root, name, 0

    def write_queues(self, span: Span) -> list[Kept]:
        new = []
        for name in span.created_at:
            pages = [
                page
                for state in ("done", "archived")
                for page in self._db.bulk.queue(name, state, at=span.until, start=span.after + 1)
            ]
            new += self._put(
                "queues", name, [str(each.id) for page in pages for each in page.messages]
            )
        return new

    def write_inboxes(self, after: int, until: int) -> list[Kept]:
        found = [
            msgspec.msgpack.decode(stored, type=Delivered).value.decode()
            for page in self._db.bulk.reaped(at=until, after=after)
            for _, _, consumed, messages in page.records
            for _, stored in messages
            if consumed
        ]
        return self._put("inboxes", "", found)

    def compact(self, table: str, files: list[Kept]) -> list[Kept]:
        new = []
        for part in sorted({each.part for each in files}):
            some = [each for each in files if each.part == part]
            rows = [row for each in some for row in read(self._root, each)]
            new += self._put(table, part.partition("/")[0], rows)
        return new

    def _put(self, table: str, part: str, rows: list[str]) -> list[Kept]:
        if not rows:
            return []
        self._number += 1
        path = f"files/{self._name}/{self._number}.parquet"
        place = self._root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(rows))
        return [Kept(path, table, f"{part}/day=2030-01-01", len(rows), place.stat().st_size)]


def read(root: Path, file: Kept) -> list[str]:
    rows: list[str] = json.loads((root / file.path).read_text())
    return rows


@pytest.fixture
def store() -> Iterator[postroom.testing.Store]:
    with postroom.testing.Store() as store:
        yield store


class Archiver:
    """A store, its archive, and all that ever ended in it."""

    def __init__(self, store: postroom.testing.Store | Store, root: Path) -> None:
        self.store, self.db, self.root = store, store.db, root
        self.folder = LocalFolder(root)
        self.expected: Counter[tuple[str, str]] = Counter()
        self._number = 0
        self.db.create_queue("kept", archive=True)
        self.db.create_queue("done", purge_after=10_000)

    def work(self, queues: Sequence[str] = ("kept", "done")) -> None:
        for _ in range(3):
            self._number += 1
            with self.db.begin() as tx:
                for queue in queues:
                    tx.enqueue(queue, b"", id=f"{self._number}")
                tx.enqueue_message(b"inbox", b"%d" % self._number)
            for queue in queues:
                handle = self.db.queue(queue)
                handle.acknowledge(handle.claim(1))
                self.expected["queues", str(f"{self._number}".encode())] += 1
            with self.db.begin() as tx:
                tx.reap_queue(b"inbox")
            self.expected["inboxes", f"{self._number}"] += 1

    def run(self, failpoint: Callable[[str], None] = lambda _: None) -> ArchiveResult:
        settings = Settings(keep=0.0, grace=1000.0, files_max=2)
        run = Run(self.db, self.folder, settings, failpoint=failpoint)
        return run.whole(lambda name: ByHand(self.db, self.root, name))

    def archived(self) -> Counter[tuple[str, str]]:
        """What a reader finds."""
        files = latest(self.folder).files
        return Counter((each.table, row) for each in files for row in read(self.root, each))

    def seen(self) -> Counter[tuple[str, str]]:
        """What a reader of the archive and of the store finds, as the report reads them."""
        manifest, found = latest(self.folder), self.archived()
        at = int(self.db.now())
        hand = ByHand(self.db, self.root / "other", "x")
        made = {each.name: int(each.created_at) for each in self.db.queues()}
        for name, created_at in made.items():
            after = manifest.until(name, created_at)
            for each in hand.write_queues(Span({name: created_at}, after, at)):
                found.update((each.table, row) for row in read(self.root / "other", each))
        for each in hand.write_inboxes(max(manifest.inboxes_until, self.readable()), at):
            found.update((each.table, row) for row in read(self.root / "other", each))
        return found

    def readable(self) -> int:
        return max(int(each.readable_from) for each in self.db.partitions())


@pytest.fixture
def archiver(store: postroom.testing.Store, tmp_path: Path) -> Archiver:
    return Archiver(store, tmp_path / "archive")


def killer(step: str, times: int = 1) -> Callable[[str], None]:
    """Kills before a step, when it is to be done the so-manieth time."""
    left = times

    def failpoint(name: str) -> None:
        nonlocal left
        if name == step:
            left -= 1
            if not left:
                raise Killed(step)

    return failpoint


def test_a_run_has_all_these_steps(archiver: Archiver) -> None:
    told: list[str] = []
    for _ in range(5):
        archiver.work()
        archiver.run(told.append)
        archiver.store.advance(2000)  # what was replaced may be deleted
    assert set(told) == set(STEPS)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_killed_before_any_step_nothing_is_lost_or_doubled(
    archiver: Archiver, step: str, times: int
) -> None:
    killed = 0
    for round_ in range(4):
        archiver.work()
        fail: Any = killer(step, times)
        if step == "tidying" and not round_:
            fail = killer("manifest")  # which leaves something to be tidied
        elif step != "tidying" and round_ == 1:
            fail = str
        try:
            archiver.run(fail)
        except Killed:
            killed += 1
            assert archiver.seen() == archiver.expected
        archiver.store.advance(20)  # inboxes keep their history for longer
    assert killed > (step == "tidying") or times == 2
    result = archiver.run()
    assert archiver.archived() == archiver.seen() == archiver.expected
    assert result.rows == archiver.expected.total()
    assert not result.gaps
    archiver.store.advance(2 * GC_TTL)
    archiver.run()
    assert archiver.db.queue("kept").stats().archived == 0, "it is all in files"
    assert archiver.archived() == archiver.expected
    counted = {each.path for each in latest(archiver.folder).files}
    dropped = {each.path for each in latest(archiver.folder).dropped}
    assert {each.path for each in archiver.folder.files("files")} == counted | dropped


def test_trimming_takes_what_was_read_and_not_what_came_later(archiver: Archiver) -> None:
    archiver.work()
    archiver.run()
    archiver.store.advance(2 * GC_TTL)

    def more(step: str) -> None:
        if step == "trimming":
            archiver.work()

    result = archiver.run(more)
    assert result.trimmed == 3
    assert archiver.db.queue("kept").stats().archived == 6, "of two queues, two rounds of work"
    archiver.run()
    assert archiver.archived() == archiver.expected


def test_a_queue_that_is_dropped_while_the_store_is_trimmed_stops_nobody(
    archiver: Archiver,
) -> None:
    archiver.db.create_queue("another", archive=True)
    archiver.work()
    archiver.run()
    archiver.store.advance(2 * GC_TTL)

    def drop(step: str) -> None:
        if step == "trimming" and any(each.name == "another" for each in archiver.db.queues()):
            archiver.db.queue("another").drop()

    assert archiver.run(drop).trimmed == 3
    assert archiver.archived() == archiver.expected


def test_another_run_that_was_quicker_is_not_overwritten(archiver: Archiver) -> None:
    archiver.work()

    def other(step: str) -> None:
        if step == "manifest":
            archiver.run()

    with pytest.raises(JobFailed, match="another run"):
        archiver.run(other)
    assert archiver.archived() == archiver.expected


def test_the_archive_of_another_store_is_left_alone(
    archiver: Archiver, store: postroom.testing.Store
) -> None:
    archiver.work()
    archiver.run()
    with postroom.testing.Store() as another:
        other = Archiver(another, archiver.root)
        other.work()
        with pytest.raises(JobFailed, match="another store"):
            other.run()
    archiver.run()


def test_an_old_copy_of_the_folder_is_left_alone(archiver: Archiver) -> None:
    for _ in range(3):
        archiver.work()
        archiver.run()
    archiver.folder.delete(manifests.path_of(3))
    archiver.folder.delete(manifests.path_of(2))
    with pytest.raises(JobFailed, match="old copy"):
        archiver.run()


def test_a_copy_of_the_folder_from_before_the_last_run_is_left_alone(archiver: Archiver) -> None:
    """What that run has trimmed is in the other folder only."""
    archiver.work()
    archiver.run()
    archiver.work()
    archiver.store.advance(2 * GC_TTL)
    assert archiver.run().trimmed
    archiver.folder.delete(manifests.path_of(2))
    with pytest.raises(JobFailed, match="old copy"):
        archiver.run()


def test_a_copy_of_the_store_is_another_store(archiver: Archiver) -> None:
    """What ended in the one must not count as archived in the other."""
    archiver.work()
    archiver.run()
    archiver.run()
    runs = {each.query: each.batch for each in archiver.db.staging.read().queries}
    for query in runs:  # as in what was restored from an export between the two runs
        archiver.db.staging.forget(query)
        archiver.db.staging.publish(query, 1, bytes(24), [])
    with pytest.raises(JobFailed, match="another store"):
        archiver.run()


def test_a_run_that_begins_while_another_one_ends_blames_nobody(
    archiver: Archiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    archiver.work()
    archiver.run()
    read, others = archiver.db.staging.read, ["not yet"]

    def slowly(begin: bytes) -> Any:
        if others:
            others.clear()
            for _ in range(2):
                archiver.run()
        return read(begin)

    monkeypatch.setattr(type(archiver.db.staging), "read", lambda _, begin=b"": slowly(begin))
    archiver.run()
    assert archiver.archived() == archiver.expected


def test_nothing_is_deleted_from_the_store_when_files_are_missing(archiver: Archiver) -> None:
    archiver.work()
    archiver.run()
    archiver.store.advance(2 * GC_TTL)
    archiver.folder.delete(latest(archiver.folder).files[0].path)
    with pytest.raises(JobFailed, match="not there"):
        archiver.run()
    assert archiver.db.queue("kept").stats().archived == 3


def test_what_the_store_did_not_keep_is_said_to_be_missing(archiver: Archiver) -> None:
    archiver.db.queue("done").update(purge_after=0)
    archiver.work()
    first = archiver.run()
    assert not first.gaps
    archiver.work()
    archiver.store.advance(500)
    archiver.db.put(b"k", b"v")
    archiver.store.advance(500)
    result = archiver.run()
    assert {each.what for each in result.gaps} == {"done", "inboxes"}
    assert all(each.after == first.at < each.until <= result.at for each in result.gaps)
    assert result.gaps == tuple(latest(archiver.folder).gaps)
    assert archiver.run().gaps == ()


def test_what_a_new_queue_did_not_keep_is_said_to_be_missing(archiver: Archiver) -> None:
    archiver.run()
    made = archiver.db.create_queue("short", purge_after=0)
    archiver.store.advance(10)
    with archiver.db.begin() as tx:
        tx.enqueue("short", b"", id="1")
    made.acknowledge(made.claim(1))
    archiver.store.advance(500)
    result = archiver.run()
    assert not archiver.archived(), "it was purged"
    (gap,) = (each for each in result.gaps if each.is_queue)
    assert (gap.what, gap.after) == ("short", int(made.info().created_at))
    assert archiver.run().gaps == ()


@pytest.mark.parametrize("settings", [{"purge_after": 10_000}, {"archive": True}])
def test_what_was_lost_under_earlier_settings_is_said_to_be_missing(
    archiver: Archiver, settings: dict[str, Any]
) -> None:
    archiver.db.queue("done").update(purge_after=0)
    archiver.work()
    first = archiver.run()
    archiver.work()
    archiver.store.advance(500)
    assert archiver.db.queue("done").stats().done == 0, "it was purged"
    archiver.db.queue("done").update(**settings)
    second = archiver.run()
    (gap,) = (each for each in second.gaps if each.is_queue)
    assert (gap.what, gap.after, gap.dropped) == ("done", first.at, False)
    archiver.work()
    archiver.store.advance(500)
    assert not [each for each in archiver.run().gaps if each.is_queue]


def test_what_is_to_be_purged_is_kept_while_it_is_read(archiver: Archiver) -> None:
    archiver.work()
    archiver.run()
    archiver.work()
    archiver.store.advance(9_000)

    def late(step: str) -> None:
        if step == "files of queues":
            archiver.store.advance(2_000)

    result = archiver.run(late)
    lost = {row for (table, row), _ in (archiver.expected - archiver.archived()).items()
            if table == "queues"}  # fmt: skip
    assert not lost, "the queue keeps done messages for 10,000 s, and for its readers"
    # A leader of an earlier version would have purged them.
    assert [each.what for each in result.gaps if each.is_queue] == ["done"]
    archiver.store.advance(100)
    assert archiver.db.queue("done").stats().done == 0


def test_a_queue_that_was_made_anew_is_read_from_its_beginning(archiver: Archiver) -> None:
    archiver.work()
    archiver.run()
    archiver.db.queue("kept").drop()
    archiver.db.create_queue("kept", archive=True)
    made_at = int(archiver.db.queue("kept").info().created_at)
    archiver.work()
    (gap,) = archiver.run().gaps
    assert (gap.what, gap.dropped, gap.until) == ("kept", True, made_at)
    assert archiver.archived() == archiver.expected


def test_a_queue_that_was_dropped_leaves_a_gap(archiver: Archiver) -> None:
    """With it goes what no run has archived."""
    archiver.work()
    first = archiver.run()
    archiver.work()
    archiver.db.queue("kept").drop()
    second = archiver.run()
    assert second.gaps == (Gap("kept", first.at, second.at, is_queue=True, dropped=True),)
    assert "dropped" in second.gaps[0].reason
    assert archiver.run().gaps == ()
    assert latest(archiver.folder).gaps == list(second.gaps)


def test_a_queue_that_is_dropped_while_it_is_read_leaves_a_gap(archiver: Archiver) -> None:
    archiver.work()

    def drop(step: str) -> None:
        if step == "files of inboxes":
            archiver.db.queue("kept").drop()

    first = archiver.run(drop)
    assert [(each.what, each.dropped, each.until) for each in first.gaps] == [
        ("kept", True, first.at)
    ]
    second = archiver.run()
    assert second.gaps == (Gap("kept", first.at, second.at, is_queue=True, dropped=True),)
    (both,) = second.gaps_so_far
    assert (both.after, both.until) == (first.gaps[0].after, second.at)


def test_a_queue_in_which_nothing_ends_has_no_gaps(archiver: Archiver) -> None:
    archiver.db.queue("done").update(purge_after=0)
    archiver.work()
    archiver.run()
    for _ in range(5):
        archiver.store.advance(500)
        assert not [each for each in archiver.run().gaps if each.is_queue]
    archiver.work()
    archiver.store.advance(500)
    assert [each.what for each in archiver.run().gaps if each.is_queue] == ["done"]


def test_a_queue_that_was_made_between_two_runs_and_is_idle_has_no_gap(archiver: Archiver) -> None:
    archiver.run()
    archiver.db.create_queue("idle", purge_after=0)
    archiver.store.advance(500)
    assert not [each for each in archiver.run().gaps if each.is_queue]


def test_a_queue_that_is_made_and_dropped_while_others_are_read_leaves_no_gap(
    archiver: Archiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it had ended by the time up to which is read."""
    plan = Run.plan

    def planned(of: Run, *args: Any) -> Any:
        archiver.db.create_queue("short")
        return plan(of, *args)

    def drop(step: str) -> None:
        if step == "files of inboxes":
            archiver.db.queue("short").drop()

    monkeypatch.setattr(Run, "plan", planned)
    assert archiver.run(drop).gaps == ()
    monkeypatch.undo()
    (gap,) = archiver.run().gaps
    assert (gap.what, gap.dropped) == ("short", True)
    assert gap.after < gap.until


def test_a_queue_that_is_damaged_is_left_out_and_named_and_others_are_archived(
    tmp_path: Path,
) -> None:
    store = Store()
    archiver = Archiver(store, tmp_path / "archive")
    archiver.work()
    first = archiver.run()
    archiver.work()
    key = keys.queue_definitions_prefix(1) + b"kept"
    sound = store.engine.inner.get(key)
    assert sound is not None
    store.engine.inner.write({key: b"\x93\x01"}, sync=True)
    store.restart(after_seconds=2 * GC_TTL)
    archiver.work(("done",))
    second = archiver.run()
    ((name, why),) = second.damaged.items()
    assert (name, "is damaged" in why) == ("kept", True)
    assert not [each for each in second.gaps if each.is_queue]
    known = latest(archiver.folder).queues
    assert (known["kept"].until, known["done"].until) == (first.at, second.at)
    store.engine.inner.write({key: sound}, sync=True)  # as a backup is restored
    store.restart()
    third = archiver.run()
    assert (third.damaged, third.gaps) == ({}, ())
    missing = archiver.expected - archiver.archived()
    assert {table for table, _ in missing} <= {"inboxes"}, "whose history was not kept so long"
    store.engine.inner.write({key: b"\x93\x01"}, sync=True)
    store.restart()
    archiver.db.queue("kept").drop()
    (gap,) = archiver.run().gaps
    assert (gap.what, gap.after, gap.dropped) == ("kept", third.at, True)


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_a_run_whose_files_a_quicker_one_has_deleted_says_that_there_was_another(
    archiver: Archiver, is_overtaken: bool
) -> None:
    """They are of a run of the same number, and no manifest names them."""
    archiver.work()

    def fail(step: str) -> None:
        if step == "files of inboxes":
            if is_overtaken:
                archiver.run()
            raise FileNotFoundError("part-0.parquet")

    error = JobFailed if is_overtaken else FileNotFoundError
    with pytest.raises(error, match="another run" if is_overtaken else "part-0"):
        archiver.run(fail)
    archiver.run()
    assert archiver.archived() == archiver.expected


def test_a_run_whose_lists_were_given_up_by_quicker_ones_says_that_there_were_others(
    archiver: Archiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "FILES_MIN", 1)
    monkeypatch.setattr(run, "_day_in", lambda _: 0)  # all days are over
    archiver.work()
    archiver.run()
    before = latest(archiver.folder).lists

    def others(step: str) -> None:
        if step == "files of queues":
            for _ in range(2):
                archiver.work()
                archiver.run()
                archiver.store.advance(2000)  # what was replaced may be deleted
            archiver.run()
            there = {each.path for each in archiver.folder.files("lists")}
            assert not {each.path for each in before} & there

    with pytest.raises(JobFailed, match="another run"):
        archiver.run(others)
    assert {row for row, _ in archiver.archived().items()} <= set(archiver.expected)


@pytest.mark.parametrize("step", ["list", "manifest"])
def test_killed_before_files_are_listed_nothing_is_lost(
    archiver: Archiver, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "FILES_MIN", 1)
    monkeypatch.setattr(run, "_day_in", lambda _: 0)  # all days are over
    for _ in range(3):
        archiver.work()
        with pytest.raises(Killed):
            archiver.run(killer(step))
        assert archiver.seen() == archiver.expected
        archiver.work()
        archiver.run()
        assert archiver.archived() == archiver.expected
    manifest = latest(archiver.folder)
    assert manifest.lists
    named = {each.path for each in manifest.lists} | {each.path for each in manifest.dropped}
    assert {each.path for each in archiver.folder.files("lists")} <= named


def test_files_that_were_replaced_are_deleted_later(archiver: Archiver) -> None:
    for _ in range(3):
        archiver.work()
        result = archiver.run()
        archiver.store.advance(1)
    assert result.compacted == 9
    assert result.files == 3
    old = {each.path for each in latest(archiver.folder).dropped}
    assert len(old) == 9
    archiver.run()
    assert old <= {each.path for each in archiver.folder.files("files")}
    archiver.store.advance(2000)
    assert archiver.run().deleted == 9
    assert archiver.archived() == archiver.expected


@pytest.mark.parametrize("step", STEPS)
def test_the_store_keeps_what_no_manifest_has(archiver: Archiver, step: str) -> None:
    """Also what nobody could read any more otherwise: it is trimmed at once."""
    archiver.work()
    archiver.store.advance(2 * GC_TTL)
    with suppress(Killed):
        archiver.run(killer(step))
    archiver.work()
    archiver.store.advance(2 * GC_TTL)
    archiver.run()
    assert archiver.db.queue("kept").stats().archived == 0

    def of_queues(counted: Counter[tuple[str, str]]) -> Counter[str]:
        return Counter(
            {row: number for (table, row), number in counted.items() if table == "queues"}
        )

    assert of_queues(archiver.archived()) == of_queues(archiver.expected)


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0])
def test_a_time_that_is_none_is_refused_before_anything_is_done(
    seconds: float, tmp_path: Path
) -> None:
    nothing: Any = None
    for wrong in ({"keep": seconds}, {"grace": seconds}):
        with pytest.raises(Invalid, match="seconds"):
            archive(nothing, {}, str(tmp_path), **wrong)
    with pytest.raises(Invalid, match="hours"):
        report(nothing, {}, str(tmp_path), hours=seconds)
    assert not list(tmp_path.iterdir())

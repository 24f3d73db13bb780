"""A run of the archive that is killed before any of its steps, and is run again.

No message is lost or doubled. The work of Spark is done by hand here.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import postroom
import postroom.testing
from postroom.errors import Invalid
from postroom.kv import keys
from postroom.pipeline.jobs import archive, report
from postroom.pipeline.jobs.archive import manifest as manifests
from postroom.pipeline.jobs.archive import run
from postroom.pipeline.jobs.archive.newest import latest
from postroom.pipeline.jobs.job import JobFailed
from tests.client.stores import Store
from tests.pipeline.jobs.archiving import GC_TTL, Archiver, Killed, killer

STEPS = ["identity", "files of queues", "files of inboxes", "fewer files", "manifest", "number",
         "trimming", "tidying"]  # fmt: skip


def test_a_run_has_all_these_steps(archiver: Archiver) -> None:
    told: list[str] = []
    for _ in range(5):
        archiver.work()
        archiver.run(told.append)
        archiver.store.advance(2000)  # replaced files may be deleted
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


def test_the_archive_of_another_store_is_left_alone(archiver: Archiver) -> None:
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
    archiver.folder.delete(manifests.manifest_path(3))
    archiver.folder.delete(manifests.manifest_path(2))
    with pytest.raises(JobFailed, match="old copy"):
        archiver.run()


def test_a_copy_of_the_folder_from_before_the_last_run_is_left_alone(archiver: Archiver) -> None:
    """The records that the last run has trimmed are in the other folder only."""
    archiver.work()
    archiver.run()
    archiver.work()
    archiver.store.advance(2 * GC_TTL)
    assert archiver.run().trimmed
    archiver.folder.delete(manifests.manifest_path(2))
    with pytest.raises(JobFailed, match="old copy"):
        archiver.run()


def test_a_copy_of_the_store_is_another_store(archiver: Archiver) -> None:
    """Messages that ended in the one must not count as archived in the other."""
    archiver.work()
    archiver.run()
    archiver.run()
    runs = {each.query: each.batch for each in archiver.db.staging.read().queries}
    for query in runs:  # a store restored from an export between the two runs has this
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


def test_a_run_with_missing_files_deletes_no_message_from_the_store(archiver: Archiver) -> None:
    archiver.work()
    archiver.run()
    archiver.store.advance(2 * GC_TTL)
    archiver.folder.delete(latest(archiver.folder).files[0].path)
    with pytest.raises(JobFailed, match="cannot be found"):
        archiver.run()
    assert archiver.db.queue("kept").stats().archived == 3


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
    store.engine.inner.write({key: sound}, sync=True)  # a backup is restored so
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
    monkeypatch.setattr(manifests, "LIST_FILES_MIN", 1)
    monkeypatch.setattr(run, "_day_in", lambda _: 0)  # all days are over
    archiver.work()
    archiver.run()
    before = latest(archiver.folder).lists

    def others(step: str) -> None:
        if step == "files of queues":
            for _ in range(2):
                archiver.work()
                archiver.run()
                archiver.store.advance(2000)  # replaced files may be deleted
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
    monkeypatch.setattr(manifests, "LIST_FILES_MIN", 1)
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
    """They are trimmed at once where nobody else could read them any more, too."""
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

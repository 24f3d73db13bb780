"""Gaps that an archive tells: changes that the store did not keep until they were read."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.pipeline.jobs.archive.manifest import Gap
from postroom.pipeline.jobs.archive.newest import latest
from postroom.pipeline.jobs.archive.run import ArchiveRun
from tests.pipeline.jobs.archiving import Archiver


def test_history_that_the_store_did_not_keep_is_a_gap(archiver: Archiver) -> None:
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


def test_history_that_a_new_queue_did_not_keep_is_a_gap(archiver: Archiver) -> None:
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
def test_history_lost_under_earlier_settings_is_a_gap(
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


def test_messages_to_be_purged_are_kept_while_they_are_read(archiver: Archiver) -> None:
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
    archiver.store.advance(601)  # purging that was held back is tried again within ten minutes
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
    plan = ArchiveRun.plan

    def planned(of: ArchiveRun, *args: Any) -> Any:
        archiver.db.create_queue("short")
        return plan(of, *args)

    def drop(step: str) -> None:
        if step == "files of inboxes":
            archiver.db.queue("short").drop()

    monkeypatch.setattr(ArchiveRun, "plan", planned)
    assert archiver.run(drop).gaps == ()
    monkeypatch.undo()
    (gap,) = archiver.run().gaps
    assert (gap.what, gap.dropped) == ("short", True)
    assert gap.after < gap.until

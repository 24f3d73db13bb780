"""Restores to any time between two backups, by the trail."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

import postroom
from postroom import limits
from postroom.backup import restore, taking, verify
from postroom.backup.blocks import HEADING, Entries, block_of, packed
from postroom.backup.chain import Chain
from postroom.backup.folder import BackupFolder, PartFile
from postroom.backup.manifest import BackupPart
from postroom.backup.progress import silent
from postroom.backup.verifying import recount
from postroom.client.sync_parts import Restore
from postroom.client.trail import read_trail
from postroom.errors import Invalid, Unavailable
from postroom.kv import keys
from postroom.kv.clock import LOGICAL_BITS
from postroom.messaging.trail import entry_name
from tests.backup.places import Found, entries, forge, is_sound, restored, view
from tests.backup.test_killed import Killed, killed_after
from tests.client.images import Workload

Moment = tuple[datetime, Found, dict[str, Any]]


def moment(db: postroom.Database) -> Moment:
    """Return a time, and the store as it is then and for a millisecond more."""
    while True:
        found = entries(db), view(db)
        stamp = int(db.now()) >> LOGICAL_BITS
        while int(db.now()) >> LOGICAL_BITS == stamp:
            pass
        if stamp % 1000 and entries(db) == found[0]:
            return datetime.fromtimestamp(stamp / 1000, UTC), *found


def history(folder: Path, seed: int, db: postroom.Database, acts: int) -> list[Moment]:
    """Use a store at random, with backups at random moments; return some other moments."""
    random = Random(seed)
    work = Workload(db, seed, delays=(None, 3600.0))
    found, taken = list[Moment](), 0
    for number in range(acts):
        for _ in range(random.randrange(6)):
            work.step()
        if random.random() < 0.1:
            db.delete_range(b"b", b"c")
        if random.random() < 0.3 or number in {0, acts - 1}:
            since = folder / f"{taken - 1}" if taken else None
            db.backup(folder / f"{taken}", since=since, trail=True)
            taken += 1
        else:
            found.append(moment(db))
    shutil.move(folder / f"{taken - 1}", folder / "last")
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_store_is_restored_as_it_was_at_any_time_between_two_backups(
    seed: int, tmp_path: Path
) -> None:
    with postroom.open(":memory:") as db:
        moments = history(tmp_path, seed, db, acts=25)
    verify(tmp_path / "last")
    for at, found, _ in moments:
        assert image(tmp_path / "last", at) == found, f"at {at.isoformat()}"
    at, found, seen = Random(seed).choice(moments)
    assert restored(tmp_path / "last", at=at) == (found, seen), f"at {at.isoformat()}"


def image(folder: Path, at: datetime) -> Found:
    """Return the entries that a restore to a time would make."""
    chain = Chain.of(BackupFolder(folder)).until(at)
    found = [
        (name, value or b"")
        for number in range(len(chain.last.parts))
        for names, stored in chain.read(number)
        for name, value in zip(names, stored, strict=True)
    ]
    assert recount(chain, "checking", silent).wrong == []
    return found


# --- times that cannot be had --------------------------------------------------------------------


def tick(db: postroom.Database) -> datetime:
    """Return a time after all that is committed, and before all that will be."""
    return moment(db)[0]


@pytest.fixture
def empty() -> Iterator[postroom.Database]:
    """Yield an empty store; nothing may have changed it at the end."""
    with postroom.open(":memory:") as db:
        yield db
        assert db.images.read().state == ""


def test_times_to_which_no_trail_leads_are_refused(
    tmp_path: Path, empty: postroom.Database
) -> None:
    with postroom.open(":memory:") as db:
        before = tick(db)
        db.backup(tmp_path / "full")
        untold = tick(db)
        db.backup(tmp_path / "one", since=tmp_path / "full", trail=True)
        told = tick(db)
        db.backup(tmp_path / "two", since=tmp_path / "one")
        db.backup(tmp_path / "three", since=tmp_path / "two", trail=True)
        later = tick(db)
    assert [bool(each.trail) for each in verify(tmp_path / "three")] == [False, False, False, True]
    for at in (
        before, untold, told, later, later + timedelta(days=9999),
        datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC),
    ):  # fmt: skip
        with pytest.raises(Invalid, match=r"no trail leads there; nothing was changed"):
            restore(empty, tmp_path / "three", at=at)
    with pytest.raises(ValueError, match="aware"):
        restore(empty, tmp_path / "three", at=datetime(2026, 1, 1))  # noqa: DTZ001 (refused)


def test_a_trail_that_has_ended_leads_up_to_its_end_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: postroom.Database
) -> None:
    monkeypatch.setattr(limits, "TRAIL_WRITES_MAX", 20)
    with postroom.open(":memory:") as db:
        db.backup(tmp_path / "full", trail=True)
        db.put(b"a", b"1")
        first = tick(db)
        with db.begin() as tx:
            for number in range(30):
                tx.put(b"%d" % number, b"1")
        second = tick(db)
        db.backup(tmp_path / "one", since=tmp_path / "full", trail=True)
        db.put(b"a", b"2")
        third = tick(db)
        db.put(b"a", b"3")
        db.backup(tmp_path / "two", since=tmp_path / "one", trail=True)
    _, one, two = verify(tmp_path / "two")
    assert one.since_timestamp < one.trail_until < one.timestamp
    assert two.trail_until == two.timestamp
    for at, value in ((first, b"1"), (third, b"2")):
        with postroom.open(":memory:") as other:
            restore(other, tmp_path / "two", at=at)
            assert other.get(b"a") == value
    with pytest.raises(Invalid, match="no trail leads there"):
        restore(empty, tmp_path / "two", at=second)


def test_a_store_without_its_trail_keeps_no_more_of_it(tmp_path: Path) -> None:
    with postroom.open(":memory:") as db:
        db.backup(tmp_path / "full", trail=True)
        db.put(b"a", b"1")
        db.backup(tmp_path / "one", since=tmp_path / "full", trail=False)
        assert not db.wait(read_trail(db.core.sender)).since
    assert not verify(tmp_path / "one")[-1].trail


def test_a_store_of_several_ranges_takes_no_trail(tmp_path: Path) -> None:
    with postroom.open(":memory:") as db:
        db.backup(tmp_path / "full", trail=True)
        db.put(b"a", b"1")
        db.split(b"m")
        with pytest.raises(Invalid, match=r"take increments without one"):
            db.backup(tmp_path / "one", since=tmp_path / "full", trail=True)
        assert not is_sound(tmp_path / "one")
        db.backup(tmp_path / "one", since=tmp_path / "full", trail=False)
    assert not verify(tmp_path / "one")[-1].trail


def test_a_store_that_keeps_a_trail_takes_no_backup(tmp_path: Path) -> None:
    with postroom.open(":memory:") as db:
        db.backup(tmp_path / "full", trail=True)
        with pytest.raises(Invalid, match="a trail until 'postroom backup --no-trail'"):
            restore(db, tmp_path / "full")
        db.backup(tmp_path / "none", trail=False)
        restore(db, tmp_path / "full")


# --- backups that are killed, damaged or made up -------------------------------------------------


@pytest.fixture
def chain(tmp_path: Path) -> tuple[Path, datetime]:
    """Return the folder of an increment with a trail, and a time before it."""
    with postroom.open(":memory:") as db:
        db.put(b"a", b"0")
        db.backup(tmp_path / "full", trail=True)
        db.put(b"a", b"1")
        with db.begin() as tx:
            tx.enqueue_message(b"b", b"hello")
        at = tick(db)
        db.put(b"a", b"2")
        db.backup(tmp_path / "one", since=tmp_path / "full", trail=True)
    return tmp_path / "one", at


def test_a_killed_backup_with_a_trail_is_made_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [(PartFile, "__init__", 3), (PartFile, "end", 2), (taking.StoreTrail, "end", 0)]
    with postroom.open(":memory:") as db:
        db.put(b"a", b"0")
        db.backup(tmp_path / "full", trail=True)
        db.put(b"a", b"1")
        at = tick(db)
        db.put(b"a", b"2")
        for owner, name, times in steps:
            with monkeypatch.context() as patched:
                patched.setattr(owner, name, killed_after(getattr(owner, name), times))
                with pytest.raises(Killed):
                    db.backup(tmp_path / "one", since=tmp_path / "full", trail=True)
            assert is_sound(tmp_path / "one") == (owner is taking.StoreTrail)
        assert db.wait(read_trail(db.core.sender)).since < int(db.now())
        done = db.backup(tmp_path / "one", since=tmp_path / "full", trail=True)
        assert done.done_before
        assert db.wait(read_trail(db.core.sender)).since == int(done.timestamp)
    with postroom.open(":memory:") as other:
        restore(other, tmp_path / "one", at=at)
        assert other.get(b"a") == b"1"


def test_a_killed_restore_of_a_time_goes_on(
    chain: tuple[Path, datetime], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, at = chain
    with postroom.open(tmp_path / "store") as db:
        with monkeypatch.context() as patched:
            patched.setattr(Restore, "end_part", killed_after(Restore.end_part, 1))
            with pytest.raises(Killed):
                restore(db, folder, at=at)
        with pytest.raises(Unavailable, match="being restored"):
            db.get(b"a")
        with pytest.raises(Invalid, match="another export is restored here"):
            restore(db, folder)
    with postroom.open(tmp_path / "store") as db:
        assert not restore(db, folder, at=at).done_before
        assert db.get(b"a") == b"1"
        assert restore(db, folder, at=at).done_before


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("change", [cut, Path.unlink], ids=["cut", "gone"])
def test_a_damaged_trail_is_refused_by_name_and_backups_are_restored_without_it(
    change: Callable[[Path], None], chain: tuple[Path, datetime], empty: postroom.Database
) -> None:
    folder, at = chain
    change(folder / "trail-00001")
    with pytest.raises(Invalid, match="trail-00001 is"):
        restore(empty, folder, at=at)
    with pytest.raises(Invalid, match="trail-00001 is"):
        verify(folder)
    assert restored(folder)[1]["data"] == [(b"a", b"2")]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda each: {"trail": each.trail[:1]}, "other parts"),
        (lambda each: {"trail": ()}, "other parts"),
        (lambda each: {"trail_until": each.since_timestamp}, "not of the time since"),
        (lambda each: {"trail_until": each.timestamp + 1}, "not of the time since"),
    ],
)
def test_a_forged_trail_is_refused(
    change: Callable[[Any], dict[str, Any]], why: str, chain: tuple[Path, datetime]
) -> None:
    folder, _ = chain
    forge(folder, **change(BackupFolder(folder).complete()))
    with pytest.raises(Invalid, match=why):
        verify(folder)


def made_up(folder: Path, number: int, entries: Entries) -> None:
    """Write a file in place of one of a trail, and a manifest for it."""
    content = HEADING + packed(block_of(entries))
    (folder / f"trail-{number:05d}").write_bytes(content)
    files = list(BackupFolder(folder).complete().trail)
    files[number] = BackupPart(
        files[number].start, files[number].end, len(entries[0]), len(content),
        hashlib.sha256(content).hexdigest(),
    )  # fmt: skip
    forge(folder, trail=tuple(files))


def test_an_entry_that_no_trail_has_is_refused(
    chain: tuple[Path, datetime], empty: postroom.Database
) -> None:
    folder, at = chain
    when = BackupFolder(folder).complete().since_timestamp + 1
    head, value = keys.head_key(b"a"), b"\x01" + keys.u64(when) + b"9"
    later = b"\x01" + keys.u64((1 << 63) - 1) + b"9"
    for name, stored, why in (
        (b"short", value, "it is no name of a trail"),
        (head + keys.u64(when), value, "it is no name of a trail"),
        (entry_name(b"\x07x", when), value, "it belongs to no table"),
        (entry_name(head, when), b"", "it is no value"),
        (entry_name(head, when), later, "it is later than the image"),
    ):
        made_up(folder, 1, ([name], [stored]))
        with pytest.raises(Invalid, match=why):
            restore(empty, folder, at=at)
        with pytest.raises(Invalid, match=r"damaged|cannot be|does not lead"):
            verify(folder)


def test_a_trail_that_leads_elsewhere_is_refused(
    chain: tuple[Path, datetime], empty: postroom.Database
) -> None:
    folder, at = chain
    ((names, stored),) = BackupFolder(folder).read("trail-00001")
    left = [number for number, name in enumerate(names) if name[:1] != keys.MAIL]
    assert len(left) < len(names)
    made_up(folder, 1, ([names[number] for number in left], [stored[number] for number in left]))
    with pytest.raises(Invalid, match=r"is not what the manifest tells: .*inbox"):
        restore(empty, folder, at=at)
    with pytest.raises(Invalid, match="does not lead from the backup before it to this one"):
        verify(folder)
    with postroom.open(":memory:") as other:
        assert restore(other, folder).tables

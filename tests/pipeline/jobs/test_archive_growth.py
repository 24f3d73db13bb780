"""The size of what an archive writes in each run: gaps that are one, files that lists name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random  # noqa: TID251 - seeded

import msgspec
import pytest

from postroom.errors import Invalid
from postroom.pipeline.jobs.archive import gaps, newest
from postroom.pipeline.jobs.archive import manifest as manifests
from postroom.pipeline.jobs.archive.folders import LocalArchiveFolder
from postroom.pipeline.jobs.archive.manifest import Gap, Kept
from postroom.pipeline.jobs.job import JobFailed

# --- gaps -----------------------------------------------------------------------------------------


def test_gaps_of_one_queue_that_touch_are_one() -> None:
    mail = [Gap("mail", 10, 20, is_queue=True), Gap("mail", 20, 30, is_queue=True)]
    inboxes = [Gap("inboxes", 5, 9), Gap("inboxes", 7, 8), Gap("inboxes", 12, 40)]
    of_that_name = Gap("inboxes", 9, 12, is_queue=True)
    dropped = Gap("mail", 30, 35, is_queue=True, dropped=True)
    assert gaps.merged([*mail, *inboxes, of_that_name, dropped]) == [
        Gap("inboxes", 5, 9),
        of_that_name,
        Gap("mail", 10, 30, is_queue=True),
        dropped,
        Gap("inboxes", 12, 40),
    ]


def test_many_gaps_of_a_queue_become_few_that_cover_all() -> None:
    random, told, every, at = Random(0), [], [], 0
    for _ in range(10 * gaps.OF_ONE_MAX):
        at += random.randrange(1, 100)
        every.append(Gap("mail", at, at + 10, is_queue=True))
        told = gaps.merged([*told, every[-1]])
        at += 10
        assert len(told) <= gaps.OF_ONE_MAX
    for gap in every:
        assert any(each.after <= gap.after and gap.until <= each.until for each in told)
    assert told[-1].until == every[-1].until
    assert told[0].after == every[0].after


def test_gaps_of_many_dropped_queues_become_few_that_cover_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gaps, "OF_ALL_MAX", 400)
    told: list[Gap] = []
    every = [
        Gap(f"q{n}" if n % 9 else "inboxes", 5 * n, 5 * n + 2 + n % 7, n % 9 > 0, n % 3 > 0)
        for n in range(2_000)
    ]
    for first in range(0, len(every), 50):
        told = gaps.merged([*told, *every[first : first + 50]])
        assert len(told) <= 400
    for gap in every:
        assert any(
            each.after <= gap.after and gap.until <= each.until
            and each.what in {gap.what, "" if gap.is_queue else gap.what}
            and (each.is_queue, each.dropped) == (gap.is_queue, gap.dropped)
            for each in told
        ), gap  # fmt: skip
    assert every[-1] in told
    assert {each.place for each in told if not each.what} == {"other queues"}


# --- lists ----------------------------------------------------------------------------------------


class Archive:
    """The folder of an archive, and runs of which each adds a file for each queue, by hand."""

    QUEUES = 20

    def __init__(self, root: Path) -> None:
        self.folder = LocalArchiveFolder(root)
        self.files: dict[str, Kept] = {}
        self.written = 0

    def run(self, day: int, files: Iterator[Kept], replaced: tuple[Kept, ...] = ()) -> int:
        """Do the run of a day; return the size of its manifest."""
        before = newest.latest(self.folder)
        number = before.number + 1
        new, gone = list(files), {each.path for each in replaced}
        self.files |= {each.path: each for each in new}
        self.files = {path: each for path, each in self.files.items() if path not in gone}
        manifest = msgspec.structs.replace(
            before, number=number, at=number,
            files=[each for each in [*before.files, *new] if each.path not in gone],
            dropped=manifests.still_dropped(before, number - 20),
        )  # fmt: skip
        _, stored, made = manifests.divided(
            manifest, manifests.read_lists(self.folder, manifest),
            lambda each: int(each.part) < day - 1, f"{number}-ab",
        )  # fmt: skip
        for path, few in made.items():
            assert self.folder.put_new(path, manifests.encode(few))
            self.written += 1
        content = manifests.encode(stored)
        assert self.folder.put_new(manifests.manifest_path(number), content)
        every = [each.path for each in self.folder.files("")]
        for path in manifests.useless_files(newest.latest(self.folder), every):
            self.folder.delete(path)
        return len(content)

    def day(self, day: int) -> int:
        """Do the run of a day with a file for each queue."""
        return self.run(day, (kept(day, queue) for queue in range(self.QUEUES)))

    def found(self) -> dict[str, Kept]:
        return {each.path: each for each in newest.latest(self.folder).files}


def kept(day: int, queue: int) -> Kept:
    return Kept(f"files/{day}-ab/queues/1/q={queue}/part.parquet", "queues", f"{day}", 5, 10)


def test_a_manifest_does_not_grow_with_the_years(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    sizes = [archive.day(day) for day in range(1, 366)]
    assert len(archive.found()) == 365 * Archive.QUEUES
    assert archive.found() == archive.files
    assert max(sizes[180:]) < 1.1 * max(sizes[:180]) < 200_000
    there = [each.path for each in archive.folder.files(manifests.LISTS)]
    assert archive.written == len(there) <= len(archive.files) // manifests.LIST_FILES_MIN


def test_a_list_is_given_up_when_one_of_its_files_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "LIST_FILES_MIN", 30)
    archive = Archive(tmp_path)
    for day in range(1, 11):
        archive.day(day)
    before = newest.latest(archive.folder).lists
    old = kept(2, 3)
    archive.run(11, iter([Kept("files/11-ab/queues/1/new", "queues", "2", 6, 10)]), (old,))
    after = newest.latest(archive.folder)
    (gone,) = set(before) - set(after.lists)
    assert gone.path in {each.path for each in archive.folder.files(manifests.LISTS)}, "for readers"
    assert archive.found() == archive.files
    for day in range(12, 40):
        archive.day(day)
    assert gone.path not in {each.path for each in archive.folder.files(manifests.LISTS)}
    assert archive.found() == archive.files


def test_a_list_that_is_damaged_or_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "LIST_FILES_MIN", 30)
    archive = Archive(tmp_path)
    for day in range(1, 7):
        archive.day(day)
    (path, *_) = [each.path for each in newest.latest(archive.folder).lists]
    for content in (b"[]", b"no"):
        (tmp_path / path).write_bytes(content)
        with pytest.raises(Invalid, match=path):
            newest.latest(archive.folder)
    (tmp_path / path).unlink()
    with pytest.raises(JobFailed, match="lists"):
        newest.latest(archive.folder)

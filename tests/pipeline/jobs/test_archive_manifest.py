"""Consequences of a manifest: which files count, which go, which become fewer."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from postroom.errors import Invalid
from postroom.pipeline.jobs.archive import manifest as manifests
from postroom.pipeline.jobs.archive.folders import HadoopFolder, LocalArchiveFolder
from postroom.pipeline.jobs.archive.manifest import (
    ArchiveManifest,
    Dropped,
    Gap,
    Kept,
    Known,
    Listed,
)

DAY = "q=mail-1f/day=2026-11-22"


def kept(number: int, part: str = DAY, *, size: int = 10, table: str = "queues") -> Kept:
    return Kept(f"files/{number}-ab/{table}/1/{part}/part-{number}.parquet", table, part, 5, size)


def test_a_manifest_is_read_as_it_was_written() -> None:
    made = ArchiveManifest(
        7, "ab", 1 << 62, {"mail": Known(3, 9)}, 8, [Gap("mail", 1, 2, is_queue=True)],
        [kept(1)], [Dropped("files/1-ab/x", 5)],
        lists=[Listed("lists/1-ab/1.json", 600)],
    )  # fmt: skip
    assert manifests.decode(manifests.encode(made)) == made
    assert made.until("mail", 3) == 9
    assert made.until("mail", 4) == 0, "it was made anew"
    assert made.until("other", 3) == 0


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"number": "x"}', b'{"format": 3}'])
def test_a_file_that_is_no_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(Invalid):
        manifests.decode(content)


def test_numbers_are_in_names() -> None:
    paths = ["manifests/00000009.json", "manifests/00000010.json", "manifests/x.json",
             "manifests/00000011.json.77.draft", "manifests/12.json"]  # fmt: skip
    assert manifests.newest(paths) == 10
    assert manifests.newest([]) == 0
    assert manifests.run_in("files/12-ab/queues/1/x") == 12
    assert manifests.run_in("files/other") == manifests.run_in("12-ab/x") == 0


def test_only_files_left_by_killed_runs_are_deleted() -> None:
    counts, dropped = kept(3), "files/2-ab/queues/1/old.parquet"
    manifest = ArchiveManifest(30, files=[counts], dropped=[Dropped(dropped, 1)])
    left = ["files/30-cd/queues/1/part.parquet", "files/3-ab/queues/1/_SUCCESS",
            "manifests/00000010.json", "manifests/00000030.json.9.draft"]  # fmt: skip
    stays = [
        counts.path, counts.path.replace("part-", ".part-") + ".crc", dropped,
        "manifests/00000030.json", "manifests/00000011.json",
        "files/31-cd/queues/1/part.parquet", "manifests/00000031.json.9.draft",  # those at work
        "files/notes.txt", "README",
    ]  # fmt: skip
    assert manifests.useless_files(manifest, [*stays, *left]) == left


def test_small_files_become_fewer_when_there_are_many_or_the_day_is_over() -> None:
    other = "q=other-1f/day=2026-11-20"
    files = [kept(number) for number in range(4)] + [kept(5, size=1000)]
    files += [kept(6, other), kept(7, other), kept(8, table="inboxes")]
    closed = {other: True}

    def chosen(files_max: int) -> list[Kept]:
        return manifests.files_to_compact(files, files_max=files_max, size_small=100, closed=closed)

    assert chosen(4) == files[5:7]
    assert chosen(3) == files[:4] + files[5:7]


def test_files_that_were_replaced_stay_for_those_who_read_them() -> None:
    old, other, new = [kept(1), kept(2)], kept(3), kept(4)
    manifest = ArchiveManifest(4, files=[*old, other], dropped=[Dropped("a", 10), Dropped("b", 20)])
    files, dropped = manifests.replaced(manifest, old, [new], at=30)
    assert files == [other, new]
    assert [each.path for each in dropped] == ["a", "b", old[0].path, old[1].path]
    assert manifests.still_dropped(manifest, 20) == [Dropped("b", 20)]


# --- the folder -----------------------------------------------------------------------------------


def test_a_file_appears_as_a_whole_and_never_over_another_one(tmp_path: Path) -> None:
    folder = LocalArchiveFolder(tmp_path / "not yet" / "there")
    assert folder.files("manifests") == []
    assert folder.put_new("manifests/1.json", b"one")
    assert not folder.put_new("manifests/1.json", b"two")
    assert folder.read("manifests/1.json") == b"one"
    assert [tuple(each) for each in folder.files("")] == [("manifests/1.json", 3)]
    folder.sync(["manifests/1.json"])
    folder.delete("manifests/1.json")
    folder.delete("manifests/1.json")
    assert folder.files("") == []
    assert not (tmp_path / "not yet" / "there" / "manifests").exists()


def test_each_writer_of_a_file_has_a_draft_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a share, processes of two machines have the same number: 1, in containers."""
    link, others = os.link, [LocalArchiveFolder(tmp_path)]

    def slowly(source: Path, target: Path) -> None:
        if others:
            assert others.pop().put_new("manifests/1.json", b"the other one")
        link(source, target)

    monkeypatch.setattr(os, "link", slowly)
    assert not LocalArchiveFolder(tmp_path).put_new("manifests/1.json", b"this one")
    assert (tmp_path / "manifests" / "1.json").read_bytes() == b"the other one"


def test_files_that_vanish_while_they_are_listed_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts of another run vanish, and files that it deletes."""
    folder = LocalArchiveFolder(tmp_path)
    names = [f"manifests/{number}.json" for number in range(3)]
    for each in names:
        folder.put_new(each, b"x")
    look = Path.stat

    def looked(place: Path, **options: Any) -> os.stat_result:
        if place.name == "0.json":
            place.unlink()
        found = look(place, **options)
        if place.name == "2.json":
            place.unlink()
        return found

    monkeypatch.setattr(Path, "stat", looked)
    assert names[1] in [each.path for each in folder.files("manifests")]


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it were, a new archive would begin in it."""

    def scanned(place: Any) -> Any:
        raise PermissionError(place)

    monkeypatch.setattr(os, "scandir", scanned)
    with pytest.raises(PermissionError):
        LocalArchiveFolder(tmp_path).files("")


def test_a_file_that_is_not_there_is_missed_elsewhere_as_it_is_here(tmp_path: Path) -> None:
    """A reader of an archive elsewhere looks again, too, for files that others have replaced."""

    class System:
        there = False

        def makeQualified(self, _: Any) -> Any:  # noqa: N802 - Hadoop's name
            return SimpleNamespace(toUri=lambda: SimpleNamespace(getPath=lambda: "/x"))

        def open(self, _: Any) -> Any:
            raise Py4JError("java.io.FileNotFoundException, or another one")

        def exists(self, _: Any) -> bool:
            return self.there

    system = System()
    path = SimpleNamespace(getFileSystem=lambda _: system)
    hadoop = SimpleNamespace(fs=SimpleNamespace(Path=lambda _: path))
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop)))
    for folder in (LocalArchiveFolder(tmp_path), HadoopFolder(jvm, None, "hdfs:///x")):
        with pytest.raises(FileNotFoundError, match=r"lists/1\.json"):
            folder.read("lists/1.json")
    system.there = True
    with pytest.raises(Py4JError):
        HadoopFolder(jvm, None, "hdfs:///x").read("lists/1.json")

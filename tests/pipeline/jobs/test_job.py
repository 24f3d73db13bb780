"""Features that all jobs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.errors import Invalid
from postroom.pipeline.jobs.job import database


@pytest.mark.parametrize("store", [{}, {"path": "a", "connect": "b"}, {"path": "a", "wrong": "b"}])
def test_a_store_that_cannot_be_is_refused(spark: Any, store: dict[str, str]) -> None:
    with pytest.raises(Invalid), database(spark, store):
        pass


def test_a_folder_is_opened_once_for_jobs_and_data_frames(spark: Any, tmp_path: Path) -> None:
    store = {"path": str(tmp_path / "shop")}
    with postroom.open(store["path"]) as db:
        db.put(b"a", b"1")
    frame = spark.read.format("postroom").options(**store).load()
    with database(spark, store) as db:
        assert db.get(b"a") == b"1"
        assert frame.count() == 1

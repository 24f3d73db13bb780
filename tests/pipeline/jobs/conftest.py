"""Fixtures of several tests of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import postroom.testing
from tests.pipeline.jobs.archiving import Archiver


@pytest.fixture
def archiver(tmp_path: Path) -> Iterator[Archiver]:
    with postroom.testing.Store() as store:
        yield Archiver(store, tmp_path / "archive")

"""Fixtures that tests of the log and the state share."""

from __future__ import annotations

import pytest

from postroom.kv import log_writer
from tests.kv.book import SEGMENT_BYTES


@pytest.fixture
def long_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give all segments full length, those that a write waits for included."""
    monkeypatch.setattr(log_writer, "SHORT_BYTES_MIN", SEGMENT_BYTES)

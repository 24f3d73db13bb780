"""What tests of the log and the state have in common."""

from __future__ import annotations

import pytest

from postroom.kv import log_writer
from tests.kv.book import SEGMENT_BYTES


@pytest.fixture
def long_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the first segment of a log, and those that somebody waits for, have full length."""
    monkeypatch.setattr(log_writer, "SHORT_BYTES_MIN", SEGMENT_BYTES)

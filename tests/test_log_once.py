"""Lines that are logged once, though they go on; and what others cannot write into the log."""

from __future__ import annotations

import logging

import pytest

from postroom.log_once import (
    BURST_LINES,
    BURST_SECONDS,
    KNOWN_AT_ONCE,
    QUIET_SECONDS,
    SAY_SECONDS_MIN,
    LogChanges,
    LogOnce,
    shown,
)

log = logging.getLogger("test")


def test_a_spell_begins_once_and_again_after_a_quiet_time() -> None:
    once = LogOnce()
    assert once.begins("a", 0.0)
    assert not once.begins("a", QUIET_SECONDS)
    assert not once.begins("a", 2 * QUIET_SECONDS)
    assert once.begins("b", 2 * QUIET_SECONDS)
    assert once.begins("a", 4 * QUIET_SECONDS)


def test_the_memory_of_recent_events_is_limited() -> None:
    once = LogOnce()
    for number in range(2 * KNOWN_AT_ONCE):
        assert once.begins(number, 0.0)
    assert len(once._last) == KNOWN_AT_ONCE
    assert once.begins(("host", "x" * 1_000_000), 0.0)
    assert max(len(str(what)) for what in once._last) < 1000


def test_varying_events_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    once = LogOnce()
    for number in range(1000):
        once.log(log, number, 1.0, "line %d", number)
    once.log(log, "later", 1.0 + 2 * BURST_SECONDS, "line")
    assert len(caplog.records) == BURST_LINES + 2
    assert caplog.messages[-2] == f"{1000 - BURST_LINES} more lines of this kind left out"


def test_lines_cannot_be_forged(caplog: pytest.LogCaptureFixture) -> None:
    forged = "x\n2026-01-01 CRITICAL all data is lost\x1b[2J\r\u2028\x85\u202e\ud800"
    LogOnce().log(log, "a", 0.0, "said: %s, %s", forged, ValueError(forged))
    (line,) = caplog.messages
    assert line.isprintable()
    assert "x\\n2026" in line
    assert "\\x1b[2J\\r\\u2028\\x85\\u202e\\ud800" in line


def test_a_long_text_is_shortened_before_it_is_spelled_out() -> None:
    assert shown("short") == "short"
    assert shown("x" * 20_000_000) == "x" * 200 + "... (20000000 characters)"
    assert len(shown(bytes(20_000_000))) < 1000
    assert shown("\n" * 300, 3) == "\\n\\n\\n... (300 characters)"


def test_a_line_that_keeps_changing_is_logged_less_and_less_often() -> None:
    now = 0.0
    changes = LogChanges(lambda: now)
    assert changes.is_news("a")
    now = 2 * SAY_SECONDS_MIN
    assert not changes.is_news("a")
    assert changes.is_news("b")
    now += 1.5 * SAY_SECONDS_MIN
    assert not changes.is_news("c")

"""Failures of Spark are told in one line."""

from __future__ import annotations

import pytest

from postroom.pipeline.jobs.job import in_a_line

TASK = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
  File "reading.py", line 77, in read
postroom.errors.SnapshotTooOld: versions before 9 have been collected: load anew

Driver stacktrace:
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TASK, "versions before 9 have been collected: load anew"),
        (
            "[PATH_NOT_FOUND] Path does not exist: x\nat org.apache",
            "Spark: [PATH_NOT_FOUND] Path does not exist: x",
        ),
        (
            "An error occurred while calling o1.x.\n: java.io.IOException: full\n\tat x",
            "Spark: java.io.IOException: full",
        ),
        (
            "\n[PARSE_SYNTAX_ERROR] Syntax error\n\n== SQL",
            "Spark: [PARSE_SYNTAX_ERROR] Syntax error",
        ),
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed to commit: postroom.errors.Invalid: no queue\n x",
            "no queue",
        ),
        ("", "Spark has failed, and does not say why"),
    ],
)
def test_one_line(text: str, line: str) -> None:
    assert in_a_line(text) == line

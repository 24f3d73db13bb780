"""A little chaos with Spark, whenever all tests run; ``make chaos-spark`` has more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.chaos.runs import LOCAL, Run


@pytest.mark.timeout(900)
def test_a_stream_whose_driver_is_killed(tmp_path: Path) -> None:
    """Its partitions are others after the restart; a worker is killed before that."""
    chaos = Run(3, tmp_path, "stream", LOCAL, rows=200, deaths=1, strikes=["worker"])
    try:
        chaos.run()
    except BaseException:
        print(*chaos.log, sep="\n")  # noqa: T201
        raise
    assert "stream: dead: driver" in chaos.log

"""A little chaos with Spark, whenever all tests run; ``make chaos-spark`` has more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.chaos.runs import LOCAL, Run


@pytest.mark.timeout(900)
def test_a_stream_whose_driver_is_killed_while_ranges_split(tmp_path: Path) -> None:
    """Its partitions are others after the restart; a worker is killed before that."""
    chaos = Run(3, tmp_path, "stream", LOCAL, rows=200, deaths=1, strikes=["worker"], splits=2)
    try:
        chaos.run()
    except BaseException:
        print(*chaos.log, sep="\n")  # noqa: T201
        raise
    assert "stream: dead: driver" in chaos.log


@pytest.mark.timeout(900)
def test_a_stream_whose_ranges_split_while_its_driver_and_its_workers_are_killed(
    tmp_path: Path,
) -> None:
    chaos = Run(5, tmp_path, "follow", LOCAL, rows=200, deaths=1, strikes=["worker"], splits=3)
    try:
        chaos.run()
    except BaseException:
        print(*chaos.log, sep="\n")  # noqa: T201
        raise
    assert "follow: dead: driver" in chaos.log
    assert sum("begins at" in each for each in chaos.log) == 9

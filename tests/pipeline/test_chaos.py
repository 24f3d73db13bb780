"""Some chaos with Spark, whenever all tests run; ``make chaos-spark`` has more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.chaos.runs import LOCAL, Run


@pytest.mark.parametrize("seed", [3])
def test_a_stream_whose_driver_is_killed(tmp_path: Path, seed: int) -> None:
    """Its partitions are others after the restart; a worker is killed before that."""
    chaos = Run(seed, tmp_path, "stream", LOCAL, rows=400, deaths=1)
    try:
        chaos.run()
    except BaseException:
        print(*chaos.log, sep="\n")  # noqa: T201
        raise
    assert {"stream: dead: worker", "stream: dead: driver"} <= set(chaos.log)

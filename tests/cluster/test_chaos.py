"""Some chaos, whenever all tests run; ``make chaos`` has more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.chaos import Chaos, repeat

SECONDS = 8.0


@pytest.mark.parametrize("seed", [14, 28])
def test_chaos(tmp_path: Path, seed: int) -> None:
    chaos = Chaos(seed, tmp_path, SECONDS)
    try:
        chaos.run()
    except BaseException:
        print(*chaos.log, f"once more: {repeat(seed, SECONDS)}", sep="\n")  # noqa: T201
        raise

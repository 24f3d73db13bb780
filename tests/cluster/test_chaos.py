"""A little chaos, whenever all tests run; ``make chaos`` has more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.chaos import Chaos, Report, repeat
from tests.cluster.queue_work import BURST, MAX_RATE, QueueWork, check_rate

SECONDS = 8.0
CALM_SECONDS = 4.0


def run(chaos: Chaos, how_to_repeat: str) -> Report:
    try:
        return chaos.run()
    except BaseException:
        print(*chaos.log, f"once more: {how_to_repeat}", sep="\n")  # noqa: T201
        raise


@pytest.mark.parametrize("seed", [14, 28])
def test_chaos(tmp_path: Path, seed: int) -> None:
    run(Chaos(seed, tmp_path, SECONDS), repeat(seed, SECONDS))


def test_queues_in_chaos(tmp_path: Path) -> None:
    chaos = Chaos(2, tmp_path, SECONDS, ["kill", "pause", "stop", "leave"], with_queues=True)
    chaos.workloads = [each for each in chaos.workloads if isinstance(each, QueueWork)]
    assert run(chaos, "this test").seen["jobs"]


def test_without_a_fault_nothing_is_fired_again_for_nothing(tmp_path: Path) -> None:
    chaos = Chaos(0, tmp_path, CALM_SECONDS, [], with_queues=True)
    chaos.workloads = [each for each in chaos.workloads if isinstance(each, QueueWork)]
    assert run(chaos, "this test").seen["jobs"]


def test_the_check_sees_messages_that_are_fired_too_fast() -> None:
    in_time = [int(number * 1000 / MAX_RATE) << 16 for number in range(100)]
    at_once = [0] * int(BURST)
    check_rate(at_once + in_time)
    with pytest.raises(AssertionError, match="were fired in"):
        check_rate([*at_once, 0, 0, *in_time])

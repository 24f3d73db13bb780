"""A soak that slows down, or that grows, is told so; one that scatters is not."""

from __future__ import annotations

from collections.abc import Callable
from random import Random  # noqa: TID251 - seeded

import pytest

from tests.soak.measure import Measure, Sample


def measured(
    rate: Callable[[int], float], held: Callable[[int], float], seconds: int = 600
) -> Measure:
    measure = Measure(seconds)
    for second in range(seconds):
        measure.samples.append(Sample(rate(second), {"memory MB": held(second), "timers": 12}))
    return measure


def test_what_stays_as_it_is_passes() -> None:
    assert measured(lambda _: 1000.0, lambda _: 100.0).verdicts() == []


@pytest.mark.parametrize("seed", range(20))
def test_what_scatters_passes(seed: int) -> None:
    chance = Random(seed)
    measure = measured(lambda _: chance.gauss(1000, 400), lambda _: chance.gauss(100, 20), 100)
    assert measure.verdicts() == []


def test_what_slows_down_does_not() -> None:
    chance = Random("slower")
    verdicts = measured(lambda at: chance.gauss(1000 - at, 50), lambda _: 100.0).verdicts()
    assert any(told.startswith("operations/s: ") for told in verdicts)


def test_what_stands_still_at_the_end_does_not() -> None:
    verdicts = measured(lambda at: 1000.0 if at < 500 else 0.0, lambda _: 100.0).verdicts()
    assert any(told.startswith("operations/s: 1000 at first, 0 at last") for told in verdicts)


def test_what_grows_does_not() -> None:
    verdicts = measured(lambda _: 1000.0, lambda at: 100.0 + at / 5).verdicts()
    assert verdicts == ["memory MB: 142 when warm, 214 at last"]


def test_a_short_run_may_not_have_begun_to_collect() -> None:
    assert measured(lambda _: 1000.0, lambda at: 100.0 + at / 2, 90).verdicts() == []


def test_too_short_a_run_is_told_so() -> None:
    assert measured(lambda _: 1.0, lambda _: 1.0, 5).verdicts() == ["5 samples are too few"]

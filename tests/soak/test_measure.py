"""A soak that slows down, or that grows, is told so; one that scatters is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random  # noqa: TID251 - seeded

import pytest

from tests.soak.control import Control
from tests.soak.measure import Measure, Sample

LONG_SECONDS = 900.0


def measured(
    rate: Callable[[int], float], held: Callable[[int], float], seconds: int = 600
) -> Measure:
    measure = Measure(seconds)
    for second in range(seconds):
        measure.samples.append(Sample(rate(second), {"memory MB": held(second), "timers": 12}))
    return measure


def test_a_steady_measure_passes() -> None:
    assert measured(lambda _: 1000.0, lambda _: 100.0).verdicts() == []


@pytest.mark.parametrize("seed", range(20))
def test_a_scattering_measure_passes(seed: int) -> None:
    chance = Random(seed)
    measure = measured(lambda _: chance.gauss(1000, 400), lambda _: chance.gauss(100, 20), 100)
    assert measure.verdicts() == []


def test_a_rate_that_slows_down_fails() -> None:
    chance = Random("slower")
    verdicts = measured(lambda at: chance.gauss(1000 - at, 50), lambda _: 100.0).verdicts()
    assert any(told.startswith("per processor: ") for told in verdicts)


def test_a_rate_that_stands_still_at_the_end_fails() -> None:
    verdicts = measured(lambda at: 1000.0 if at < 500 else 0.0, lambda _: 100.0).verdicts()
    assert any(told.startswith("per processor: 1000 at first, 0 at last") for told in verdicts)


def shortly(rates: list[float], prices: list[float] | None = None) -> list[str]:
    """Return what is said of a run of 90 s with these tenths."""
    measure = Measure(90)
    for rate, price in zip(rates, prices or [0.0] * len(rates), strict=True):
        measure.samples += [Sample(rate, {}, price=price)] * 9
    return measure.verdicts()


def test_a_short_run_tells_who_collapses_and_not_the_weather() -> None:
    weather = [3412.0, 3300.0, 3350.0, 3400.0, 3380.0, 3360.0, 3390.0, 2400.0, 2300.0, 2147.0]
    assert shortly(weather) == []
    assert shortly([*[1000.0] * 7, 100.0, 900.0, 0.0]) == []
    assert shortly([*[1000.0] * 7, 200.0, 150.0, 0.0]) != []
    slow = [*[1000.0] * 7, *[250.0] * 3]
    assert shortly(slow, [*[1.0] * 7, *[4.0] * 3]) == []
    assert shortly(slow) != []


def test_each_further_range_may_make_a_store_a_little_slower() -> None:
    for last, wrong in ((600.0, []), (450.0, ["per processor: 1000 at first, 450 at last"])):
        measure = Measure(LONG_SECONDS)
        for at in range(100):
            tenth = at // 10
            rate = 1000.0 - (1000.0 - last) * tenth / 9
            measure.samples.append(Sample(rate, {"ranges": 1.0 + 6 * tenth}, 1.0, 0.0))
        assert measure.verdicts() == wrong


def test_memory_that_grows_fails() -> None:
    verdicts = measured(lambda _: 1000.0, lambda at: 100.0 + at / 5).verdicts()
    assert verdicts == ["memory MB: 142 when warm, 190 at last"]


def test_memory_held_for_a_while_is_no_growth() -> None:
    held = {450: 200.0, 540: 200.0}
    for start, much in held.items():
        measure = measured(
            lambda _: 1000.0, lambda at, start=start, much=much: much if start <= at < start + 60
            else 100.0,
        )  # fmt: skip
        assert measure.verdicts() == []


def loaded(rate: float, used: float, idle: float) -> list[str]:
    """Return what is said of a run whose second half is like that.

    The first half was 1000 by 1, alone.
    """
    measure = Measure(LONG_SECONDS)
    for second in range(100):
        sample = Sample(1000.0, {}, 1.0, 1.0) if second < 50 else Sample(rate, {}, used, idle)
        measure.samples.append(sample)
    return measure.verdicts()


def test_others_who_take_the_processor_are_not_our_fault() -> None:
    assert loaded(300.0, 0.3, 0.0) == []


def test_a_processor_that_is_free_at_last_is_nobodys_merit() -> None:
    measure = Measure(100)
    for second in range(100):
        sample = Sample(300.0, {}, 0.3, 0.0) if second < 50 else Sample(1000.0, {}, 1.0, 1.0)
        measure.samples.append(sample)
    assert measure.verdicts() == []


def test_a_growing_need_of_the_processor_is_seen() -> None:
    assert loaded(500.0, 1.0, 0.0) != []
    assert loaded(150.0, 0.3, 0.0) != []


def test_waiting_while_the_processor_is_free_is_seen() -> None:
    assert loaded(500.0, 0.5, 1.5) != []


def test_tables_of_a_short_run_may_grow_and_of_a_long_one_not() -> None:
    for seconds, wrong in ((90, []), (900, ["tables: 57 when warm, 108 at last"])):
        measure = Measure(seconds)
        measure.samples = [Sample(1.0, {"tables": 12 + at / 7}) for at in range(900)]
        assert measure.verdicts() == wrong


def test_too_short_a_run_is_told_so() -> None:
    assert measured(lambda _: 1.0, lambda _: 1.0, 5).verdicts() == ["5 samples are too few"]


def spelled(rate_while_read: float, chance: Random) -> list[str]:
    measure = Measure(100)
    for second in range(100):
        is_read = second // 5 % 2 == 1
        rate = chance.gauss(rate_while_read if is_read else 100.0, 20.0)
        measure.samples.append(Sample(1000.0, {}, queued=rate, is_read=is_read))
    return measure.verdicts()


def test_a_snapshot_that_slows_consumers_is_seen() -> None:
    assert spelled(100.0, Random(1)) == []
    assert spelled(50.0, Random(1)) != []


def priced(first: float, last: float) -> list[str]:
    """Return what is said of a run that does half as much in its second half."""
    measure = Measure(LONG_SECONDS)
    for second in range(100):
        is_late = second >= 50
        sample = Sample(500.0 if is_late else 1000.0, {}, price=last if is_late else first)
        measure.samples.append(sample)
    return measure.verdicts()


def test_a_machine_that_has_become_slower_is_an_excuse_and_a_faster_one_is_not() -> None:
    assert priced(0.001, 0.002) == []
    assert priced(0.001, 0.0011) != []
    assert priced(0.002, 0.001) != []


def test_the_control_tells_prices(tmp_path: Path) -> None:
    with Control(tmp_path) as control:
        prices: list[float] = []
        while len(prices) < 3:
            prices += control.prices()
    assert min(prices) > 0

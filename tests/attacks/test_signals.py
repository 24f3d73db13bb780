"""A storm of signals whose handler raises: an embedded store loses nothing, and goes on.

Each line of a call is tried in ``tests/client/test_signals.py``; here a timer strikes anywhere.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import postroom

INTERVAL_SECONDS = 0.0007
CALLS = 1500
STRUCK_MIN = 20


class Struck(Exception):
    """An exception of the handler."""


@contextmanager
def storm() -> Iterator[None]:
    """Have the handler of the timer raise."""

    def strike(*_: object) -> None:
        raise Struck

    before = signal.signal(signal.SIGALRM, strike)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_store_goes_on_beneath_a_storm_of_signals(tmp_path: Path) -> None:
    promised, struck, number = 0, 0, 0
    with postroom.open(tmp_path / "store") as db:
        with storm():
            while number < CALLS or struck < STRUCK_MIN:
                number += 1
                try:
                    signal.setitimer(signal.ITIMER_REAL, INTERVAL_SECONDS * (number % 7) / 7)
                    db.put(b"last", b"%d" % number)
                    signal.setitimer(signal.ITIMER_REAL, 0.0)
                    promised = number
                except Struck:
                    struck += 1
        found = int(db.get(b"last") or b"0")
        assert promised <= found <= number, "a failed call was done, or was not"
        db.put(b"after", b"the storm")
    with postroom.open(tmp_path / "store") as again:
        assert (again.get(b"after"), int(again.get(b"last") or b"0")) == (b"the storm", found)

"""Answers that are held until other ranges have carried out what was committed.

::

    applied ─┬─ held ─┬─ other ranges have told each name ─▶ given
             │        ├─ HELD_SECONDS have passed ─────────▶ given
             │        └─ the lease ends ───────────────────▶ given
             └─ there is no lease any more ───────────────▶ given

The commit is irrevocable by then. A client that is answered finds what it has done, as in one
range: its messages can be claimed. A range that cannot be reached delays the answer, and nothing
else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from postroom.ranges.calls import Call

HELD_SECONDS: Final = 0.5
"""The time for which an answer is held at most."""


class _Answer:
    """An answer that is held.

    Attributes:
        names: those that have not been told yet.
        ends_at: when it is given at the latest.
    """

    __slots__ = ("_calls", "_result", "ends_at", "names")

    def __init__(
        self, names: set[bytes], calls: Sequence[Call], result: Any, ends_at: float
    ) -> None:
        self.names = names
        self._calls = calls
        self._result = result
        self.ends_at = ends_at

    def give(self) -> None:
        """Answer the calls."""
        for call in self._calls:
            call.complete(self._result, None)


class HeldAnswers:
    """The answers that a leaseholder holds; see the module.

    Args:
        monotonic: a function that returns seconds that never go back.

    Attributes:
        wake: a function that has ``give_old`` called soon.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._monotonic = monotonic
        self._is_open = False
        self._by_name: dict[bytes, _Answer] = {}
        self._by_age: dict[_Answer, None] = {}

    def hold(self, names: Iterable[bytes], calls: Sequence[Call], result: Any) -> None:
        """Hold the answer of calls until all of some names are told."""
        if not self._is_open:
            for call in calls:
                call.complete(result, None)
            return
        if not self._by_age:
            self.wake()
        answer = _Answer(set(names), calls, result, self._monotonic() + HELD_SECONDS)
        self._by_age[answer] = None
        for name in answer.names:
            self._by_name[name] = answer

    def told(self, name: bytes) -> None:
        """Give the answer that waits for nothing else than this name."""
        answer = self._by_name.pop(name, None)
        if answer is None:
            return
        answer.names.discard(name)
        if not answer.names:
            self._give(answer)

    def __len__(self) -> int:
        """Return the number of answers."""
        return len(self._by_age)

    def give_old(self) -> float:
        """Give the answers that were held for too long; return when to do so again."""
        now = self._monotonic()
        for answer in list(self._by_age):  # in the order of their ends
            if answer.ends_at > now:
                return answer.ends_at - now
            self._give(answer)
        return math.inf

    def open(self) -> None:
        """Hold answers from now on: there is a lease, so the names are told."""
        self._is_open = True

    def close(self) -> None:
        """Give all answers, and hold no others: the lease is over."""
        self._is_open = False
        for answer in list(self._by_age):
            self._give(answer)

    def _give(self, answer: _Answer) -> None:
        for name in answer.names:
            self._by_name.pop(name, None)
        self._by_age.pop(answer, None)
        answer.give()

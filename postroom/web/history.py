"""The numbers of the last hour, for charts: they are noted while somebody looks.

It keeps ``SAMPLES_MAX`` points of ``SERIES_MAX`` charts at most.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from postroom.web.limits import SAMPLE_SECONDS, SAMPLES_MAX, SERIES_MAX

Sample = tuple[float, dict[str, float]]


class History:
    """The points of all charts, by the names of these.

    Args:
        wall_seconds: returns the time of day, in seconds of 1970.
    """

    def __init__(self, wall_seconds: Callable[[], float]) -> None:
        self._now = wall_seconds
        self._series: OrderedDict[str, deque[Sample]] = OrderedDict()

    def note(self, name: str, values: Mapping[str, float]) -> None:
        """Note the numbers of now, unless the last ones are young."""
        now, samples = self._now(), self._series.setdefault(name, deque(maxlen=SAMPLES_MAX))
        self._series.move_to_end(name)
        if len(self._series) > SERIES_MAX:
            self._series.popitem(last=False)
        if samples and now < samples[-1][0]:
            samples.clear()  # the clock was set back: a chart goes forward
        if not samples or now - samples[-1][0] >= SAMPLE_SECONDS:
            samples.append((now, dict(values)))

    def series(self, name: str) -> dict[str, Any]:
        """Return the points of a chart: the times, in seconds of 1970, and the numbers by name."""
        samples = self._series.get(name, ())
        names = samples[-1][1] if samples else ()
        return {
            "at": [round(at, 1) for at, _ in samples],
            "values": {name: [values.get(name) for _, values in samples] for name in names},
        }

    def rates(self, name: str) -> dict[str, float]:
        """Return how fast the numbers of a chart grow, by name, each second."""
        last_two = list(islice(reversed(self._series.get(name, deque())), 2))
        if not last_two[1:]:
            return {}
        (now, last), (before, first) = last_two
        seconds = now - before
        return {
            each: round(max(last[each] - first.get(each, last[each]), 0.0) / seconds, 1)
            for each in last
        }
